"""Bounds the time for reading sockets per turn of the event loop, and shares it between clients."""

from collections import OrderedDict, deque
from collections.abc import Callable
from time import monotonic
from typing import Any, Final, Protocol

# How many of the sockets that wait are polled in a turn. Each may start a request: 32 take 5 to 10 ms.
POLLED_PER_TURN: Final = 32


class Reader(Protocol):
    """A socket that is polled."""

    client_network: str
    """The client's IP address; of IPv6 its network. All clients of a proxy are one: a request's head, which
    names its client, has not been read yet."""

    def poll_again(self) -> None:
        """Let the event loop ask again whether the socket may be read."""


class ReadTurns:
    """Decides which sockets may be read in this turn of the event loop.

    One read costs at most a few milliseconds, but thousands of sockets may be readable in the same turn, and
    streams wait meanwhile.

    1. The reads of a turn end after `seconds`. A socket that becomes readable later waits.
    2. While sockets wait, each other one that becomes readable waits, too: in the queue of its client.
    3. A turn takes `POLLED_PER_TURN` of them, one of each client after the other, so that a client with one
       connection does not wait for the thousands of another. The next turn takes those for which the time was
       too short, and no others.
    4. A socket that waits is not polled: to refuse four thousand sockets takes a quarter of a second, because
       libuv polls again and again while it finds a thousand of them readable.
    """

    def __init__(self, seconds: float, call_soon: Callable[[Callable[[], None]], Any]) -> None:
        self._seconds = seconds
        self._call_soon = call_soon
        # The waiting sockets by their client. The first client is the next one.
        self._queues: OrderedDict[str, deque[Reader]] = OrderedDict()
        # Those that this turn takes, and those of them for which its time was too short.
        self._taken: set[Reader] = set()
        self._late: list[Reader] = []
        self._is_end_due = False
        # Set by the first read of a turn, so that earlier work in the turn does not take its time.
        self._ends_at: float | None = None
        self._endings: deque[Callable[[], None]] = deque()

    def may_read(self, reader: Reader) -> bool:
        """Return whether `reader` may read now; if not, it is not to be polled until its `poll_again`."""
        now = monotonic()
        if self._ends_at is None:
            self._ends_at = now + self._seconds
            self._schedule_end()
        if reader in self._taken:
            self._taken.remove(reader)
            if now > self._ends_at:
                self._late.append(reader)
                return False
            return True
        if self._taken or self._late or self._queues or now > self._ends_at:
            self._queues.setdefault(reader.client_network, deque()).append(reader)
            return False
        return True

    def _schedule_end(self) -> None:
        if not self._is_end_due:
            self._is_end_due = True
            self._call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_end_due, self._ends_at = False, None
        # A taken socket that has not asked to read since had no data.
        polled, self._late = self._late or self._next(), []
        self._taken = set(polled)
        for reader in polled:
            reader.poll_again()
        if polled:
            self._schedule_end()  # they must not depend on other sockets' reads

    def _next(self) -> list[Reader]:
        """Return the sockets whose turn it is, and take them out of their queues."""
        found: list[Reader] = []
        while self._queues and len(found) < POLLED_PER_TURN:
            client, queue = self._queues.popitem(last=False)
            found.append(queue.popleft())
            if queue:
                self._queues[client] = queue
        return found

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
