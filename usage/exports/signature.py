"""The signature under what leaves the house: Ed25519 (RFC 8032), with a key derived from the service's
secret.

Not an HMAC: who can check one can also forge one, so an auditor would need the service's secret. This is
checked with the public key alone, and with nothing but `openssl`.
"""

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from django.utils.crypto import salted_hmac


class InvalidPublicKey(Exception):
    """This is no public key of Ed25519 in PEM."""


def sign(message: bytes) -> bytes:
    """The 64 bytes of the signature."""
    return _key().sign(message)


def public_key() -> bytes:
    """Our public key, in PEM."""
    return _key().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def is_signed(message: bytes, signature: bytes, pem: bytes) -> bool:
    """Whether the owner of that public key has signed exactly this; raises `InvalidPublicKey`."""
    key = _loaded(pem)
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True


def _loaded(pem: bytes) -> Ed25519PublicKey:
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidPublicKey from error
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidPublicKey
    return key


def _key() -> Ed25519PrivateKey:
    seed = salted_hmac("usage.exports.signature", "Ed25519 seed", algorithm="sha256").digest()
    return Ed25519PrivateKey.from_private_bytes(seed)
