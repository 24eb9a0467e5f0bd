"""Sets of public keys (JWKS, RFC 7517), and the key that a token names."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import jwt

MAX_KEYS = 20
MAX_FETCHED_KEYS = 100

# The types of keys by the algorithms of signatures. None is symmetric: everybody knows the public key.
ALGORITHMS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
}
_PRIVATE = ("d", "p", "q", "dp", "dq", "qi", "oth", "k")

JWK = Mapping[str, Any]


class WrongKeys(ValueError):
    """The text says what is wrong with a set of keys."""


def checked(jwks: Mapping[str, Any]) -> dict[str, list[JWK]]:
    """Return an uploaded set. Raises `WrongKeys`."""
    found = jwks.get("keys")
    if set(jwks) != {"keys"} or not isinstance(found, list) or not 1 <= len(found) <= MAX_KEYS:
        raise WrongKeys(f'expected {{"keys": […]}} with 1 to {MAX_KEYS} public keys.')
    for place, each in enumerate(found):
        if not isinstance(each, dict) or each.get("kty") not in ALGORITHMS.values():
            raise WrongKeys(f"keys[{place}] must be an object with the 'kty' RSA, EC or OKP.")
        if any(member in each for member in _PRIVATE):
            raise WrongKeys(f"keys[{place}] is a private key. Replace it, and send the public one.")
        if not any(_usable(each, name) for name, kty in ALGORITHMS.items() if kty == each["kty"]):
            raise WrongKeys(f"keys[{place}] can't be used to verify signatures.")
    return {"keys": found}


def find(keys: Iterable[JWK], kid: str | None, algorithm: str) -> jwt.PyJWK | None:
    """Return the key with this id for the algorithm. Without an id, there must be one for the algorithm."""
    found = [
        key
        for each in keys
        if (kid is None or each.get("kid") == kid) and (key := _usable(each, algorithm)) is not None
    ]
    return found[0] if found and (kid is not None or len(found) == 1) else None


def _usable(key: JWK, algorithm: str) -> jwt.PyJWK | None:
    """Return the key, if it verifies signatures of the algorithm."""
    is_meant = key.get("use", "sig") == "sig" and key.get("alg", algorithm) == algorithm
    if not is_meant or key.get("kty") != ALGORITHMS[algorithm]:
        return None
    public = {name: value for name, value in key.items() if name not in _PRIVATE}
    try:
        return jwt.PyJWK(public, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError):
        return None
