"""A client's view of one generation: fed with its deltas, and read from its log where some are missing."""

import asyncio
from collections.abc import Awaitable
from itertools import accumulate
from typing import ClassVar, Protocol, TypeVar
from uuid import UUID

import msgspec

from accounts import loop_clock
from chatapi.delta_stream import DeltaStream, Frame, Rest, StreamLost, StreamUnavailable, in_time
from chatapi.fair_turns import FairTurns
from chatapi.wire import deltas
from chatapi.wire.deltas import AnyDelta

# How long a follower waits after the server has failed to answer.
RETRY_S = 0.05
# How long the server may take to answer after a failure.
PROBE_S = 1.0
# About how many deltas of a log are read at once.
PAGE_DELTAS = 128
# The most entries of a log that are read at once.
PAGE_ENTRIES = 64
PART_FRAMES = 64
# The bytes of a backlog that are decoded at once. They are few, so that other streams have their turn, and so
# that a client that does not read holds few decoded deltas, which take ten times the bytes.
PART_BYTES = 2_048
# The usual size of a delta, by which the work for a batch is estimated before it is decoded.
DELTA_BYTES = 32
# What a frame takes in memory beside its batch.
FRAME_BYTES = 224
# The most bytes that wait here for a client that does not read. Beyond this, it is served from the log.
MOST_WAITING_BYTES = 32 << 10

Answer = TypeVar("Answer")


class Source(Protocol):
    """Feeds the followers of one server of streams (`Inbox`)."""

    stream: DeltaStream
    turns: FairTurns
    tick_s: float
    """The time without deltas after which it wakes a follower."""

    def check(self, follower: "Follower") -> None:
        """Raise `StreamLost` when the server has been out of reach for too long."""

    def feed_from_log(self, follower: "Follower") -> None:
        """Feed a follower that has read its log to the end with what is written behind `read_up_to`."""

    def stop_feeding(self, follower: "Follower") -> None:
        """End what `feed_from_log` has begun."""


class Follower:
    """A client's view of one generation: every delta once, in order; a gap only before a failure."""

    LOST_AFTER_S: ClassVar[float] = 4.0
    """How long the server may fail to answer before the stream ends."""

    def __init__(self, generation_id: UUID, organization_id: int, source: Source, *, is_owner: bool) -> None:
        """`is_owner`: its client has sent the request, and the source feeds it from the first delta on. Any
        other follower begins with the log.
        """
        self.id = generation_id
        self.organization_id = organization_id
        self.is_owner = is_owner
        """Whether this client sent the request: if its stream ends early, no other one waits for the rest."""
        self.seq = 0
        """The number of the last delta handed out."""
        self.read_up_to = b""
        """The name of the last log entry handed out."""
        self.began_at = loop_clock.monotonic()
        self.tick_s = source.tick_s
        """The time without deltas after which `next` returns."""
        self._source = source
        self._reads_log = not is_owner
        self._page_entries = 1
        self._failing_since: float | None = None
        self._arrived: list[Frame] = []
        # The bytes of all waiting frames but the first, which is usually the only one.
        self._waiting_bytes = 0
        self._waiter: asyncio.Future[None] | None = None

    def feed(self, frame: Frame) -> None:
        if self._reads_log:
            return  # the frame is in the log
        if not self._arrived:
            self._arrived.append(frame)
            self.wake()
            return
        self._waiting_bytes += FRAME_BYTES + len(frame.batch)
        if self._waiting_bytes > MOST_WAITING_BYTES:
            self._arrived.clear()
            self._waiting_bytes = 0
            if not self.is_owner:
                self._source.stop_feeding(self)
                self._reads_log = True
                return
            # The newest frame stays: its number shows that others are missing.
        self._arrived.append(frame)

    def wake(self) -> None:
        """Let `next` return early."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> list[AnyDelta]:
        """Return the deltas that have come since the last call, or a part of a backlog. Return nothing at the
        end of the log, after `tick_s` of silence, and when `wake` is called.

        Raises `StreamLost` when deltas are lost or the server stays away, `StreamUnavailable` when the
        next call may succeed.
        """
        if self._reads_log:
            page = await self._next_page()
            if not page:
                self._reads_log = False
                self._source.feed_from_log(self)
            return page
        if not self._arrived:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if not self._arrived:
            self._source.check(self)
            return []
        if self._arrived[0].first_seq > self.seq + 1:
            if missed := await self._next_page():
                return missed
            # A frame is in the log before it is fed.
            raise StreamLost("a part of the log is lost")
        part = self._take_part()
        units = len(part) + sum(len(frame.batch) for frame in part) // DELTA_BYTES
        if not self._source.turns.try_take(units):
            await self._source.turns.wait(self.organization_id, units)
        return self._decode(part)

    async def catch_up(self) -> list[AnyDelta]:
        """Return all that the log holds beyond `seq`. Raises as `next`, also if the log ends before `seq`."""
        missed, self.seq = await self._answer(self._source.stream.replay(self.id, self.seq))
        return missed

    def _take_part(self) -> list[Frame]:
        """Remove and return the first frames of the backlog."""
        backlog, self._arrived, self._waiting_bytes = self._arrived, [], 0
        if len(backlog) == 1:
            return backlog
        sizes = accumulate(len(frame.batch) for frame in backlog[:PART_FRAMES])
        count = max(1, sum(1 for size in sizes if size <= PART_BYTES))
        self._put_back(backlog[count:])
        return backlog[:count]

    def _put_back(self, frames: list[Frame]) -> None:
        self._arrived[:0] = frames
        self._waiting_bytes += sum(FRAME_BYTES + len(frame.batch) for frame in frames)

    def _decode(self, part: list[Frame]) -> list[AnyDelta]:
        """Return the new deltas of these frames up to a gap, and put back the frames behind it."""
        found: list[AnyDelta] = []
        for number, frame in enumerate(part):
            if frame.first_seq > self.seq + 1:
                self._put_back(part[number:])
                break
            try:
                fresh = deltas.decode(frame.batch)[self.seq + 1 - frame.first_seq :]
            except msgspec.DecodeError as error:
                raise StreamLost(f"a frame can't be read: {error}") from error
            self.seq += len(fresh)
            self.read_up_to = frame.name
            found += fresh
        return found

    async def _next_page(self) -> list[AnyDelta]:
        """Return the next deltas of the log; nothing at its end."""
        found, last_seq = Rest([], self.seq)
        before = None
        while not found and self.read_up_to != before:  # an entry may hold nothing new
            before = self.read_up_to
            self.read_up_to, (found, last_seq) = await self._answer(
                self._source.stream.tail(self.id, before, self.seq, most_entries=self._page_entries)
            )
        await self._source.turns.take(self.organization_id, 1 + len(found))
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
            # Not `retry`: the caller has a turn after each failure, and ends the stream if the process ends.
            await asyncio.sleep(RETRY_S)
            raise
        self._failing_since = None
        return answer
