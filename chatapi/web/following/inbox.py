"""The inbox of a web process: one reader on one server of streams for all its clients."""

import asyncio
import logging
from contextlib import suppress
from itertools import accumulate
from uuid import UUID

from accounts import loop_clock
from chatapi.concurrency import supervise
from chatapi.delta_stream import (
    DeltaStream,
    Frame,
    Presence,
    StreamLost,
    StreamUnavailable,
    in_time,
)
from chatapi.fair_turns import FairTurns
from chatapi.web.following.follower import PROBE_S, Follower
from chatapi.wire import deltas
from chatapi.wire.deltas import AnyDelta

log = logging.getLogger(__name__)

# How many followers a tick wakes in one turn of the loop: thousands would hold up the streams of others.
WOKEN_AT_ONCE = 128
PART_FRAMES = 64
# The most of a backlog that is decoded at once, so that other streams have their turn in between, and that a
# client that does not read has few deltas in memory: decoded, they take ten times the bytes.
PART_BYTES = 2_048
# The usual size of a delta: how much work a batch is can be estimated before it is decoded.
DELTA_BYTES = 32
# What a frame takes in memory beside its batch.
FRAME_BYTES = 224
# The most that waits here for a client that does not read. Beyond this, the log has it.
MOST_WAITING_BYTES = 32 << 10


class InboxFollower(Follower):
    """The follower of the client that sent the request: the inbox feeds it, and it reads the log only where
    frames are missing.
    """

    is_owner = True

    def __init__(self, generation_id: UUID, organization_id: int, inbox: "Inbox") -> None:
        super().__init__(generation_id, organization_id, inbox.stream, inbox.turns)
        self.began_at = loop_clock.monotonic()
        self.tick_s = inbox.tick_s
        self._inbox = inbox
        self._arrived: list[Frame] = []
        # Of all that has arrived but the first frame, which is usually the only one.
        self._waiting_bytes = 0
        self._waiter: asyncio.Future[None] | None = None

    def feed(self, frame: Frame) -> None:
        if not self._arrived:
            self._arrived.append(frame)
            self.wake()
            return
        self._waiting_bytes += FRAME_BYTES + len(frame.batch)
        if self._waiting_bytes > MOST_WAITING_BYTES:
            # The newest frame stays: its number shows that others are missing.
            self._arrived.clear()
            self._waiting_bytes = 0
        self._arrived.append(frame)

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> list[AnyDelta]:
        """Return the deltas that have come since the last call, of a backlog a part; nothing when the inbox
        ticks or `wake` is called. Raises as `Follower.next`.
        """
        if not self._arrived:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if not self._arrived:
            self._inbox.check(self)
            return []
        if self._arrived[0].first_seq > self.seq + 1:
            if missed := await self._next_page():
                return missed
            # A frame is in the log before it is in the inbox.
            raise StreamLost("a part of the log is lost")
        part = self._take_part()
        units = len(part) + sum(len(frame.batch) for frame in part) // DELTA_BYTES
        if not self._turns.try_take(units):
            await self._turns.wait(self._organization_id, units)
        found: list[AnyDelta] = []
        for number, frame in enumerate(part):
            if frame.first_seq > self.seq + 1:
                self._put_back(part[number:])
                break
            fresh = deltas.decode(frame.batch)[self.seq + 1 - frame.first_seq :]
            self.seq += len(fresh)
            self._read_up_to = frame.name
            found += fresh
        return found

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


