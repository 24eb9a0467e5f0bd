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
from pathlib import Path

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
_outcome_decoder = msgspec.msgpack.Decoder(Outcome)
_PIECE_BYTES = 1 << 16


class ParserUnavailable(Exception):
    """The child died or did not answer in time, for another reason than the body."""


class _Child:
    """The child process, and the socket that is its standard input and output."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls) -> "_Child":
        # In a thread, because forking a large process takes milliseconds.
        process, ours = await asyncio.to_thread(_spawn)
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(process, reader, writer)

    async def parse(self, task: Task, pieces: list[bytes]) -> tuple[Outcome, bytes, bytes]:
        """Return the outcome, the request's content and its state; raises `OSError` or `EOFError` if the
        child dies.

        It takes the pieces out of the list, so that body and content are not in memory together.
        """
        header = msgspec.msgpack.encode(task)
        self._writer.write(LENGTH.pack(len(header)) + header + LENGTH.pack(sum(map(len, pieces))))
        pieces.reverse()
        while pieces:
            piece = pieces.pop()
            for start in range(0, len(piece), _PIECE_BYTES):
                self._writer.write(piece[start : start + _PIECE_BYTES])
                await self._writer.drain()
        outcome = _outcome_decoder.decode(await self._read_frame())
        return outcome, await self._read_frame(), await self._read_frame()

    async def _read_frame(self) -> bytes:
        (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        pieces = []
        while length:
            piece = await self._reader.read(min(length, _PIECE_BYTES))
            if not piece:
                raise EOFError("the parser has closed its output")
            pieces.append(piece)
            length -= len(piece)
        return b"".join(pieces)

    async def end(self) -> int:
        """Kill the child and return its exit status."""
        self._writer.transport.abort()
        self.process.kill()
        return await asyncio.to_thread(self.process.wait)


class BodyParser:
    """The parser of a web process, with at most one child."""

    def __init__(
        self, *, cpu_limit_s: float = CPU_LIMIT_S, answer_timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        self._cpu_limit_s = cpu_limit_s
        self._answer_timeout_s = answer_timeout_s
        self._child: _Child | None = None
        self._turn = asyncio.Lock()

    async def parse(
        self,
        pieces: list[bytes],
        protocol: str,
        default_model: str | None,
        *,
        is_ticket: bool = False,
        is_resolved: bool = False,
    ) -> ParsedRequest:
        """Return the request in the pieces of a body; raises `InvalidRequest`, `UnresolvedReferences` or
        `ParserUnavailable`.

        The list is empty afterwards, or has the body if that refers to earlier answers. Cancelling the caller
        while its body is parsed kills the child.
        """
        task = Task(protocol, default_model, is_ticket, is_resolved, self._cpu_limit_s)
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
                self._child = self._child or await _Child.start()
            except OSError as error:
                log.warning("the parser of large bodies can't be started: %r", error)

    async def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.end()

    async def _ask(self, task: Task, pieces: list[bytes]) -> tuple[Outcome, bytes, bytes]:
        try:
            async with asyncio.timeout(self._answer_timeout_s):
                if self._child is None:
                    self._child = await _Child.start()
                return await self._child.parse(task, pieces)
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
            await asyncio.shield(self._end_child())
            raise

    async def _end_child(self) -> int | None:
        child, self._child = self._child, None
        return None if child is None else await child.end()


def _spawn() -> "tuple[subprocess.Popen[bytes], socket.socket]":
    """Start a child that inherits its channel and the settings of malloc, but no secret and no other file."""
    ours, theirs = socket.socketpair()
    with theirs:
        channel = theirs.fileno()
        malloc = {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")}
        process = subprocess.Popen(  # noqa: S603  no input
            _COMMAND, cwd=_ROOT, env=malloc, stdin=channel, stdout=channel, close_fds=True
        )
    return process, ours
