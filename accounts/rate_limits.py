"""Rate limits: requests and tokens per minute and day, and concurrent requests, in Redis for all processes.

A request takes from every limit that applies to it or from none, in one script (`rate_limits.lua`) and by
Redis' clock. Rates are leaky buckets (GCRA): over any time t no more passes than the limit and its share of
t. A request reserves the most tokens that it may use and releases the rest at its end. Concurrent requests
hold leases, which their process renews; a lease that nobody renews expires.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast
from uuid import UUID

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from accounts import limits
from accounts.errors import RateLimited
from accounts.limits import NOTHING_USED, Amounts, Counts, Limit, LimitStatus
from accounts.redis_time_limit import in_time

log = logging.getLogger(__name__)

# How long a request counts as running after its process was last heard of.
RUNNING_LEASE_MS = 15_000
# Waits before attempts to release: a Redis that restarts is away for a moment.
RELEASE_AFTER_S = (0, 0.5, 1, 2, 5)
# The wait that a refusal by a concurrency limit names: nobody knows when another request will end.
RUNNING_RETRY_MS = 1_000

_SCRIPT = Path(__file__).with_suffix(".lua").read_text()
_NOBODY = UUID(int=0)

Operation = tuple[Any, ...]
Run = Callable[[Sequence[Operation]], Awaitable[Sequence[Any]]]
Ask = Callable[[Operation], Awaitable[Any]]


class Charge(NamedTuple):
    """What a request has taken from one limit, which gives back the part that is not used."""

    counts: Counts
    key: str
    most: int
    window_us: int
    mark: str
    """The state of the bucket at that time, as `rate_limits.lua` returned it."""
    amount: int
    model: str
    """The limit's model; blank for all models together."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a request has taken and can release."""

    id: UUID
    statuses: tuple[LimitStatus, ...] = ()
    charges: tuple[Charge, ...] = ()
    leases: tuple[str, ...] = ()
    """The Redis keys in which the request holds a lease."""
    taken: Amounts = NOTHING_USED

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
    """The limits of all callers. Without Redis nothing passes: methods raise `RedisError`."""

    def __init__(
        self, redis: Redis, prefix: str, *, lease_ms: int, share: Callable[[Run], Ask] = one_by_one
    ) -> None:
        """Prepare the script. A lease lasts `lease_ms`; `share` may send operations together."""
        # The keys of releases before GCRA began with `rate:`; a rolling restart must not mix them.
        self._prefix = f"{prefix}limit:"
        self._lease_ms = lease_ms
        self._script = redis.register_script(_SCRIPT)
        self._ask = share(self._run)

    async def take(
        self,
        known: Iterable[Limit],
        generation_id: UUID,
        *,
        model: str,
        amounts: Amounts,
        fallbacks: Collection[str] = (),
    ) -> Reservation:
        """Take one request, the amounts and a lease from each limit that applies to this model, or to others
        that may answer instead, or raise `RateLimited`. Without such a limit Redis is not asked.

        If Redis does not answer in time, or the caller is cancelled, it may have been taken all the same.
        """
        applying = [limit for limit in known if limit.model in {"", model, *fallbacks}]
        return await self._take(applying, generation_id, amounts)

    async def look(self, known: Iterable[Limit]) -> None:
        """Raise `RateLimited` unless the limits of requests for all models have room for one more."""
        await self._take(_for_requests(known), _NOBODY, NOTHING_USED, is_dry_run=True)

    async def take_refused(self, known: Iterable[Limit], generation_id: UUID) -> None:
        """Count a request that was refused before it could take anything, or raise `RateLimited`."""
        await self._take(_for_requests(known), generation_id, NOTHING_USED)

    async def used(self, known: Sequence[Limit]) -> dict[Limit, int]:
        """Return how much of each limit is used now; takes nothing."""
        # The script divides by the limit; of nothing, nothing is used.
        rates = [limit for limit in known if limit.counts is not Counts.RUNNING and limit.most]
        leases = [limit for limit in known if limit.counts is Counts.RUNNING]
        wanted = [self._wanted(limit, NOTHING_USED) for limit in rates]
        amounts, running = await self._ask(("use", wanted, [self._key(limit) for limit in leases]))
        return dict.fromkeys(known, 0) | dict(zip([*rates, *leases], [*amounts, *running], strict=True))

    async def _take(
        self, applying: Sequence[Limit], generation_id: UUID, amounts: Amounts, *, is_dry_run: bool = False
    ) -> Reservation:
        if not applying:
            return Reservation(generation_id)
        for limit in applying:
            # Decided here, because the script divides by the limit, and time never makes room in it.
            if limit.most == 0:
                raise RateLimited(limit, (LimitStatus(limit, 0, 0),), None)
        rates = [limit for limit in applying if limit.counts is not Counts.RUNNING]
        concurrency = [limit for limit in applying if limit.counts is Counts.RUNNING]
        wanted = [self._wanted(limit, amounts) for limit in rates]
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
            Charge(
                own.counts, want["key"], own.most, want["window"], mark.decode(), want["amount"], own.model
            )
            for own, want, (_, _, mark) in zip(rates, wanted, states, strict=True)
            if want["is_reserved"]
        )
        return Reservation(generation_id, statuses, charges, tuple(key for key, _ in leases), amounts)

    async def release(self, reservation: Reservation, used: Amounts | None, model: str | None = None) -> None:
        """End a request's leases and give back the amounts that it did not use; without `used`, all stays
        taken. An amount beyond the reservation is charged now.

        `model`: the one that answered, if there were others; their own limits get all back.
        To be called once. If Redis is away for longer than `RELEASE_AFTER_S`, the leases expire.
        """
        if reservation.is_empty:
            return
        charges = []
        for charge in reservation.charges:
            is_others = model is not None and charge.model not in {"", model}
            amounts = NOTHING_USED if is_others else used
            took = (charge.key, charge.most, charge.window_us, charge.mark, charge.amount)
            charges.append((*took, charge.amount if amounts is None else amounts.of(charge.counts)))
        operation = ("release", reservation.id.hex, reservation.leases, charges)
        # A loop of its own, because a timeout ends it and other errors of Redis do not.
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

    def _wanted(self, limit: Limit, amounts: Amounts) -> dict[str, Any]:
        counts_requests = limit.counts is Counts.REQUESTS
        return {
            "key": self._key(limit),
            "limit": limit.most,
            # The script computes in microseconds, as Redis' clock does.
            "window": limit.window_ms * 1_000,
            "amount": 1 if counts_requests else amounts.of(limit.counts),
            "is_reserved": not counts_requests,
            # A key that goes on while it is refused pays with its own requests, but never with those of its
            # project or organization.
            "counts_refused": counts_requests and limit.scope == "key",
        }

    def _key(self, limit: Limit) -> str:
        return self._prefix + limit.id


def _for_requests(known: Iterable[Limit]) -> list[Limit]:
    return [limit for limit in known if limit.counts is Counts.REQUESTS and not limit.model]
