"""The API keys of upstreams: in an environment variable, or entered in the admin and encrypted.

An encrypted key is bound to its deployment: copied to another row, it can't be decrypted.
"""

import os

from accounts.encryption import Purpose, decrypt, encrypt
from chatapi.models import Deployment

# The message for a deployment for which `entered` returns None.
LOST = "The stored API key can't be decrypted: it was entered under another CHATAPI_SECRET_KEY."


def key_of(row: Deployment) -> str | None:
    """Return the upstream's key; empty if it needs none.

    None if its variable is not set in this process, or the entered key can't be decrypted.
    """
    if row.api_key_env:
        return os.environ.get(row.api_key_env, "").strip() or None
    return entered(row)


def entered(row: Deployment) -> str | None:
    """Return the key that was entered; empty if none was, None if it can't be decrypted."""
    if not row.encrypted_api_key:
        return ""
    key = decrypt(Purpose.UPSTREAM_KEYS, _place(row), bytes(row.encrypted_api_key))
    return None if key is None else key.decode()


def enter(row: Deployment, key: str) -> None:
    """Encrypt and store the key; the deployment must have been saved before, because its id is needed."""
    row.encrypted_api_key = encrypt(Purpose.UPSTREAM_KEYS, _place(row), key.encode())
    row.save(update_fields=["encrypted_api_key"])


def _place(row: Deployment) -> bytes:
    return str(row.pk).encode()
