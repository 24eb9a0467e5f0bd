"""Bounds the time for reading sockets per turn of the event loop, and shares it between connections."""

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any


class ReadTurns:
    """Decides which sockets may be read in this turn of the event loop.

    One read costs at most a few milliseconds, but thousands of sockets may be readable in the same turn, and
    streams wait meanwhile.

    1. The reads of a turn end after `seconds`.
    2. The sockets that were left out are read in the next turns: no socket is read twice in a round, which
       ends when all readable sockets have been read. Without load, each turn is a round.
    """

    def __init__(self, seconds: float, call_soon: Callable[[Callable[[], None]], Any]) -> None:
        self._seconds = seconds
        self._call_soon = call_soon
        self._read: set[object] = set()
        self._is_turn = self._has_left_out = False
        self._ends_at = 0.0
        self._endings: deque[Callable[[], None]] = deque()

    def may_read(self, reader: object) -> bool:
        """Return whether `reader` may read now; if not, the event loop asks again in its next turn."""
        now = monotonic()
        if not self._is_turn:
            self._is_turn = True
            self._ends_at = now + self._seconds
            self._call_soon(self._end_turn)
        if reader in self._read:
            return False
        if now > self._ends_at:
            self._has_left_out = True
            return False
        self._read.add(reader)
        return True

    def _end_turn(self) -> None:
        self._is_turn = False
        if not self._has_left_out:
            self._read.clear()
        self._has_left_out = False

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
