"""Parses large request bodies in a child process (`wire/parser_process.py`), so that no other request waits.

A web process has one child, and restarts it if it dies. The child parses one body at a time; `BodyRoom`
decides the order of the bodies before they are read.
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.parsed_request import ParsedRequest
from chatapi.wire.parser_process import LENGTH, Outcome, Task

log = logging.getLogger(__name__)

# The CPU time limit for one body: ten times that of the slowest known body of 8 MiB.
CPU_LIMIT_S = 5.0
# The wall-clock limit for one body; the machine may be busy or suspended.
ANSWER_TIMEOUT_S = 30.0
_COMMAND = (sys.executable, "-m", "chatapi.wire.parser_process")
_ROOT = Path(__file__).parent.parent.parent
_Result = TypeVar("_Result")
_outcome_decoder = msgspec.msgpack.Decoder(Outcome)


class ParserUnavailable(Exception):
    """The child died or did not answer in time, for another reason than the body."""


class _Child:
    """The child process, and the socket that is its standard input and output."""

    def __init__(self, process: "subprocess.Popen[bytes]", channel: socket.socket) -> None:
        self.process = process
        self._channel = channel

    @classmethod
    def start(cls) -> "_Child":
        """Start a child that inherits its channel and the settings of malloc, but no secret and no other
        file.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            channel = theirs.fileno()
            malloc = {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")}
            try:
                process = subprocess.Popen(  # noqa: S603  no input
                    _COMMAND, cwd=_ROOT, env=malloc, stdin=channel, stdout=channel, close_fds=True
                )
            except OSError:
                ours.close()
                raise
        return cls(process, ours)

    def parse(self, task: Task, pieces: list[bytes]) -> tuple[Outcome, bytes, bytes]:
        """Return the outcome, the request's content and its state; raises `OSError` or `EOFError` if the
        child dies.

        It takes the pieces out of the list, so that body and content are not in memory together.
        """
        header = msgspec.msgpack.encode(task)
        n_bytes = sum(map(len, pieces))
        self._channel.sendall(LENGTH.pack(len(header)) + header + LENGTH.pack(n_bytes))
        pieces.reverse()
        while pieces:
            self._channel.sendall(pieces.pop())
        outcome = _outcome_decoder.decode(self._read_frame())
        return outcome, self._read_frame(), self._read_frame()

    def end(self) -> int:
        """Kill the child and return its exit status."""
        self.process.kill()
        status = self.process.wait()
        self._channel.close()
        return status

    def _read_frame(self) -> bytes:
        (length,) = LENGTH.unpack(self._receive(LENGTH.size))
        return self._receive(length)

    def _receive(self, n_bytes: int) -> bytes:
        received = []
        while n_bytes:  # a signal may interrupt
            data = self._channel.recv(n_bytes, socket.MSG_WAITALL)
            if not data:
                raise EOFError("the parser has closed its output")
            received.append(data)
            n_bytes -= len(data)
        return b"".join(received)


class BodyParser:
    """The parser of a web process, with at most one child."""

    def __init__(self) -> None:
        self._child: _Child | None = None
        self._turn = asyncio.Lock()
        # All but a kill happens in this thread: it waits for the child without the interpreter's lock, and
        # moves megabytes with a few calls, where the event loop would take a turn for each 64 KiB.
        self._thread = ThreadPoolExecutor(1, "body-parser")

    async def parse(
        self,
        pieces: list[bytes],
        protocol: str,
        default_model: str | None,
        *,
        is_ticket: bool = False,
        is_resolved: bool = False,
        ignored_parameters: frozenset[str] = frozenset(),
    ) -> ParsedRequest:
        """Return the request in the pieces of a body; raises `InvalidRequest`, `UnresolvedReferences` or
        `ParserUnavailable`.

        It empties the list, but puts the body back if that refers to earlier answers. Cancelling the caller
        while its body is parsed kills the child.
        """
        task = Task(protocol, default_model, is_ticket, is_resolved, ignored_parameters, CPU_LIMIT_S)
        async with self._turn:
            outcome, content, state = await self._ask(task, pieces)
        if outcome.references:
            pieces.append(content)
        if error := outcome.refusal or outcome.references:
            raise error.error()
        assert outcome.summary is not None
        return ParsedRequest(outcome.summary, content, state)

    async def start(self) -> None:
        """Start the child before it is needed; if this fails, the next body tries again."""
        async with self._turn:
            try:
                await self._in_thread(self._started)
            except OSError as error:
                log.warning("the parser of large bodies can't be started: %r", error)

    async def close(self) -> None:
        await self._end_child()
        self._thread.shutdown(wait=False)

    async def _ask(self, task: Task, pieces: list[bytes]) -> tuple[Outcome, bytes, bytes]:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                # In two steps: a caller that is cancelled while the child starts has no child to kill yet, so
                # no parsing may follow.
                child = await self._in_thread(self._started)
                return await self._in_thread(lambda: child.parse(task, pieces))
        except (OSError, EOFError, TimeoutError, msgspec.DecodeError) as error:
            status = await self._end_child()
            if status == -signal.SIGPROF:
                raise InvalidRequest(
                    "The body takes too long to be read: send a simpler or a smaller one."
                ) from None
            log.error("the parser of large bodies ended with %s: %r", status, error)
            raise ParserUnavailable(repr(error)) from error
        except BaseException:
            # After a cancellation the child's answer would be taken for the next body's.
            await self._end_child()
            raise

    async def _end_child(self) -> int | None:
        if self._child is not None:
            self._child.process.kill()
        # Shielded: cancelling the caller would also cancel the queued call, and a dead child would remain.
        return await asyncio.shield(self._in_thread(self._end))

    def _in_thread(self, work: Callable[[], _Result]) -> asyncio.Future[_Result]:
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _started(self) -> _Child:
        if self._child is None:
            self._child = _Child.start()
        return self._child

    def _end(self) -> int | None:
        child, self._child = self._child, None
        return None if child is None else child.end()
