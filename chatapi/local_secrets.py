"""Secrets of a fresh clone, generated at its first start; production sets them in the environment."""

import os
import re
import secrets
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

NAMES = ("CHATAPI_SECRET_KEY", "CHATAPI_KEY_PEPPER")
# The least length of a secret: 16 bytes in hexadecimal digits can't be guessed.
MIN_CHARACTERS = 32
_LINE = re.compile(r"\s*(?:#.*|(?:export\s+)?(?P<name>\w+)\s*=\s*(?P<value>\S.*))?")


def ensure(state_dir: Path) -> Path:
    """Return the path of `secrets.env` in `state_dir`; write a missing one with random values (mode 0600).

    Raises `ImproperlyConfigured` if the folder can't be written or the file is damaged.
    """
    path = state_dir / "secrets.env"
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        _write_once(path)
    except OSError as error:
        raise ImproperlyConfigured(
            f"cannot write to {state_dir} ({error.strerror}): "
            "make the folder writable or set CHATAPI_STATE_DIR to one that is."
        ) from error
    _check(path)
    return path


def _check(path: Path) -> None:
    """Raise `ImproperlyConfigured` if the file is damaged; errors show none of its text, which is secret."""
    try:
        lines = [_LINE.fullmatch(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ImproperlyConfigured(
            f"cannot read {path} ({getattr(error, 'strerror', 'it is no text')})."
        ) from error
    missing = {*NAMES} - {*os.environ} - {line["name"] for line in lines if line}
    if missing or None in lines:
        lacking = (
            f"it lacks {' and '.join(sorted(missing))}"
            if missing
            else f"line {lines.index(None) + 1} is not NAME=VALUE"
        )
        raise ImproperlyConfigured(
            f"{path} is damaged ({lacking}): restore it. Without its pepper no API key is valid any more."
        )


def _write_once(path: Path) -> None:
    if path.exists():
        return
    # Two processes may start at once: each writes its draft, and link() succeeds for exactly one of them.
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.writelines(f"{name}={secrets.token_urlsafe(48)}\n" for name in NAMES)
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
