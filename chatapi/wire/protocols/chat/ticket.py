"""The right to one stream, for an EventSource, which can only GET and has no key."""

import msgspec


def ticket(secret: str, expires_at: int, base_path: str) -> bytes:
    """Return the object of a ticket; see `Protocol.ticket`."""
    url = f"{base_path}/v1/chat/completions?ticket={secret}"
    body = {"object": "chat.completion.ticket", "id": secret, "expires_at": expires_at, "url": url}
    return msgspec.json.encode(body)
