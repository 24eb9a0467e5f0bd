"""API keys as values: made, parsed, hashed; pure.

A key is `ck_live_<public>_<secret><checksum>` (or `ck_test_…`): `public` names the row, the checksum lets a
mistyped or made-up key be refused without asking a database, and only an HMAC of the whole key is ever
stored.
"""

import hashlib
import hmac
import re
import secrets
import zlib
from dataclasses import dataclass

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PUBLIC_LENGTH, SECRET_LENGTH, CHECKSUM_LENGTH = 12, 32, 6
_PATTERN = re.compile(r"ck_(live|test)_([0-9A-Za-z]{12})_([0-9A-Za-z]{32})([0-9A-Za-z]{6})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """A key whose form and checksum are right; whether it exists is the database's answer."""

    public: str
    is_test: bool


def generate(*, is_test: bool) -> str:
    """A new random key (190 bits of secret). It is shown once and never stored."""
    body = f"ck_{'test' if is_test else 'live'}_{_random(PUBLIC_LENGTH)}_{_random(SECRET_LENGTH)}"
    return body + _checksum(body)


def parse(key: str) -> ParsedKey | None:
    """The key's parts, or None when its form or its checksum is wrong."""
    match = _PATTERN.fullmatch(key)
    if match is None or not hmac.compare_digest(_checksum(key[:-CHECKSUM_LENGTH]), match[4]):
        return None
    return ParsedKey(public=match[2], is_test=match[1] == "test")


def digest(key: str, pepper: str) -> str:
    """HMAC-SHA256 of the whole key, hex: what the database keeps (RFC 2104).

    A fast hash is right here: the secret is random, not a password that could be guessed.
    """
    return hmac.new(pepper.encode(), key.encode(), hashlib.sha256).hexdigest()


def redacted(public: str, *, is_test: bool) -> str:
    """A key as it may be shown again: how its public part begins, as in `ck_live_4fGh…`."""
    return f"ck_{'test' if is_test else 'live'}_{public[:4]}…"


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def _checksum(text: str) -> str:
    number, out = zlib.crc32(text.encode()), ""
    for _ in range(CHECKSUM_LENGTH):
        number, digit = divmod(number, 62)
        out = _ALPHABET[digit] + out
    return out
