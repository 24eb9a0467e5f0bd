"""Secrets that a first start invents, so that a fresh clone runs; production sets them in the environment."""

import os
import secrets
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

NAMES = ("CHATAPI_SECRET_KEY", "CHATAPI_KEY_PEPPER")


def ensure(state_dir: Path) -> Path:
    """The file `secrets.env` in `state_dir`, written with fresh random values (mode 0600) when it is not there.

    Raises `ImproperlyConfigured` when the folder cannot be written.
    """
    path = state_dir / "secrets.env"
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        _write_once(path)
    except OSError as error:
        raise ImproperlyConfigured(
            f"cannot write to {state_dir} ({error.strerror}): make the folder writable or set CHATAPI_STATE_DIR to one that is."
        ) from error
    return path


def _write_once(path: Path) -> None:
    if path.exists():
        return
    # Two processes may start at once: each writes a file of its own, and link() lets exactly one of them win whole.
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
