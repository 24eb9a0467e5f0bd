"""Tickets: a request is posted with a key, and its stream is fetched once without one.

A browser's EventSource can only GET and sends no headers. So a page's server (or its fetch) posts the request
with its key, and gets a URL that streams the answer exactly once. The ticket is a bearer secret: Redis keeps
its hash, for a minute.

Rate limits do not count a ticket before it is used, so the bytes of a key's unused tickets are bounded.
"""

import hashlib
import logging
import secrets
import time
from contextlib import suppress
from typing import cast
from uuid import UUID

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

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
    other_summary: object = None
    """The place of the summary in a ticket of the release before, which has another form."""
    summary: RequestSummary | None = None
    """None in a ticket of the release before."""


class TooManyTickets(Exception):
    """The key's tickets have no room for another one until `retry_after_ms` have passed."""

    def __init__(self, retry_after_ms: int) -> None:
        super().__init__(f"try again in {retry_after_ms} ms")
        self.retry_after_ms = retry_after_ms


class Tickets:
    """The unused tickets in Redis."""

    def __init__(self, redis: Redis, prefix: str, *, ttl_ms: int, max_bytes: int) -> None:
        """`max_bytes` bounds the unused tickets that one key gets in each period of `ttl_ms` by the clock."""
        self.ttl_ms = ttl_ms
        self.max_bytes = max_bytes
        self._redis = redis
        self._prefix = prefix

    async def issue(self, ticket: Ticket) -> str:
        """Store the ticket and return its secret; raises `TooManyTickets` or `RedisError`."""
        secret = secrets.token_urlsafe(_TICKET_BYTES)
        window, begun_ms_ago = divmod(time.time_ns() // 1_000_000, self.ttl_ms)
        counted = msgspec.structs.replace(
            ticket, counter=f"{self._prefix}tickets:{ticket.api_key_id}:{window}"
        )
        encoded = msgspec.msgpack.encode(counted)
        if await self._count(counted.counter, len(encoded)) > self.max_bytes:
            await self._redis.decrby(counted.counter, len(encoded))
            raise TooManyTickets(self.ttl_ms - begun_ms_ago)
        await self._redis.set(self._key(secret), encoded, px=self.ttl_ms)
        return secret

    async def _count(self, counter: str, n_bytes: int) -> int:
        """Add to the counter and return its total; it outlives the last ticket of its period."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.incrby(counter, n_bytes)
            pipe.pexpire(counter, 2 * self.ttl_ms)
            total_bytes, _ = await pipe.execute()
        return cast(int, total_bytes)

    async def redeem(self, secret: str) -> Ticket | None:
        """Remove the ticket and return it; None if it is unknown, used, expired or of another version.

        Raises `RedisError`.
        """
        if len(secret) > MAX_TICKET_CHARS:
            return None
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
                await self._redis.decrby(ticket.counter, len(kept))
        return ticket

    def _key(self, secret: str) -> str:
        return f"{self._prefix}ticket:{hashlib.sha256(secret.encode()).hexdigest()}"
