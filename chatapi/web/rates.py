"""What a process's requests have taken from their callers' rate limits: kept alive while they run, given back
when they end.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from redis.exceptions import RedisError

from accounts.authentication import Caller
from accounts.errors import RateLimited
from accounts.limits import Counts, Limit, Standing
from accounts.rate_limits import RateLimits, Taken
from chatapi.delta_log import StreamUnavailable
from chatapi.delta_stream import RUN_TTL_MS
from usage.books import reports
from usage.errors import DatabaseUnavailable

log = logging.getLogger(__name__)

RENEW_S = 5.0
ASK_BOOKS_S = (0.5, 1.0, 2.0, *[5.0] * (RUN_TTL_MS // 5_000))
"""Waits between questions for the end of a generation whose end this process did not see: as long as any may
run.
"""

REMEMBERED_S = 1.0
"""How long a process refuses by what it remembers of a limit of requests, without asking Redis again."""
MOST_REMEMBERED = 10_000

EndOf = Callable[[UUID], Awaitable[reports.End | None]]


class _Full(NamedTuple):
    """A limit of requests that had no room."""

    standings: Sequence[Standing]
    room_at: float
    forget_at: float
    """By `time.monotonic`, as is the moment above; not later than that."""


class Rates:
    """The requests of this process that hold something of a limit."""

    def __init__(self, limits: RateLimits, end_of: EndOf) -> None:
        """`end_of` asks the books how a generation has ended."""
        self._limits = limits
        self._end_of = end_of
        self._running: dict[UUID, Taken] = {}
        self._left: set[UUID] = set()
        """Of them: those whose clients have gone. They may have ended, and their worker have given back."""
        self._undoing: set[asyncio.Task[None]] = set()
        self._full: dict[Limit, _Full] = {}

    def check(self, caller: Caller) -> None:
        """Raise `RateLimited` if a limit of requests was full a moment ago, and still is; asks nobody."""
        now = time.monotonic()
        for limit in caller.rate_limits:
            full = self._full.get(limit)
            if full is None:
                continue
            if now >= full.forget_at:
                del self._full[limit]
            else:
                raise RateLimited(limit, full.standings, max(1, round((full.room_at - now) * 1_000)))

    async def look(self, caller: Caller) -> None:
        """Raise `RateLimited` unless there is room for one more request; takes nothing. Raises
        `StreamUnavailable`, too.
        """
        try:
            await self._limits.look(caller.rate_limits)
        except RateLimited as error:
            self._remember(error)
            raise
        except (RedisError, OSError) as error:
            raise StreamUnavailable(str(error)) from error

    async def take_refused(self, caller: Caller, generation_id: UUID) -> None:
        """Count a request that was refused before it could take anything, as far as there is room."""
        try:
            await self._limits.take_refused(caller.rate_limits, generation_id)
        except RateLimited as error:
            self._remember(error)
        except (RedisError, OSError) as error:
            log.warning("a refused request is not counted: %r", error)

    def _remember(self, error: RateLimited) -> None:
        """Waits are told by Redis, and never by more than what is left of them: whoever waits as long as told
        gets in.
        """
        limit, wait_ms = error.limit, error.retry_after_ms
        if limit.counts is not Counts.REQUESTS or limit.model or wait_ms is None:
            return
        if len(self._full) >= MOST_REMEMBERED:
            self._full.clear()
        now, wait_s = time.monotonic(), wait_ms / 1_000
        self._full[limit] = _Full(error.standings, now + wait_s, now + min(wait_s, REMEMBERED_S))

    async def take(self, caller: Caller, generation_id: UUID, *, model: str, tokens: int) -> Taken:
        """Take from every limit that applies, or from none; raises `RateLimited` or `StreamUnavailable`."""
        known = caller.rate_limits
        taking = asyncio.ensure_future(self._limits.take(known, generation_id, model=model, tokens=tokens))
        try:
            taken = await asyncio.shield(taking)
        except RateLimited as error:
            self._remember(error)
            raise
        except (asyncio.CancelledError, RedisError, OSError) as error:
            # Nothing runs, and nobody knows whether it is taken: a Redis that is frozen takes it when it goes
            # on.
            self._undo(taking, self._limits.asked(known, generation_id, model=model))
            if isinstance(error, asyncio.CancelledError):
                raise
            raise StreamUnavailable(str(error)) from error
        if taken.receipt:
            self._running[generation_id] = taken
        return taken

    async def give_back(self, taken: Taken, used_tokens: int | None) -> None:
        """Correct what the request took to what it used, and free its place; without a number, when the books
        know it.
        """
        if taken.id not in self._running:
            return
        self._left.add(taken.id)
        try:
            used = await self._used(taken.id) if used_tokens is None else used_tokens
        except (
            asyncio.CancelledError
        ):  # this process ends, and what it took may run on: its worker keeps the place, and gives back
            self._forget(taken)
            raise
        except Exception:  # whatever went wrong with the books: what is over must not keep its place
            await self._free(taken, None)
            raise
        await self._free(taken, used)

    async def _free(self, taken: Taken, used_tokens: int | None) -> None:
        self._forget(taken)  # first, so that its place is not renewed meanwhile
        await self._limits.give_back_patiently(taken, used_tokens)

    def _forget(self, taken: Taken) -> None:
        self._running.pop(taken.id, None)
        self._left.discard(taken.id)

    def _undo(self, taking: "asyncio.Future[Taken]", asked: Taken) -> None:
        undoing = asyncio.create_task(self._give_all_back(taking, asked))
        self._undoing.add(undoing)
        undoing.add_done_callback(self._undoing.discard)

    async def _give_all_back(self, taking: "asyncio.Future[Taken]", asked: Taken) -> None:
        try:
            await taking
        except RateLimited:
            return
        except (RedisError, OSError) as error:
            log.warning("undoing what %s may have taken: %r", asked.id.hex, error)
        await self._limits.undo_patiently(asked)

    async def renew(self) -> None:
        """Keep the places of what runs, for ever."""
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                await self._renew()
            except (RedisError, OSError) as error:
                log.warning("renewing rate limits: %r", error)

    async def _renew(self) -> None:
        await self._limits.renew(
            [taken for taken in self._running.values() if taken.id not in self._left], is_certain=True
        )
        await self._limits.renew([self._running[each] for each in self._left])

    async def _used(self, generation_id: UUID) -> int | None:
        """What the books say once it has ended; None if it never does."""
        for wait_s in ASK_BOOKS_S:
            try:
                end = await self._end_of(generation_id)
            except DatabaseUnavailable:
                end = None
            if end is not None:
                return end.tokens.prompt_tokens + end.tokens.completion_tokens
            await asyncio.sleep(wait_s)
        return None
