"""A client's view of one generation, read from the generation's log."""

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import ClassVar, Self, TypeVar
from uuid import UUID

from accounts import loop_clock
from chatapi.delta_stream import DeltaStream, Rest, StreamLost, StreamUnavailable, in_time
from chatapi.fair_turns import FairTurns
from chatapi.wire.deltas import AnyDelta

POLL_S = 0.05
# Added between two reads of a log for each log that the same organization follows: beyond 50, more logs cost
# no more than 50 do.
POLL_S_EACH = 0.001
# How long the server may take to answer when it has just failed to.
PROBE_S = 1.0
# About how many deltas of a log are read at once.
PAGE_DELTAS = 128
# The most entries of a log that are read at once.
PAGE_ENTRIES = 64

Answer = TypeVar("Answer")


class Follower:
    """A client's view of one generation: every delta once, in order, with a gap at most before a failure."""

    LOST_AFTER_S: ClassVar[float] = 4.0
    """How long the server may fail to answer before the stream ends."""
    is_owner: ClassVar[bool]
    """Whether its client has sent the request: if that stream ends early, nobody waits for the rest."""
    tick_s: float = POLL_S
    """The longest silence after which `next` returns."""

    def __init__(
        self, generation_id: UUID, organization_id: int, stream: DeltaStream, turns: FairTurns
    ) -> None:
        self.id = generation_id
        self.seq = 0
        """The number of the last delta handed out."""
        self._organization_id = organization_id
        self._stream = stream
        self._turns = turns
        # The name of the last log entry handed out.
        self._read_up_to = b""
        self._page_entries = 1
        self._failing_since: float | None = None

    async def next(self) -> list[AnyDelta]:
        """Return the deltas that have come since the last call, a part of them if they are many; nothing
        after `tick_s` of silence.

        Raises `StreamLost` when deltas are lost or the server stays away, `StreamUnavailable` when the
        next call may succeed.
        """
        raise NotImplementedError

    def wake(self) -> None:
        """Let `next` return early."""

    async def catch_up(self) -> list[AnyDelta]:
        """Return all that the log holds beyond `seq`. Raises as `next`, also if the log ends before `seq`."""
        missed, self.seq = await self._answer(self._stream.replay(self.id, self.seq))
        return missed

    async def _next_page(self) -> list[AnyDelta]:
        """Return the next deltas of the log; nothing at its end."""
        found, last_seq = Rest([], self.seq)
        before = None
        while not found and self._read_up_to != before:  # an entry may hold nothing new
            before = self._read_up_to
            self._read_up_to, (found, last_seq) = await self._answer(
                self._stream.tail(self.id, before, self.seq, most_entries=self._page_entries)
            )
        await self._turns.take(self._organization_id, 1 + len(found))
        if found:
            # A page stays in memory while its client does not read: where entries are large, it has few.
            fitting_entries = self._page_entries * PAGE_DELTAS // len(found)
            self._page_entries = max(1, min(fitting_entries, 2 * self._page_entries, PAGE_ENTRIES))
        self.seq = last_seq
        return found

    async def _answer(self, reading: Awaitable[Answer]) -> Answer:
        """Return what the server answers. Raises `StreamUnavailable`, and after `LOST_AFTER_S` of
        failures `StreamLost`.
        """
        began = loop_clock.monotonic()
        try:
            async with in_time(None if self._failing_since is None else PROBE_S):
                answer = await reading
        except StreamUnavailable as error:
            if self._failing_since is None:
                self._failing_since = began
            if loop_clock.monotonic() - self._failing_since > self.LOST_AFTER_S:
                raise StreamLost(str(error)) from error
            await asyncio.sleep(POLL_S)
            raise
        self._failing_since = None
        return answer


class LogFollower(Follower):
    """Polls the log: a blocked read would hold a connection for each of the few clients that resume.

    Use it as a context manager.
    """

    is_owner = False

    def __init__(
        self,
        generation_id: UUID,
        organization_id: int,
        stream: DeltaStream,
        turns: FairTurns,
        log_readers: Counter[int],
    ) -> None:
        """`log_readers` counts the logs that are followed for each organization."""
        super().__init__(generation_id, organization_id, stream, turns)
        self._log_readers = log_readers

    def __enter__(self) -> Self:
        self._log_readers[self._organization_id] += 1
        return self

    def __exit__(self, *error: object) -> None:
        self._log_readers[self._organization_id] -= 1

    async def next(self) -> list[AnyDelta]:
        """Return the next page of the log, or nothing. Raises as `Follower.next`."""
        found = await self._next_page()
        if not found:
            self.tick_s = max(POLL_S, self._log_readers[self._organization_id] * POLL_S_EACH)
            await asyncio.sleep(self.tick_s)
        return found
