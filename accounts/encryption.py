"""Encrypts values of rows by AES-256-GCM (NIST SP 800-38D).

The keys are derived from the service's secret by HKDF (RFC 5869). The row is the associated data, so that no
value can be put into another row.
"""

import os
from enum import Enum

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

_NONCE_BYTES = 12


class Purpose(Enum):
    """The uses of the service's secret, each with its own key."""

    STORED_RESPONSES = b"chatapi stored responses"
    UPSTREAM_KEYS = b"chatapi upstream keys"
    WEBHOOK_SECRETS = b"chatapi webhook secrets"
    SECOND_FACTORS = b"chatapi second factors"
    IDENTITY_PROVIDERS = b"chatapi identity providers"


def encrypt(purpose: Purpose, row: bytes, value: bytes) -> bytes:
    """Return a nonce and the encrypted value."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + _cipher(purpose).encrypt(nonce, value, row)


def decrypt(purpose: Purpose, row: bytes, encrypted: bytes) -> bytes | None:
    """Return the value; None if the secret, the row or the value is another one than it was."""
    try:
        return _cipher(purpose).decrypt(encrypted[:_NONCE_BYTES], encrypted[_NONCE_BYTES:], row)
    except (InvalidTag, ValueError):  # the latter for one that was cut
        return None


def _cipher(purpose: Purpose) -> AESGCM:
    # Django has uses of its own for the secret, and none of them can be mixed with another.
    derivation = HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose.value)
    return AESGCM(derivation.derive(settings.SECRET_KEY.encode()))
