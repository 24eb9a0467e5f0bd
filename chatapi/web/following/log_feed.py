"""Feeds the followers that have read a log to its end: one blocked read serves all of a server."""

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from itertools import product
from uuid import UUID

from accounts import loop_clock
from chatapi.delta_stream import DeltaStream, StreamUnavailable, place_of
from chatapi.web.following.follower import Follower

logger = logging.getLogger(__name__)

# The most logs that are read at once. If there are more, they have turns.
READ_AT_ONCE = 64
# How long a read waits for the first entry. A log that is new to the feed waits until that read ends.
BLOCK_MS = 50
# The pause after a read, in which entries gather: one read of several costs less.
PAUSE_S = 0.005
# The pause after a failure.
RETRY_S = 0.2


class _Log:
    """A log that is read for some followers."""

    def __init__(self, first: Follower) -> None:
        self.id = first.id
        self.followers = [first]
        self.read_up_to = first.read_up_to


class LogFeed:
    """The logs of one server that clients of this process follow."""

    def __init__(self, stream: DeltaStream) -> None:
        self._stream = stream
        self._logs: dict[UUID, _Log] = {}
        # By organization, in the order of their turns.
        self._lines: OrderedDict[int, deque[_Log]] = OrderedDict()
        self._has_logs = asyncio.Event()
        self.failing_s = 0.0
        """How long the server has been failing to answer; 0 if its last answer arrived."""

    def add(self, follower: Follower) -> None:
        """Feed the follower with what is written behind its position."""
        log = self._logs.get(follower.id)
        if log is None:
            log = self._logs[follower.id] = _Log(follower)
            self._lines.setdefault(follower.organization_id, deque()).append(log)
            self._has_logs.set()
            return
        log.followers.append(follower)
        # Read again from the new follower's position; the others drop deltas that they have had.
        log.read_up_to = min(log.read_up_to, follower.read_up_to, key=place_of)

    def remove(self, follower: Follower) -> None:
        """Forget the follower, if it was added."""
        log = self._logs.get(follower.id)
        if log is None or follower not in log.followers:
            return
        log.followers.remove(follower)
        if log.followers:
            return
        del self._logs[log.id]
        line = self._lines[follower.organization_id]
        line.remove(log)
        if not line:
            del self._lines[follower.organization_id]
        if not self._logs:
            self._has_logs.clear()

    async def run(self) -> None:
        """Read the logs and feed the followers, for ever."""
        while True:
            while not self._logs:  # one that was added may have been removed before this task's turn
                await self._has_logs.wait()
            turn = {log.id: log.read_up_to for log in self._turn()}
            # While some logs wait for their turn, a read does not block.
            block_ms = BLOCK_MS if len(turn) == len(self._logs) else None
            began = loop_clock.monotonic()
            try:
                entries = await self._stream.read_logs(turn, block_ms=block_ms)
            except StreamUnavailable as error:
                # Not `retry`: each failure adds to `failing_s`, and the next turn may have other logs.
                logger.warning("followed logs: %r", error)
                await asyncio.sleep(RETRY_S)
                self.failing_s += loop_clock.monotonic() - began
                continue
            self.failing_s = 0.0
            for generation_id, frames in entries.items():
                if log := self._logs.get(generation_id):
                    if log.read_up_to == turn[generation_id]:  # no follower has joined farther back meanwhile
                        log.read_up_to = frames[-1].name
                    written = [frame for frame in frames if frame.batch]  # a seal has no batch
                    for frame, follower in product(written, log.followers):
                        follower.feed(frame)
            entries.clear()  # so that they are not in memory beside the next ones
            await asyncio.sleep(PAUSE_S)

    def _turn(self) -> Iterable[_Log]:
        """Return the logs to be read next: all, or if there are many, organizations in turn."""
        if len(self._logs) <= READ_AT_ONCE:
            return self._logs.values()
        found: list[_Log] = []
        # The number of logs in this turn, by organization.
        given = Counter[int]()
        while len(found) < READ_AT_ONCE:
            organization_id, line = next(
                each for each in self._lines.items() if given[each[0]] < len(each[1])
            )
            self._lines.move_to_end(organization_id)
            given[organization_id] += 1
            line.rotate(-1)
            found.append(line[-1])
        return found
