"""The inbox of a web process: one reader on one server of streams for all its clients."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import UUID

from accounts import loop_clock
from chatapi.concurrency import Loop, supervise
from chatapi.delta_stream import (
    DeltaStream,
    Presence,
    StreamLost,
    StreamUnavailable,
    in_time,
)
from chatapi.fair_turns import FairTurns
from chatapi.web.following.follower import PROBE_S, Follower
from chatapi.web.following.log_feed import LogFeed

log = logging.getLogger(__name__)

# How many followers a tick wakes in one turn of the loop: thousands would hold up the streams of others.
WOKEN_AT_ONCE = 128


class Inbox:
    """The one reader of a web process: takes each tick's entry apart and hands the batches to their
    followers. Followers of other requests get theirs from the logs (`LogFeed`).
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
        self._followers: dict[bytes, Follower] = {}
        self._resuming: set[Follower] = set()
        self._log_feed = LogFeed(stream)
        self._tasks: list[asyncio.Task[None]] = []
        # How long the server has been failing to answer; 0 if it has answered the last read.
        self._failing_s = 0.0
        # Empty: the beginning.
        self._read_up_to = b""
        # Whether the server may have lost the inbox, and the event loop has yet to begin it again.
        self._must_start_again = False
        self._loop = asyncio.get_running_loop()
        self._presence: Presence | None = None

    @property
    def is_answering(self) -> bool:
        """Return whether the server has answered the last read, so that a new generation may begin there."""
        return self._presence is not None and not self._failing_s

    @property
    def open_count(self) -> int:
        """Return the number of clients that wait for deltas."""
        return len(self._followers)

    def follow(self, generation_id: UUID, organization_id: int) -> Follower:
        """Begin to follow; call before the generation is enqueued, and `leave` in the end."""
        follower = Follower(generation_id, organization_id, self, is_owner=True)
        self._followers[generation_id.hex.encode()] = follower
        return follower

    def leave(self, follower: Follower) -> None:
        self._followers.pop(follower.id.hex.encode(), None)

    @contextmanager
    def resuming(self, generation_id: UUID, organization_id: int) -> Iterator[Follower]:
        """Yield a follower for a client that comes back, or that another process has admitted."""
        follower = Follower(generation_id, organization_id, self, is_owner=False)
        self._resuming.add(follower)
        try:
            yield follower
        finally:
            self._resuming.discard(follower)
            self._log_feed.remove(follower)

    def feed_from_log(self, follower: Follower) -> None:
        self._log_feed.add(follower)

    def stop_feeding(self, follower: Follower) -> None:
        self._log_feed.remove(follower)

    def check(self, follower: Follower) -> None:
        """Raise `StreamLost` when the server has been out of reach for `LOST_AFTER_S`, and the follower has
        waited all that time.
        """
        # A follower that began later has reached the server since; this reader may not have noticed yet that
        # the server is back.
        waited_s = loop_clock.monotonic() - follower.began_at
        failing_s = self._failing_s if follower.is_owner else max(self._failing_s, self._log_feed.failing_s)
        if min(failing_s, waited_s) > follower.LOST_AFTER_S:
            raise StreamLost("the server of the stream is out of reach")

    async def start(self) -> None:
        """Announce this process and begin to read; raises `StreamUnavailable` when the server is away.

        Clients that resume are served from the first call on, also if it fails: they need no presence.
        """
        if not self._tasks:
            self._begin(self._keep_time, self._log_feed.run)
        presence = self.stream.presence(self.name, read_up_to=self._position, is_unknown=self._lost)
        await presence.start()
        self._presence = presence
        self._begin(self._read)

    def _begin(self, *loops: Loop) -> None:
        self._tasks += [asyncio.create_task(supervise(loop)) for loop in loops]

    async def stop(self) -> None:
        if self._presence is not None:
            self._presence.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self) -> None:
        while True:
            is_failing = self._failing_s > 0
            # After an error, do not block: new requests are refused until the server has answered.
            block_ms, reply_s = (1, PROBE_S) if is_failing else (1_000, None)
            began = loop_clock.monotonic()
            try:
                async with in_time(reply_s):
                    entries = await self.stream.read_inbox(
                        self.name, after=self._read_up_to, block_ms=block_ms
                    )
            except StreamUnavailable as error:
                # Not `retry`: each failure adds to `_failing_s` and wakes the followers.
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
            followers = [*self._followers.values(), *self._resuming]
            for start in range(0, len(followers), WOKEN_AT_ONCE):
                for follower in followers[start : start + WOKEN_AT_ONCE]:
                    follower.wake()
                await asyncio.sleep(0)  # others have their turn

    def wake_all(self) -> None:
        """Let every follower's `next` return."""
        for follower in (*self._followers.values(), *self._resuming):
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
        # Names follow the server's clock. After a loss of data the clock may be behind, and the names lower.
        # Followers drop deltas that they have had.
        self._read_up_to, self._must_start_again = b"", False
