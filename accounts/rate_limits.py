"""What each caller may take per minute, per day and at the same time: kept in Redis, for all processes
together.

A request takes from every limit that applies to it or from none, in one script (`rate_limits.lua`) and by
Redis' clock. Rates are leaky buckets: over any time t no more passes than the limit itself plus its share of
t. A request takes the most tokens that it may use and gives back what it did not; how many run at the same
time is known by leases, which end by themselves if their process does.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from accounts import limits, loop_clock
from accounts.errors import RateLimited
from accounts.limits import Counts, Limit, Standing

log = logging.getLogger(__name__)

LEASE_MS = 30_000
"""How long a request still counts as running when nobody says so any more: a web process may be late, and
live.
"""
RECEIPT_MS = 26 * 3_600_000
"""How long what a request has taken can be given back: longer than any may run."""
UNDONE_MS = 60_000
"""How long a request that was undone before it came can't take anything any more: longer than a network may
keep it.
"""
REPLY_TIMEOUT_S = 3.0
"""A Redis that takes longer is as good as none."""
GIVE_BACK_AFTER_S = (0, 0.5, 1, 2, 5)
"""Waits before attempts to give back: a Redis that starts again is not there for a moment, and what it kept
would stay taken.
"""
RUNNING_RETRY_MS = 1_000
"""When to come back where only the end of another request makes room: nobody knows when that is."""

_SCRIPT = Path(__file__).with_suffix(".lua").read_text()

Operation = tuple[Any, ...]
Run = Callable[[Sequence[Operation]], Awaitable[Sequence[Any]]]
Ask = Callable[[Operation], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Taken:
    """What a request has taken, and holds until it is given back."""

    id: UUID
    standings: tuple[Standing, ...] = ()
    running: tuple[str, ...] = ()
    """The keys in which it holds a lease."""
    receipt: str = ""
    """The key of what it has to give back; blank where that is nothing."""

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The `x-ratelimit-*` headers of its answer; none where no limit applies."""
        return limits.headers(self.standings)


def one_by_one(run: Run) -> Ask:
    """A round trip for each operation."""

    async def ask(operation: Operation) -> Any:
        (reply,) = await run([operation])
        return reply

    return ask


