"""The rate-limit reservations of a web process: renewed while requests run, released when they end."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple
from uuid import UUID

from redis.exceptions import RedisError

from accounts.authentication import Caller
from accounts.errors import RateLimited
from accounts.limits import NOTHING_USED, Amounts, Counts, Limit, LimitStatus
from accounts.rate_limits import RateLimits, Reservation
from chatapi.concurrency import repeat
from chatapi.delta_stream import RUN_TTL_MS
from chatapi.web.cancellations import InBackground
from usage.books import reports
from usage.errors import DatabaseUnavailable

log = logging.getLogger(__name__)

RENEW_S = 5.0
# Seconds between reads of the books for the end of a generation that this process did not see. Their sum is
# longer than any generation may run.
ASK_BOOKS_S = (0.5, 1.0, 2.0, *[5.0] * (RUN_TTL_MS // 5_000))

# How long a process refuses by a remembered limit of requests, without asking Redis again.
REMEMBERED_S = 1.0
MOST_REMEMBERED = 10_000

EndOf = Callable[[UUID], Awaitable[reports.End | None]]


def used_amounts(taken: Amounts, prompt_tokens: int, completion_tokens: int) -> Amounts:
    """Return the part of the reserved amounts that a request with this usage has used."""
    return taken._replace(tokens=prompt_tokens + completion_tokens)


class _Full(NamedTuple):
    """A limit of requests that had no room. Times are by `time.monotonic`."""

    statuses: Sequence[LimitStatus]
    room_at: float
    forget_at: float
    """The time after which Redis is asked again: `room_at`, but at most `REMEMBERED_S` after the refusal."""


class Rates:
    """The reservations of this process's requests, and the limits of requests that were full a moment ago."""

    def __init__(self, limits: RateLimits, end_of: EndOf, in_background: InBackground) -> None:
        """`end_of` asks the books how a generation has ended."""
        self._limits = limits
        self._end_of = end_of
        self._in_background = in_background
        self._running: dict[UUID, Reservation] = {}
        self._full: dict[Limit, _Full] = {}

    def check(self, caller: Caller) -> None:
        """Raise `RateLimited` if this process remembers that a limit of requests is full."""
        now = time.monotonic()
        for limit in caller.rate_limits:
            full = self._full.get(limit)
            if full is None:
                continue
            if now < full.forget_at:
                raise RateLimited(limit, full.statuses, max(1, round((full.room_at - now) * 1_000)))
            del self._full[limit]

    async def look(self, caller: Caller) -> None:
        """Raise `RateLimited` if there is no room for one more request; take nothing. Raises `RedisError`."""
        try:
            await self._limits.look(caller.rate_limits)
        except RateLimited as error:
            self._remember(error)
            raise

    async def take_refused(self, caller: Caller, generation_id: UUID) -> None:
        """Count a request that was refused before it could take anything, as far as there is room."""
        try:
            await self._limits.take_refused(caller.rate_limits, generation_id)
        except RateLimited as error:
            self._remember(error)
        except RedisError as error:
            log.warning("a refused request is not counted: %r", error)

    def _remember(self, error: RateLimited) -> None:
        limit, wait_ms = error.limit, error.retry_after_ms
        # `check` runs before the body is read, and so knows no model and no end user.
        if limit.counts is not Counts.REQUESTS or limit.model or limit.name or wait_ms is None:
            return
        # Forgetting is cheap: the next requests ask Redis.
        if len(self._full) >= MOST_REMEMBERED:
            self._full.clear()
        now, wait_s = time.monotonic(), wait_ms / 1_000
        # Not for longer than the wait: a client that waits for its `Retry-After` gets in.
        self._full[limit] = _Full(error.statuses, now + wait_s, now + min(wait_s, REMEMBERED_S))

    async def take(
        self,
        caller: Caller,
        generation_id: UUID,
        *,
        model: str,
        amounts: Amounts,
        more: Sequence[Limit] = (),
        fallbacks: Collection[str] = (),
    ) -> Reservation:
        """Take from every limit that applies, `more` among them, or from none; raises `RateLimited` or
        `RedisError`.

        If Redis took the tokens but its reply was lost, they stay taken until they leak out; the lease
        expires.
        """
        limits = (*caller.rate_limits, *more)
        if not limits:
            return Reservation(generation_id)
        # Shielded: a script that was sent takes its amounts anyway, and its answer says what to roll back.
        taking = asyncio.ensure_future(
            self._limits.take(limits, generation_id, model=model, amounts=amounts, fallbacks=fallbacks)
        )
        try:
            reservation = await asyncio.shield(taking)
        except asyncio.CancelledError:
            self._in_background(self._roll_back(taking))
            raise
        except RateLimited as error:
            self._remember(error)
            raise
        if not reservation.is_empty:
            self._running[generation_id] = reservation
        return reservation

    async def _roll_back(self, taking: "asyncio.Future[Reservation]") -> None:
        try:
            reservation = await taking
        except (RateLimited, RedisError):
            return
        await self._limits.release(reservation, NOTHING_USED)

    async def release(self, reservation: Reservation, used: Amounts | None) -> None:
        """Free the request's leases and give back what it did not use. If `used` is None, wait until the
        books know the usage and the model.
        """
        if reservation.id not in self._running:
            return
        model = None
        try:
            if used is None and (end := await self._end(reservation.id)) is not None:
                tokens = end.tokens
                used = used_amounts(reservation.taken, tokens.prompt_tokens, tokens.completion_tokens)
                model = end.model
        finally:  # first, so that it is not renewed meanwhile; if the books fail, its leases expire
            self._running.pop(reservation.id, None)
        await self._limits.release(reservation, used, model)

    async def renew(self) -> None:
        """Renew the leases of all that runs, for ever."""
        await repeat(RENEW_S, "rate limits are not renewed", self._renew_all, expected=(RedisError,))

    async def _renew_all(self) -> None:
        await self._limits.renew(self._running.values())

    async def _end(self, generation_id: UUID) -> reports.End | None:
        """Return how a generation ended, once it has; None if it never does."""
        # Not `retry`: an end that has not come yet is no error.
        for wait_s in ASK_BOOKS_S:
            try:
                end = await self._end_of(generation_id)
            except DatabaseUnavailable:
                end = None
            if end is not None:
                return end
            await asyncio.sleep(wait_s)
        return None
