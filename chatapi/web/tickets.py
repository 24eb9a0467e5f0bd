"""Tickets: a request that was posted with a key and is fetched once, soon, by something that can't send one.

A browser's EventSource can only GET and sends no headers. So a page's own server (or its fetch) posts the request with its key, and
gets an address that streams the answer exactly once. The ticket is a bearer secret: Redis keeps its hash, for a minute.
"""

import hashlib
import secrets
from typing import cast
from uuid import UUID

import msgspec
from redis.asyncio import Redis

_TICKET_BYTES = 32
MAX_TICKET_CHARS = 64


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    """What was asked, and by which key: what the key may do is looked up again when the ticket is used."""

    id: UUID
    api_key_id: int
    dialect: str
    request: bytes
    """A validated request, as `requests.to_bytes` writes it."""


class Tickets:
    """The tickets that have not been used yet."""

    def __init__(self, redis: Redis, prefix: str, *, ttl_ms: int) -> None:
        self.ttl_ms = ttl_ms
        self._redis = redis
        self._prefix = prefix

    async def issue(self, ticket: Ticket) -> str:
        """Keep it and answer its secret; raises `RedisError`."""
        secret = secrets.token_urlsafe(_TICKET_BYTES)
        await self._redis.set(self._key(secret), msgspec.msgpack.encode(ticket), px=self.ttl_ms)
        return secret

    async def redeem(self, secret: str) -> Ticket | None:
        """The ticket, which is used up by this; None for one that is unknown, used or expired. Raises `RedisError`."""
        if len(secret) > MAX_TICKET_CHARS:
            return None
        kept = await self._redis.getdel(self._key(secret))
        return None if kept is None else msgspec.msgpack.decode(cast(bytes, kept), type=Ticket)

    def _key(self, secret: str) -> str:
        return f"{self._prefix}ticket:{hashlib.sha256(secret.encode()).hexdigest()}"
