"""API keys as values: generated, parsed, hashed; pure.

A key is `ck_live_<public>_<secret><checksum>` (or `ck_test_…`). `public` identifies the row. The checksum
lets a mistyped or made-up key be refused without the database. Only an HMAC of the whole key is stored.

An access token has the form of a live key. Its secret is not random: it is the time at which the token ends,
and a signature of this time and the public part. So a row without a digest can have any number of tokens.
"""

import hashlib
import hmac
import re
import secrets
import zlib
from dataclasses import dataclass

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PUBLIC_LENGTH, SECRET_LENGTH, CHECKSUM_LENGTH = 12, 32, 6
# The parts of an access token's secret: 26 digits in base 62 hold 154 bits.
_END_LENGTH, _SIGNATURE_LENGTH = 6, 26
_PATTERN = re.compile(r"ck_(live|test)_([0-9A-Za-z]{12})_([0-9A-Za-z]{32})([0-9A-Za-z]{6})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """A well-formed key with a correct checksum; only the database knows whether it exists."""

    public: str
    is_test: bool


def generate(*, is_test: bool) -> str:
    """Return a new random key with a 190-bit secret. It is shown once and never stored."""
    body = f"ck_{'test' if is_test else 'live'}_{_random(PUBLIC_LENGTH)}_{_random(SECRET_LENGTH)}"
    return body + _checksum(body)


def new_public() -> str:
    """Return the public part of a new key."""
    return _random(PUBLIC_LENGTH)


def access_token(public: str, ends_at: int, pepper: str) -> str:
    """Return the access token with this public part that ends at this Unix time."""
    body = f"ck_live_{public}_{_in_base_62(ends_at, _END_LENGTH)}"
    body += _signature(body, pepper)
    return body + _checksum(body)


def end_of_access_token(key: str, pepper: str) -> int | None:
    """Return the Unix time at which an access token ends; None if its signature is wrong."""
    body, signature = key[: -_SIGNATURE_LENGTH - CHECKSUM_LENGTH], key[:-CHECKSUM_LENGTH][-_SIGNATURE_LENGTH:]
    if not hmac.compare_digest(_signature(body, pepper), signature):
        return None
    number = 0
    for digit in body[-_END_LENGTH:]:
        number = number * 62 + _ALPHABET.index(digit)
    return number


def parse(key: str) -> ParsedKey | None:
    """Return the key's parts; None if its form or checksum is wrong."""
    match = _PATTERN.fullmatch(key)
    if match is None or not hmac.compare_digest(_checksum(key[:-CHECKSUM_LENGTH]), match[4]):
        return None
    return ParsedKey(public=match[2], is_test=match[1] == "test")


def digest(key: str, pepper: str) -> str:
    """Return the HMAC-SHA256 of the whole key in hexadecimal, which the database keeps (RFC 2104).

    A fast hash is enough: the secret is random and cannot be guessed like a password.
    """
    return hmac.new(pepper.encode(), key.encode(), hashlib.sha256).hexdigest()


def redacted(public: str, *, is_test: bool) -> str:
    """Return how a key is shown after its creation: the start of its public part, as in `ck_live_4fGh…`."""
    return f"ck_{'test' if is_test else 'live'}_{public[:4]}…"


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def _checksum(text: str) -> str:
    # Six digits in base 62 hold all 32 bits of a CRC.
    return _in_base_62(zlib.crc32(text.encode()), CHECKSUM_LENGTH)


def _signature(body: str, pepper: str) -> str:
    # A key of its own: under the plain pepper, clients are shown digests of texts that they choose, such as
    # the names of end users.
    key = hashlib.sha256(f"access token {pepper}".encode()).digest()
    found = hmac.digest(key, body.encode(), "sha256")
    return _in_base_62(int.from_bytes(found), _SIGNATURE_LENGTH)


def _in_base_62(number: int, length: int) -> str:
    """Return the last digits of the number."""
    out = ""
    for _ in range(length):
        number, digit = divmod(number, 62)
        out = _ALPHABET[digit] + out
    return out
