"""Where a web process's deltas arrive: one reader for all its clients, and each client's view of its own
generation.
"""

import asyncio
import logging
from contextlib import suppress
from itertools import accumulate
from uuid import UUID

from redis.exceptions import RedisError

from accounts import loop_clock
from chatapi.concurrency import supervise
from chatapi.delta_log import StreamUnavailable
from chatapi.delta_stream import DeltaStream, Frame
from chatapi.fair_turns import FairTurns
from chatapi.presence import Presence
from chatapi.redis_client import REPLY_TIMEOUT_S
from chatapi.wire import deltas
from chatapi.wire.deltas import TERMINAL, AnyDelta

log = logging.getLogger(__name__)

PART_FRAMES = 64
PART_BYTES = 16_384
"""The most of a backlog that is decoded at once, and of a log's entries, so that other streams have their
turn in between.
"""
DELTA_BYTES = 32
"""The usual size of a delta: how much work a batch is can be estimated before it is decoded."""
MOST_WAITING_BYTES = 1 << 16
"""So much waits here for a client that does not read. The log holds it, too: beyond this, it is read from
there.
"""


class Follower:
    """One client's view of one generation: its deltas in order, without gap or duplicate."""

    def __init__(self, generation_id: UUID, stream: DeltaStream, turns: FairTurns, party: int) -> None:
        """`party`: the organization whose turn each batch takes."""
        self.id = generation_id
        self._turns = turns
        self._party = party
        self.began_at = loop_clock.monotonic()
        self.seq = 0
        """The last delta handed out."""
        self._stream = stream
        self._arrived: list[Frame] = []
        self._waiting_bytes = 0
        """Of all that has arrived but the first, which as a rule is all."""
        self._is_behind = False
        """What has arrived was too much, and comes from the log instead."""
        self._read_up_to = b""
        self._waiter: asyncio.Future[None] | None = None

    def feed(self, frame: Frame) -> None:
        """Take what the inbox received."""
        if self._arrived or self._is_behind:
            self._feed_more(frame)
        else:
            self._arrived.append(frame)
            self.wake()

    def _feed_more(self, frame: Frame) -> None:
        if self._is_behind:
            return
        self._arrived.append(frame)
        self._waiting_bytes += len(frame.batch)
        if self._waiting_bytes > MOST_WAITING_BYTES:
            self._fall_behind()

    def _fall_behind(self) -> None:
        self._is_behind = True
        self._arrived, self._waiting_bytes = [], 0

    def wake(self) -> None:
        """Let `next` return, with nothing if nothing is there."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> list[AnyDelta]:
        """The deltas that have come since, of a backlog its next part; empty when the inbox's tick passes in
        silence.

        Raises `RedisError` or `StreamUnavailable` when some are missing and can't be had; then none of those
        is handed out.
        """
        if self._is_behind and (missed := await self._from_log()):
            return missed
        if not self._arrived:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        seq, arrived, self._arrived, self._waiting_bytes = self.seq, self._arrived, [], 0
        found: list[AnyDelta] = []
        try:
            if arrived:
                arrived = self._part_of(arrived)
                units = len(arrived) + sum(len(frame.batch) for frame in arrived) // DELTA_BYTES
                if not self._turns.try_take(units):
                    await self._turns.wait(self._party, units)
            for frame in arrived:
                found += await self._in_order(frame.first_seq, deltas.decode(frame.batch))
                if found and isinstance(found[-1], TERMINAL):
                    break  # where deltas before a failure are lost, its own frame looks like one more gap
        except BaseException:
            # What is not handed out must not count as such: whoever asks the log for the rest would miss it.
            self.seq = seq
            self._put_back(arrived)
            raise
        return found

    def _part_of(self, backlog: list[Frame]) -> list[Frame]:
        """Return the first frames of the backlog, and put the others back."""
        if len(backlog) == 1:
            return backlog
        sizes = accumulate(len(frame.batch) for frame in backlog[:PART_FRAMES])
        count = max(1, sum(1 for size in sizes if size <= PART_BYTES))
        self._put_back(backlog[count:])
        return backlog[:count]

    def _put_back(self, frames: list[Frame]) -> None:
        self._arrived = frames + self._arrived
        self._waiting_bytes += sum(len(frame.batch) for frame in frames)

    async def _from_log(self) -> list[AnyDelta]:
        """The next part of what the log holds; nothing when all of it was handed out."""
        while self._is_behind:
            # What comes from now on is kept. If this reads the log's end, that is all that it may lack.
            self._is_behind, after = False, self._read_up_to
            try:
                await self._turns.take(self._party, PART_FRAMES)
                self._read_up_to, missed = await self._stream.tail(
                    self.id, after, self.seq, most_entries=PART_FRAMES
                )
            except BaseException:
                self._fall_behind()
                raise
            if self._read_up_to != after:
                self._fall_behind()
            if missed:
                self.seq += len(missed)
                return missed
        return []

    async def catch_up(self) -> list[AnyDelta]:
        """What the log holds beyond what was handed out: for a reader whose inbox has gone silent."""
        missed = await self._stream.replay(self.id, self.seq)
        self.seq += len(missed)
        return missed

    async def _in_order(self, first_seq: int, batch: list[AnyDelta]) -> list[AnyDelta]:
        if first_seq > self.seq + 1:
            return await self.catch_up()
        fresh = batch[self.seq + 1 - first_seq :]
        self.seq += len(fresh)
        return fresh


class Inbox:
    """The one reader of a web process: takes each tick's entry apart and hands the batches to their
    followers.
    """

    RETRY_S = 0.2
    PROBE_S = 1.0
    """How long Redis may take to answer when it has just failed to."""
    LOST_AFTER_S = 4.0

    def __init__(self, stream: DeltaStream, name: str, *, url: str, turns: FairTurns, tick_s: float) -> None:
        """`url` of the stream's Redis. `tick_s`: how often a follower that hears nothing returns; one timer
        for all, for each would cost more than its delta.
        """
        self.name = name
        self.tick_s = tick_s
        self.turns = turns
        self._stream = stream
        self._followers: dict[bytes, Follower] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._failing_s = 0.0
        """How long Redis has been failing to answer; 0 when it did answer last."""
        self._read_up_to = b"0"
        self._is_to_begin_anew = False
        """Redis may have lost the inbox, and the loop has not noticed yet."""
        self._loop = asyncio.get_running_loop()
        self._presence = Presence(url, stream.prefix, name, read_up_to=self._position, is_unknown=self._lost)

    def follow(self, generation_id: UUID, party: int) -> Follower:
        """Begin to follow for that organization; call before the generation is enqueued, and `leave` in the
        end.
        """
        follower = Follower(generation_id, self._stream, self.turns, party)
        self._followers[generation_id.hex.encode()] = follower
        return follower

    def leave(self, follower: Follower) -> None:
        """Stop following."""
        self._followers.pop(follower.id.hex.encode(), None)

    def check(self, follower: Follower) -> None:
        """Raise `StreamUnavailable` when Redis has been out of reach for some seconds, all of which this
        follower has waited.
        """
        # Who has come meanwhile got its request into a Redis that is back; that this reader hasn't noticed
        # yet must not end it.
        waited_s = loop_clock.monotonic() - follower.began_at
        if min(self._failing_s, waited_s) > self.LOST_AFTER_S:
            raise StreamUnavailable("Redis is out of reach")

    async def start(self) -> None:
        """Announce this process and begin to read; raises `RedisError` when Redis is not there."""
        await self._presence.start()
        self._tasks = [asyncio.create_task(supervise(loop)) for loop in (self._read, self._keep_time)]

    async def stop(self) -> None:
        """Stop reading."""
        self._presence.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self) -> None:
        while True:
            is_failing = self._failing_s > 0
            # After an error the first answer is to come at once: until then new requests are refused.
            block_ms, reply_s = (1, self.PROBE_S) if is_failing else (1_000, REPLY_TIMEOUT_S)
            began = loop_clock.monotonic()
            try:
                async with loop_clock.timeout(reply_s):
                    entries = await self._stream.read_inbox(
                        self.name, after=self._read_up_to, block_ms=block_ms
                    )
            except (RedisError, OSError, TimeoutError) as error:
                log.warning("inbox: %r", error)
                took_s = loop_clock.monotonic() - began
                self._failing_s += max(0.0, took_s - block_ms / 1_000) + self.RETRY_S
                await asyncio.sleep(self.RETRY_S)
                self.wake_all()
                continue
            self._failing_s = 0.0
            for self._read_up_to, frames in entries:
                self._dispatch(frames)

    def _dispatch(self, frames: list[Frame]) -> None:
        for frame in frames:
            follower = self._followers.get(frame.id)
            if follower is not None:
                follower.feed(frame)

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(self.tick_s)
            self.wake_all()

    def wake_all(self) -> None:
        """Let every follower's `next` return."""
        for follower in self._followers.values():
            follower.wake()

    # ---- called by the thread of `presence`

    def _position(self) -> bytes:
        """What was read last; nothing while that is another inbox's."""
        return b"" if self._is_to_begin_anew else self._read_up_to

    def _lost(self) -> None:
        self._is_to_begin_anew = True
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._begin_anew)

    def _begin_anew(self) -> None:
        """What comes now may have lower names, where the clock that makes them is another one. Nothing is
        handed out twice.
        """
        self._read_up_to, self._is_to_begin_anew = b"0", False
