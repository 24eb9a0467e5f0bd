"""Ed25519 signatures (RFC 8032) of exports, with a key derived from the service's secret.

Not an HMAC, because checking an HMAC requires the secret that also forges one. An auditor needs only the
public key, and `openssl` can check the signature.
"""

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from django.utils.crypto import salted_hmac


class InvalidPublicKey(Exception):
    """The text is not an Ed25519 public key in PEM."""


def sign(message: bytes) -> bytes:
    """Return the 64 bytes of the signature."""
    return _key().sign(message)


def public_key() -> bytes:
    """Return our public key in PEM."""
    return _key().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def is_signed(message: bytes, signature: bytes, pem: bytes) -> bool:
    """Return whether the owner of the public key signed exactly this message; raises `InvalidPublicKey`."""
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
