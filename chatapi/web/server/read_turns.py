"""Bounds the time for reading sockets per turn of the event loop, and shares it between connections."""

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, Final, Protocol

# How many of the sockets that were left out are polled in a turn: more than it has time for.
POLLED_PER_TURN: Final = 64


class Reader(Protocol):
    """A socket that is polled."""

    def poll_again(self) -> None:
        """Let the event loop ask again whether the socket may be read."""


class ReadTurns:
    """Decides which sockets may be read in this turn of the event loop.

    One read costs at most a few milliseconds, but thousands of sockets may be readable in the same turn, and
    streams wait meanwhile.

    1. The reads of a turn end after `seconds`.
    2. The sockets that were left out are read in the next turns: no socket is read twice in a round, which
       ends when all these have been read. Without load, each turn is a round.
    3. In these turns, sockets that become readable later get at most half of the time; then they wait for the
       next round. So a round ends, however many there are.
    4. A socket that was left out is not polled until its turn may come: to refuse four thousand sockets takes
       a quarter of a second, because libuv polls again and again while it finds a thousand of them readable.
    """

    def __init__(self, seconds: float, call_soon: Callable[[Callable[[], None]], Any]) -> None:
        self._seconds = seconds
        self._call_soon = call_soon
        # Of this round: those that have read, those that were left out at its beginning, and those of them
        # that are to be polled again.
        self._read: set[Reader] = set()
        self._left_out: set[Reader] = set()
        self._waiting: deque[Reader] = deque()
        self._of_next_round: deque[Reader] = deque()
        self._is_end_due = self._is_late_turn = False
        # What late comers have used of the turn, and since when one of them reads.
        self._late_s = 0.0
        self._late_since: float | None = None
        # Set by the first read of a turn: what the turn did before must not take its time.
        self._ends_at: float | None = None
        self._endings: deque[Callable[[], None]] = deque()

    def may_read(self, reader: Reader) -> bool:
        """Return whether `reader` may read now; if not, it is not to be polled until its `poll_again`."""
        now = monotonic()
        if self._ends_at is None:
            self._ends_at, self._late_s = now + self._seconds, 0.0
            self._is_late_turn = bool(self._left_out)
            self._schedule_end()
        elif self._late_since is not None:
            self._late_s += now - self._late_since
        self._late_since = None
        is_late = self._is_late_turn and reader not in self._left_out
        if reader in self._read or (is_late and (self._late_s > self._seconds / 2 or now > self._ends_at)):
            self._of_next_round.append(reader)
            return False
        if now > self._ends_at:
            self._left_out.add(reader)
            self._waiting.append(reader)
            return False
        self._left_out.discard(reader)
        self._read.add(reader)
        self._late_since = now if is_late else None
        return True

    def _schedule_end(self) -> None:
        if not self._is_end_due:
            self._is_end_due = True
            self._call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_end_due, self._ends_at, self._late_since = False, None, None
        if not self._waiting:
            self._read.clear()
            self._waiting, self._of_next_round = self._of_next_round, deque()
            self._left_out = set(self._waiting)
        for _ in range(min(len(self._waiting), POLLED_PER_TURN)):
            self._waiting.popleft().poll_again()
        if self._waiting or self._of_next_round:
            self._schedule_end()  # they must not depend on other sockets' reads

    def end(self, ending: Callable[[], None]) -> None:
        """Schedule `ending`, which ends a connection; each turn ends as many as fit in `seconds`."""
        if not self._endings:
            self._call_soon(self._end_some)
        self._endings.append(ending)

    def _end_some(self) -> None:
        ends_at = monotonic() + self._seconds
        try:
            while self._endings and monotonic() < ends_at:
                self._endings.popleft()()
        finally:
            if self._endings:
                self._call_soon(self._end_some)
