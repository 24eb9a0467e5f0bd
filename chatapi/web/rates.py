"""What a process's requests have taken from their callers' rate limits: kept alive while they run, given back when they end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from uuid import UUID

from redis.exceptions import RedisError

from accounts.authentication import Caller
from accounts.errors import RateLimited
from accounts.rate_limits import RateLimits, Taken
from chatapi.delta_log import StreamUnavailable
from chatapi.delta_stream import RUN_TTL_MS
from usage import reports
from usage.errors import DatabaseUnavailable

log = logging.getLogger(__name__)

RENEW_S = 5.0
ASK_BOOKS_S = (0.5, 1.0, 2.0, *[5.0] * (RUN_TTL_MS // 5_000))
"""Waits between questions for the end of a generation whose end this process did not see: as long as any may run."""

EndOf = Callable[[UUID], Awaitable[reports.End | None]]


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

    async def take(self, caller: Caller, generation_id: UUID, *, model: str, tokens: int) -> Taken:
        """Take from every limit that applies, or from none; raises `RateLimited` or `StreamUnavailable`."""
        known = caller.rate_limits
        taking = asyncio.ensure_future(self._limits.take(known, generation_id, model=model, tokens=tokens))
        try:
            taken = await asyncio.shield(taking)
        except (asyncio.CancelledError, RedisError, OSError) as error:
            # Nothing runs, and nobody knows whether it is taken: a Redis that is frozen takes it when it goes on.
            self._undo(taking, self._limits.asked(known, generation_id, model=model))
            if isinstance(error, asyncio.CancelledError):
                raise
            raise StreamUnavailable(str(error)) from error
        if taken.receipt:
            self._running[generation_id] = taken
        return taken

    async def give_back(self, taken: Taken, used_tokens: int | None) -> None:
        """Correct what the request took to what it used, and free its place; without a number, when the books know it."""
        if taken.id not in self._running:
            return
        self._left.add(taken.id)
        try:
            used = await self._used(taken.id) if used_tokens is None else used_tokens
        except asyncio.CancelledError:  # this process ends, and what it took may run on: its worker keeps the place, and gives back
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
        await self._limits.renew([taken for taken in self._running.values() if taken.id not in self._left], is_certain=True)
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
