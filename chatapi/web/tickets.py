"""Tickets: a request is posted with a key, and its stream is fetched once without one.

A browser's EventSource can only GET and sends no headers. So a page's server (or its fetch) posts the request
with its key, and gets a URL that streams the answer exactly once. The ticket is a bearer secret: Redis keeps
its hash, for a minute.

Rate limits do not count a ticket before it is used, so the bytes of a key's unused tickets are bounded.
"""

import hashlib
import logging
import secrets
from contextlib import suppress
from typing import cast
from uuid import UUID

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from accounts.redis_time_limit import in_time
from chatapi.web.byte_windows import ByteWindows
from chatapi.wire.parsed_request import RequestSummary

log = logging.getLogger(__name__)

_TICKET_BYTES = 32
MAX_TICKET_CHARS = 64


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    """A request and the key that posted it; the key's rights are looked up again when the ticket is used."""

    id: UUID
    api_key_id: int
    dialect: str
    request: bytes
    """A validated request: `ParsedRequest.content`."""
    counter: str = ""
    """The Redis key that counts its bytes until it is used."""
    place_of_earlier_summary: None = None
    """Empty; kept so that this release and the one before read each other's tickets."""
    summary: RequestSummary | None = None
    """None only in tickets of releases that wrote none, which are refused."""


class Tickets:
    """The unused tickets in Redis."""

    def __init__(self, redis: Redis, prefix: str, *, ttl_ms: int, max_bytes: int) -> None:
        """`max_bytes` bounds the unused tickets that one key gets in each period of `ttl_ms` by the clock."""
        self.ttl_ms = ttl_ms
        self.unused = ByteWindows(redis, f"{prefix}tickets:", period_ms=ttl_ms, max_bytes=max_bytes)
        self._redis = redis
        self._prefix = prefix

    async def issue(self, ticket: Ticket) -> str:
        """Store the ticket and return its secret; raises `WindowFull` or `RedisError`."""
        secret = secrets.token_urlsafe(_TICKET_BYTES)
        counter = await self.unused.take(ticket.api_key_id, len(ticket.request))
        encoded = msgspec.msgpack.encode(msgspec.structs.replace(ticket, counter=counter))
        async with in_time():
            await self._redis.set(self._key(secret), encoded, px=self.ttl_ms)
        return secret

    async def redeem(self, secret: str) -> Ticket | None:
        """Remove the ticket and return it; None if it is unknown, used, expired or of another version.

        Raises `RedisError`.
        """
        if len(secret) > MAX_TICKET_CHARS:
            return None
        async with in_time():
            kept = cast(bytes | None, await self._redis.getdel(self._key(secret)))
        if kept is None:
            return None
        try:
            ticket = msgspec.msgpack.decode(kept, type=Ticket)
        except msgspec.DecodeError as error:
            log.error("a ticket can't be read: %s", error)
            return None
        with suppress(RedisError):  # a full Redis refuses this, and the ticket is already removed
            if ticket.counter:
                await self.unused.release(ticket.counter, len(ticket.request))
        return ticket

    def _key(self, secret: str) -> str:
        return f"{self._prefix}ticket:{hashlib.sha256(secret.encode()).hexdigest()}"