class RateLimits:
    """The limits of all callers; everything raises `RedisError` when Redis is away, and then nothing may
    pass.
    """

    def __init__(
        self, redis: Redis, prefix: str, *, lease_ms: int, share: Callable[[Run], Ask] = one_by_one
    ) -> None:
        """`lease_ms`: how long a request counts as running if nobody renews it; `share` may send operations
        together.
        """
        self._prefix = f"{prefix}rate:"
        self._receipts = f"{self._prefix}taken:"
        self._lease_ms = lease_ms
        self._script = redis.register_script(_SCRIPT)
        self._ask = share(self._run)

    async def take(self, known: Iterable[Limit], generation_id: UUID, *, model: str, tokens: int) -> Taken:
        """Take one request, that many tokens and a place among the running from each limit for this model, or
        raise `RateLimited`.

        Who is cancelled here may have taken it all the same. Where no limit applies, nobody is asked.
        """
        applying = _applying(known, model)
        asked = self.asked(applying, generation_id, model=model)
        if not applying:
            return asked
        _refuse_what_is_shut(applying)
        rates = [limit for limit in applying if limit.counts is not Counts.RUNNING]
        places = [limit for limit in applying if limit.counts is Counts.RUNNING]
        wanted = [self._wanted(limit, tokens) for limit in rates]
        slots = [(self._key(limit), limit.most) for limit in places]
        operation = (
            "take",
            generation_id.hex,
            self._lease_ms,
            tokens,
            wanted,
            slots,
            asked.receipt,
            RECEIPT_MS,
        )
        refusing, wait_ms, states = await self._ask(operation)
        standings = tuple(Standing(limit, *state) for limit, state in zip(rates, states, strict=True))
        if refusing:
            is_place = refusing > len(rates)
            raise RateLimited(
                [*rates, *places][refusing - 1],
                standings,
                max(wait_ms, RUNNING_RETRY_MS) if is_place else wait_ms,
            )
        return replace(asked, standings=standings)

    async def look(self, known: Iterable[Limit]) -> None:
        """Raise `RateLimited` unless the limits of requests that apply to every model have room for one more;
        takes nothing.
        """
        limits_of_requests = _of_requests(known)
        _refuse_what_is_shut(limits_of_requests)
        if limits_of_requests:
            wanted = [self._wanted(limit, 0) for limit in limits_of_requests]
            refusing, wait_ms, states = await self._ask(("look", wanted))
            if refusing:
                standings = tuple(
                    Standing(limit, *state) for limit, state in zip(limits_of_requests, states, strict=True)
                )
                raise RateLimited(limits_of_requests[refusing - 1], standings, wait_ms)

    async def take_refused(self, known: Iterable[Limit], generation_id: UUID) -> None:
        """Count a request that was refused before it could take anything; raises `RateLimited` where there is
        no room.
        """
        await self.take(_of_requests(known), generation_id, model="", tokens=0)

    def asked(self, known: Iterable[Limit], generation_id: UUID, *, model: str) -> Taken:
        """What `take` takes if it does: to be undone by whom its answer has not reached."""
        applying = _applying(known, model)
        running = tuple(self._key(limit) for limit in applying if limit.counts is Counts.RUNNING)
        gives_back = running or any(limit.counts is Counts.TOKENS for limit in applying)
        return Taken(
            generation_id, running=running, receipt=self._receipts + generation_id.hex if gives_back else ""
        )

    def on_receipt(self, generation_id: UUID) -> Taken:
        """What a request has taken that nobody knows more of than its id."""
        return Taken(generation_id, receipt=self._receipts + generation_id.hex)

    async def give_back(self, taken: Taken, used_tokens: int | None) -> None:
        """Its request has ended: free its place, and correct what it took to what it used; None leaves that
        as it is.

        Tokens that it used beyond what it took are charged now. Requests are not given back. To say it twice
        changes nothing, nor to say it of what was never taken.
        """
        if taken.receipt:
            used = -1 if used_tokens is None else used_tokens
            await self._ask(("give_back", taken.id.hex, used, taken.running, taken.receipt))

    async def give_back_patiently(self, taken: Taken, used_tokens: int | None) -> None:
        """`give_back`, also to a Redis that is away for some seconds; one that is away for longer is not
        told, and a log line says so.
        """
        await _patiently(taken, lambda: self.give_back(taken, used_tokens))

    async def undo_patiently(self, asked: Taken) -> None:
        """Give all back of a request whose `take` was not answered, and take nothing for it if it comes to
        Redis only later.
        """
        operation = ("undo", asked.id.hex, asked.running, asked.receipt, UNDONE_MS)
        if asked.receipt:
            await _patiently(asked, lambda: self._ask(operation))

    async def renew(self, running: Iterable[Taken], *, is_certain: bool = False) -> None:
        """Say that these still run; to be called a few times in each `lease_ms`, with all of a process's
        requests at once.

        Those that have given back are left out; where it `is_certain` that they run, not even a Redis that
        has lost its data makes them lose their places.
        """
        members: dict[str, list[str]] = {}
        for taken in running:
            for key in taken.running:
                members.setdefault(key, []).append(taken.id.hex)
        if members:
            await self._ask(("renew", self._lease_ms, members, self._receipts, is_certain))

    async def _run(self, operations: Sequence[Operation]) -> Sequence[Any]:
        try:
            async with loop_clock.timeout(REPLY_TIMEOUT_S):
                return cast(Sequence[Any], await self._script(args=[msgspec.msgpack.encode(operations)]))
        except TimeoutError as error:
            raise RedisTimeoutError("Redis does not answer") from error

    def _wanted(self, limit: Limit, tokens: int) -> tuple[str, int, int, int, bool, bool]:
        """Only tokens go on the receipt: a request is never given back. Last: whether requests that other
        limits refuse count here.
        """
        counts_tokens = limit.counts is Counts.TOKENS
        amount = tokens if counts_tokens else 1
        counts_refused = not counts_tokens and limit.scope == "key"
        return self._key(limit), limit.most, limit.window_ms * 1_000, amount, counts_tokens, counts_refused

    def _key(self, limit: Limit) -> str:
        return self._prefix + limit.id


def _applying(known: Iterable[Limit], model: str) -> list[Limit]:
    return [limit for limit in known if limit.model in {"", model}]


def _of_requests(known: Iterable[Limit]) -> list[Limit]:
    return [limit for limit in known if limit.counts is Counts.REQUESTS and not limit.model]


async def _patiently(taken: Taken, ask: Callable[[], Awaitable[Any]]) -> None:
    failure: Exception | None = None
    for wait_s in GIVE_BACK_AFTER_S:
        await asyncio.sleep(wait_s)
        try:
            await ask()
            return
        except (RedisError, OSError) as error:
            failure = error
    log.warning("what %s did not use is not given back: %r", taken.id.hex, failure)


def _refuse_what_is_shut(applying: Sequence[Limit]) -> None:
    """A limit of 0 lets nothing pass, ever."""
    for limit in applying:
        if limit.most == 0:
            raise RateLimited(limit, (Standing(limit, 0, 0),), None)
