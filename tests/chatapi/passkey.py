"""A passkey in memory, which signs as a browser's authenticator does (WebAuthn, level 2)."""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from allauth.account.utils import user_pk_to_url_str
from allauth.mfa.webauthn.internal.auth import WebAuthn
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from django.contrib.auth.models import User
from fido2.cose import ES256
from fido2.utils import websafe_encode
from fido2.webauthn import (
    Aaguid,
    AttestationObject,
    AttestedCredentialData,
    AuthenticatorData,
    CollectedClientData,
)

HOST = "testserver"
CREDENTIAL_ID = b"passkey"
_FLAGS = AuthenticatorData.FLAG


class Passkey:
    """One person's passkey; it is stored as if the person had added it."""

    def __init__(self, user: User) -> None:
        self._user = user
        self._key = ec.generate_private_key(ec.SECP256R1())
        WebAuthn.add(user, "Laptop", self.create(b""))

    def create(self, challenge: str | bytes) -> dict[str, Any]:
        """Return the new credential that answers the challenge of a page."""
        public = ES256.from_cryptography_key(self._key.public_key())  # type: ignore[no-untyped-call]
        data = AttestedCredentialData.create(Aaguid.NONE, CREDENTIAL_ID, public)
        made = AttestationObject.create("none", self._data(_FLAGS.AT, data), {})
        response = {"clientDataJSON": self._client_data("create", challenge), "attestationObject": made}
        return self._credential(response)

    def sign(self, challenge: str) -> str:
        """Return the credential, as JSON, that answers the challenge of a page."""
        client_data, data = self._client_data("get", challenge), self._data()
        signature = self._key.sign(data + sha256(client_data).digest(), ec.ECDSA(SHA256()))
        response = {"clientDataJSON": client_data, "authenticatorData": data, "signature": signature}
        handle = user_pk_to_url_str(self._user).encode()
        return json.dumps(self._credential({**response, "userHandle": handle}))

    def _client_data(self, act: str, challenge: str | bytes) -> CollectedClientData:
        return CollectedClientData.create(f"webauthn.{act}", challenge, f"https://{HOST}")

    def _data(self, flags: int = 0, of: bytes = b"") -> AuthenticatorData:
        flags |= _FLAGS.UP | _FLAGS.UV
        data: AuthenticatorData = AuthenticatorData.create(sha256(HOST.encode()).digest(), flags, 1, of)
        return data

    def _credential(self, response: Mapping[str, bytes]) -> dict[str, Any]:
        name = websafe_encode(CREDENTIAL_ID)
        parts = {key: websafe_encode(value) for key, value in response.items()}
        return {"id": name, "rawId": name, "type": "public-key", "response": parts}
