"""Tickets: a request that was posted with a key and is fetched once, soon, by something that can't send one.

A browser's EventSource can only GET and sends no headers. So a page's own server (or its fetch) posts the
request with its key, and gets an address that streams the answer exactly once. The ticket is a bearer secret:
Redis keeps its hash, for a minute.

No rate limit counts a ticket before it is used. So what one key's tickets take up in Redis has a bound of its
own.
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
    """What was asked, and by which key: what the key may do is looked up again when the ticket is used."""

    id: UUID
    api_key_id: int
    dialect: str
    request: bytes
    """A validated request: `ParsedRequest.content`."""
    counter: str = ""
    """The key in Redis that counts its bytes until it is used."""
    summary: RequestSummary | None = None
    """Of the request; None in a ticket of the version before."""


class TooManyTickets(Exception):
    """The key's tickets take up all that they may; `retry_after_ms`: when there will be room."""

    def __init__(self, retry_after_ms: int) -> None:
        super().__init__(f"try again in {retry_after_ms} ms")
        self.retry_after_ms = retry_after_ms


class Tickets:
    """The tickets that have not been used yet."""

    def __init__(self, redis: Redis, prefix: str, *, ttl_ms: int, most_bytes: int) -> None:
        """`most_bytes`: of the unused tickets that one key was given in one `ttl_ms` by the clock; at most
        two such times matter.
        """
        self.ttl_ms = ttl_ms
        self.most_bytes = most_bytes
        self._redis = redis
        self._prefix = prefix

    async def issue(self, ticket: Ticket) -> str:
        """Keep it and answer its secret; raises `TooManyTickets` or `RedisError`."""
        secret = secrets.token_urlsafe(_TICKET_BYTES)
        window, begun_ms_ago = divmod(time.time_ns() // 1_000_000, self.ttl_ms)
        counted = msgspec.structs.replace(
            ticket, counter=f"{self._prefix}tickets:{ticket.api_key_id}:{window}"
        )
        encoded = msgspec.msgpack.encode(counted)
        if await self._count(counted.counter, len(encoded)) > self.most_bytes:
            await self._redis.decrby(counted.counter, len(encoded))
            raise TooManyTickets(self.ttl_ms - begun_ms_ago)
        await self._redis.set(self._key(secret), encoded, px=self.ttl_ms)
        return secret

    async def _count(self, counter: str, n_bytes: int) -> int:
        """All bytes that it counts, with these; it outlives the last ticket of its time."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.incrby(counter, n_bytes)
            pipe.pexpire(counter, 2 * self.ttl_ms)
            total_bytes, _ = await pipe.execute()
        return cast(int, total_bytes)

    async def redeem(self, secret: str) -> Ticket | None:
        """The ticket, which is used up by this; None for one that is unknown, used, expired or another
        version's. Raises `RedisError`.
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
        with suppress(
            RedisError, OSError
        ):  # a Redis that is full refuses it, and the ticket is used up already
            if ticket.counter:
                await self._redis.decrby(ticket.counter, len(kept))
        return ticket

    def _key(self, secret: str) -> str:
        return f"{self._prefix}ticket:{hashlib.sha256(secret.encode()).hexdigest()}"