class Inbox:
    """The one reader of a web process: takes each tick's entry apart and hands the batches to their
    followers.
    """

    RETRY_S = 0.2

    def __init__(self, stream: DeltaStream, name: str, *, turns: FairTurns, tick_s: float) -> None:
        """`tick_s`: the longest silence after which a follower's `next` returns; one timer serves all,
        because a timer for each would cost more than its delta.
        """
        self.name = name
        self.tick_s = tick_s
        self.turns = turns
        self.stream = stream
        self._followers: dict[bytes, InboxFollower] = {}
        self._tasks: list[asyncio.Task[None]] = []
        # How long the server has been failing to answer; 0 when it did answer last.
        self._failing_s = 0.0
        # Empty: the beginning.
        self._read_up_to = b""
        # The server may have lost the inbox; the loop reads it from its beginning as soon as it has noticed.
        self._must_start_again = False
        self._loop = asyncio.get_running_loop()
        self._presence: Presence | None = None

    @property
    def is_answering(self) -> bool:
        """Return whether the server has answered last, so that a new generation may begin there."""
        return bool(self._tasks) and not self._failing_s

    @property
    def open_count(self) -> int:
        """Return the number of clients that wait for deltas."""
        return len(self._followers)

    def follow(self, generation_id: UUID, organization_id: int) -> InboxFollower:
        """Begin to follow; call before the generation is enqueued, and `leave` in the end."""
        follower = InboxFollower(generation_id, organization_id, self)
        self._followers[generation_id.hex.encode()] = follower
        return follower

    def leave(self, follower: InboxFollower) -> None:
        self._followers.pop(follower.id.hex.encode(), None)

    def check(self, follower: InboxFollower) -> None:
        """Raise `StreamLost` when the server has been out of reach for `LOST_AFTER_S`, and the follower has
        waited all that time.
        """
        # A younger request was sent to the server after it came back, which this reader may not have noticed
        # yet.
        waited_s = loop_clock.monotonic() - follower.began_at
        if min(self._failing_s, waited_s) > follower.LOST_AFTER_S:
            raise StreamLost("the server of the stream is out of reach")

    async def start(self) -> None:
        """Announce this process and begin to read; raises `StreamUnavailable` when the server is away."""
        presence = self.stream.presence(self.name, read_up_to=self._position, is_unknown=self._lost)
        await presence.start()
        self._presence = presence
        self._tasks = [asyncio.create_task(supervise(loop)) for loop in (self._read, self._keep_time)]

    async def stop(self) -> None:
        if self._presence is not None:
            self._presence.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self) -> None:
        while True:
            is_failing = self._failing_s > 0
            # After an error the first answer is to come at once: until then new requests are refused.
            block_ms, reply_s = (1, PROBE_S) if is_failing else (1_000, None)
            began = loop_clock.monotonic()
            try:
                async with in_time(reply_s):
                    entries = await self.stream.read_inbox(
                        self.name, after=self._read_up_to, block_ms=block_ms
                    )
            except StreamUnavailable as error:
                log.warning("inbox: %r", error)
                took_s = loop_clock.monotonic() - began
                self._failing_s += max(0.0, took_s - block_ms / 1_000) + self.RETRY_S
                await asyncio.sleep(self.RETRY_S)
                self.wake_all()
                continue
            self._failing_s = 0.0
            for self._read_up_to, frames in entries:
                for frame in frames:
                    if follower := self._followers.get(frame.id):
                        follower.feed(frame)
            del entries[:]  # so that they are not in memory beside the next ones

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(self.tick_s)
            followers = list(self._followers.values())
            for start in range(0, len(followers), WOKEN_AT_ONCE):
                for follower in followers[start : start + WOKEN_AT_ONCE]:
                    follower.wake()
                await asyncio.sleep(0)  # others have their turn

    def wake_all(self) -> None:
        """Let every follower's `next` return."""
        for follower in self._followers.values():
            follower.wake()

    # ---- called by the thread of `presence`

    def _position(self) -> bytes:
        """Return the name of the entry that was read last; nothing if the inbox that had it is lost."""
        return b"" if self._must_start_again else self._read_up_to

    def _lost(self) -> None:
        self._must_start_again = True
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._start_again)

    def _start_again(self) -> None:
        # The clock of a server that has lost its data may be behind, so names may be lower now. Followers
        # drop what they have had.
        self._read_up_to, self._must_start_again = b"", False
