"""Rate limits: requests and tokens per minute and day, and concurrent requests, in Redis for all processes.

A request takes from every limit that applies to it or from none, in one script (`rate_limits.lua`) and by
Redis' clock. Rates are leaky buckets (GCRA): over any time t no more passes than the limit and its share of
t. A request reserves the most tokens that it may use and releases the rest at its end. Concurrent requests
hold leases, which their process renews; a lease that nobody renews expires.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from accounts import limits
from accounts.errors import RateLimited
from accounts.limits import Counts, Limit, LimitStatus
from accounts.redis_time_limit import in_time

log = logging.getLogger(__name__)

# How long a request counts as running after its process was last heard of.
LEASE_MS = 15_000
# Waits before attempts to release: a Redis that restarts is away for a moment.
RELEASE_AFTER_S = (0, 0.5, 1, 2, 5)
# The wait that a concurrency limit tells: it is unknown when another request will end.
RUNNING_RETRY_MS = 1_000

_SCRIPT = Path(__file__).with_suffix(".lua").read_text()
_NOBODY = UUID(int=0)

Operation = tuple[Any, ...]
Run = Callable[[Sequence[Operation]], Awaitable[Sequence[Any]]]
Ask = Callable[[Operation], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a request has taken and can release."""

    id: UUID
    tokens: int = 0
    statuses: tuple[LimitStatus, ...] = ()
    charges: tuple[tuple[str, int, int, str], ...] = ()
    """Of each limit of tokens: key, limit, window in µs, and the script's mark."""
    leases: tuple[str, ...] = ()
    """The keys in which it holds a lease."""

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to release: requests are never given back."""
        return not self.charges and not self.leases

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the `x-ratelimit-*` headers; none if no limit applies."""
        return limits.headers(self.statuses)

    def tightest(self) -> list[LimitStatus]:
        """Return the limits that headers describe."""
        return limits.tightest(self.statuses)


def one_by_one(run: Run) -> Ask:
    """Make a round trip for each operation."""

    async def ask(operation: Operation) -> Any:
        (reply,) = await run([operation])
        return reply

    return ask


class RateLimits:
    """The limits of all callers; without Redis, which `RedisError` tells, nothing may pass."""

    def __init__(
        self, redis: Redis, prefix: str, *, lease_ms: int, share: Callable[[Run], Ask] = one_by_one
    ) -> None:
        """Prepare the script. `lease_ms` is how long a lease lasts unless it is renewed; `share` may send
        operations together.
        """
        # The keys of releases before GCRA began with `rate:`; a rolling restart must not mix them.
        self._prefix = f"{prefix}limit:"
        self._lease_ms = lease_ms
        self._script = redis.register_script(_SCRIPT)
        self._ask = share(self._run)

    async def take(
        self, known: Iterable[Limit], generation_id: UUID, *, model: str, tokens: int
    ) -> Reservation:
        """Take one request, the tokens and a lease from each limit that applies to this model, or raise
        `RateLimited`. Without such a limit Redis is not asked.

        If Redis does not answer in time, or the caller is cancelled, it may have been taken all the same.
        """
        applying = [limit for limit in known if limit.model in {"", model}]
        return await self._take(applying, generation_id, tokens)

    async def look(self, known: Iterable[Limit]) -> None:
        """Raise `RateLimited` unless the limits of requests for all models have room for one more."""
        await self._take(_for_requests(known), _NOBODY, tokens=0, is_dry_run=True)

    async def take_refused(self, known: Iterable[Limit], generation_id: UUID) -> None:
        """Count a request that was refused before it could take anything, or raise `RateLimited`."""
        await self._take(_for_requests(known), generation_id, tokens=0)

    async def _take(
        self, applying: Sequence[Limit], generation_id: UUID, tokens: int, *, is_dry_run: bool = False
    ) -> Reservation:
        if not applying:
            return Reservation(generation_id)
        for limit in applying:
            # Decided here, because the script divides by the limit, and time never makes room in it.
            if limit.most == 0:
                raise RateLimited(limit, (LimitStatus(limit, 0, 0),), None)
        rates = [limit for limit in applying if limit.counts is not Counts.RUNNING]
        concurrency = [limit for limit in applying if limit.counts is Counts.RUNNING]
        wanted = [self._wanted(limit, tokens) for limit in rates]
        leases = [(self._key(limit), limit.most) for limit in concurrency]
        refusing, wait_ms, states = await self._ask(
            ("take", generation_id.hex, self._lease_ms, wanted, leases, is_dry_run)
        )
        statuses = tuple(
            LimitStatus(limit, remaining, reset_ms)
            for limit, (remaining, reset_ms, _) in zip(rates, states, strict=True)
        )
        if refusing:
            # The script counts the rates first, then the leases.
            if refusing > len(rates):
                wait_ms = max(wait_ms, RUNNING_RETRY_MS)
            raise RateLimited([*rates, *concurrency][refusing - 1], statuses, wait_ms)
        charges = tuple(
            (want["key"], want["limit"], want["window"], mark.decode())
            for want, (_, _, mark) in zip(wanted, states, strict=True)
            if want["is_reserved"]
        )
        return Reservation(generation_id, tokens, statuses, charges, tuple(key for key, _ in leases))

    async def release(self, reservation: Reservation, used_tokens: int | None) -> None:
        """End a request's leases and give back the tokens that it did not use; None: how many is unknown, and
        all stay taken. Tokens beyond the reservation are charged now.

        To be called once. A Redis that is away for longer than `RELEASE_AFTER_S` is not told.
        """
        if reservation.is_empty:
            return
        used = reservation.tokens if used_tokens is None else used_tokens
        operation = (
            "release",
            reservation.id.hex,
            reservation.leases,
            reservation.charges,
            reservation.tokens,
            used,
        )
        for wait_s in RELEASE_AFTER_S:
            await asyncio.sleep(wait_s)
            try:
                await self._ask(operation)
                return
            except RedisTimeoutError as error:
                failure: Exception = error
                break  # a frozen Redis has it, and releases when it goes on: twice would be too much
            except RedisError as error:
                failure = error
        log.warning("what %s did not use may stay taken: %s", reservation.id.hex, failure)

    async def renew(self, reservations: Iterable[Reservation]) -> None:
        """Renew the leases of a process's running requests; to be called a few times in each `lease_ms`.

        A Redis that has lost its data has them again.
        """
        leases: dict[str, list[str]] = {}
        for reservation in reservations:
            for key in reservation.leases:
                leases.setdefault(key, []).append(reservation.id.hex)
        if leases:
            await self._ask(("renew", self._lease_ms, leases))

    async def _run(self, operations: Sequence[Operation]) -> Sequence[Any]:
        async with in_time():
            return cast(Sequence[Any], await self._script(args=[msgspec.msgpack.encode(operations)]))

    def _wanted(self, limit: Limit, tokens: int) -> dict[str, Any]:
        counts_tokens = limit.counts is Counts.TOKENS
        return {
            "key": self._key(limit),
            "limit": limit.most,
            # The script computes in microseconds, as Redis' clock does.
            "window": limit.window_ms * 1_000,
            "amount": tokens if counts_tokens else 1,
            "is_reserved": counts_tokens,
            # A key that goes on while it is refused pays with its own requests, but never with those of its
            # project or organization.
            "counts_refused": not counts_tokens and limit.scope == "key",
        }

    def _key(self, limit: Limit) -> str:
        return self._prefix + limit.id


def _for_requests(known: Iterable[Limit]) -> list[Limit]:
    return [limit for limit in known if limit.counts is Counts.REQUESTS and not limit.model]
