"""The event loop of the web process, its listening socket, and the sockets that it accepts.

Twisted keeps the first reactor that is installed, and `daphne.server` installs one when it is imported.
Import the reactor and Daphne's server from this module, so that the reactor on uvloop comes first.
"""

# ruff: noqa: N802 - the names are Twisted's

import fcntl
import socket
import sys
import termios
from collections.abc import Iterable
from functools import partial
from typing import Any

import uvloop
from twisted.internet import asyncioreactor, main, tcp
from twisted.python.failure import Failure

from chatapi.web.server.client_quotas import client_network
from chatapi.web.server.read_turns import ReadTurns

loop = uvloop.new_event_loop()
asyncioreactor.install(loop)

from daphne import server as _daphne_server  # noqa: E402
from twisted.internet import reactor  # noqa: E402

_daphne_server.twisted_loop.close()  # Daphne made this loop for its reactor; nothing will run it
DaphneServer = _daphne_server.Server

__all__ = ["DaphneServer", "ListeningPort", "Transport", "loop", "reactor"]

# The size of a read that no application waits for; the costliest 64 KiB, Twisted's size, take 5 ms.
FIRST_READ_BYTES = 16 * 1024

WANTED_READ_BYTES = 64 * 1024

# The most that is discarded at once, in less than a millisecond. The kernel writes nothing to this memory.
_DISCARDED = bytearray(1024 * 1024)

# The reason of the end, by the kernel's state: CLOSE or CLOSE_WAIT (linux/include/net/tcp_states.h).
_ENDS = {7: main.CONNECTION_LOST, 8: main.CONNECTION_DONE}


class ListeningPort(tcp.Port):
    """The listening socket, which accepts a bounded number of connections per turn."""

    accepts_per_turn: int

    def doRead(self) -> None:
        self.numberAccepts = self.accepts_per_turn
        super().doRead()

    def accept_rest(self) -> None:
        """Accept all connections that the kernel has completed; closing the socket would reset them."""
        self.stopReading()
        accepted = None
        while accepted != self.sessionno:
            accepted = self.sessionno
            super().doRead()


# Slots save 600 bytes here, as in `http_request.py`.
_SLOTS = (
    "_is_discarding",
    "_tempDataBuffer",
    "_tempDataLen",
    "client",
    "client_network",
    "hostname",
    "protocol",
    "reactor",
    "read_turns",
    "repstr",
    "server",
    "sessionno",
)


class Transport(tcp.Server):
    """An accepted socket that sends without delay and notices a reset which arrives together with data."""

    __slots__ = _SLOTS
    # Twisted's constructor begins to read.
    _wants_to_read = _is_left_out = False
    _wants_to_write = _is_holding = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.bufferSize = FIRST_READ_BYTES
        self.read_turns: ReadTurns = self.server.factory.read_turns
        self.client_network = client_network(self.client[0])
        self._is_discarding = False

    @property
    def unsent_bytes(self) -> int:
        """Return the number of bytes that the client has not acknowledged, those in the kernel included."""
        # Without the kernel's a slow client would look stalled: the kernel takes more only when a third of
        # its buffer, perhaps megabytes, is free.
        in_kernel = int.from_bytes(fcntl.ioctl(self.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        here: int = len(self.dataBuffer) - self.offset + self._tempDataLen
        return here + in_kernel

    @property
    def unread_bytes(self) -> int:
        """Return the number of bytes that have arrived and have not been read."""
        return int.from_bytes(fcntl.ioctl(self.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)

    def startReading(self) -> None:
        self._wants_to_read = True
        if not self._is_left_out:
            super().startReading()

    def stopReading(self) -> None:
        self._wants_to_read = False
        super().stopReading()

    def poll_again(self) -> None:
        """Let the event loop poll the socket again, unless reading has been stopped meanwhile."""
        self._is_left_out = False
        if self._wants_to_read:
            super().startReading()

    def doRead(self) -> Any:
        """Pass arrived bytes on, now or in another turn; return the reason if reading fails."""
        # Bytes that a client sent before it closed its side are not read: they change nothing any more.
        state = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        if state in _ENDS:
            self.stopReading()
            self.read_turns.end(partial(self._end, _ENDS[state]))
            return None
        if not self.read_turns.may_read(self):
            self._is_left_out = True
            super().stopReading()
            return None
        end = self._discard() if self._is_discarding else super().doRead()
        # uvloop reports a socket's error only once. If the client has sent data before its reset, Twisted
        # reads the data on that occasion and never notices the reset.
        if end is None and self.connected and self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return main.CONNECTION_LOST
        return end

    def discard_input(self) -> None:
        """Discard all that still arrives; the protocol learns the number of bytes."""
        self._is_discarding = True

    def _discard(self) -> Any:
        """Discard what has arrived; return the reason if the connection has ended."""
        # For TCP, MSG_TRUNC discards bytes without a copy (tcp(7)): a client that ignores a refusal sends
        # gigabytes, and to read them takes fifty times as long.
        try:
            n_bytes = self.socket.recv_into(_DISCARDED, 0, socket.MSG_TRUNC)
        except BlockingIOError:
            return None
        except OSError:
            return main.CONNECTION_LOST
        if not n_bytes:
            return main.CONNECTION_DONE
        self.protocol.discarded(n_bytes)
        return None

    def _end(self, reason: Exception) -> None:
        if self.connected:
            self.connectionLost(Failure(reason))

    def startWriting(self) -> None:
        self._wants_to_write = True
        if not self._is_holding:
            super().startWriting()

    def stopWriting(self) -> None:
        self._wants_to_write = False
        super().stopWriting()

    def hold(self) -> None:
        """Hold back what is written until `flush`, which must follow at once."""
        self._is_holding = True

    def flush(self) -> None:
        """Send written bytes, as far as the kernel takes them, without a turn of the event loop."""
        # This saves a quarter of the cost of a short response. The event loop watches the socket only for the
        # rest, and after an error.
        if self._tempDataLen and not self.disconnecting:
            self.doWrite()
        self._is_holding = False
        if self._wants_to_write:
            super().startWriting()

    def writeSequence(self, iovec: Iterable[bytes]) -> None:
        self.write(b"".join(iovec))

    def send(self, data: bytes) -> None:
        """Send `data` at once if nothing waits before it; buffer the part that the kernel does not take."""
        if not self.connected or self.disconnecting or self._tempDataLen or self.dataBuffer:
            self.write(data)
            return
        sent_bytes = self.writeSomeData(data)
        if sent_bytes != len(data):
            self.write(data[sent_bytes:] if isinstance(sent_bytes, int) else data)


ListeningPort.transport = Transport
