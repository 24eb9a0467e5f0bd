"""Parses large request bodies for a web process, one at a time: `python -m chatapi.wire.parser_process`.

msgspec and `re` hold the interpreter's lock while they work on a body, in any thread. So a body that would
block the event loop for too long is parsed here.

    standard input    frames: a `Task`, then the body
    standard output   frames: an `Outcome`, then the request's content and its state (both empty for a
                      refusal; for references, the body instead of the content)

A frame is its length in 8 bytes, and its content. The process ends when its input ends, which is with the web
process, or by SIGPROF when a body takes more than `Task.cpu_limit_s` of CPU time. Of this project it imports
only `chatapi.wire`; it has no secret and no socket.
"""

import signal
import struct
import sys
from typing import BinaryIO, Final

import msgspec

from chatapi.wire import parsed_request
from chatapi.wire.invalid_request import InvalidRequest, UnresolvedReferences
from chatapi.wire.parsed_request import RequestSummary

LENGTH: Final = struct.Struct(">Q")


class Task(msgspec.Struct, frozen=True, array_like=True):
    """The arguments of `parsed_request.parse`, for the body that follows."""

    protocol: str
    default_model: str | None
    is_ticket: bool
    is_resolved: bool
    ignored_parameters: frozenset[str]
    cpu_limit_s: float


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """An `InvalidRequest`."""

    message: str
    param: str | None
    code: str | None
    status: int
    is_stream: bool

    def error(self) -> InvalidRequest:
        return InvalidRequest(self.message, self.param, self.code, self.status, is_stream=self.is_stream)


class References(msgspec.Struct, frozen=True, array_like=True):
    """An `UnresolvedReferences`."""

    previous: str | None
    items: dict[str, str]

    def error(self) -> UnresolvedReferences:
        return UnresolvedReferences(self.previous, self.items)


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """One of the three: a valid request's summary, a refusal, or unresolved references."""

    summary: RequestSummary | None = None
    refusal: Refusal | None = None
    references: References | None = None


_task_decoder = msgspec.msgpack.Decoder(Task)
_outcome_encoder = msgspec.msgpack.Encoder()


def main() -> None:
    """Answer the web process at the other end of standard input and output until it ends."""
    for interruption in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # they may reach the whole process group; the web process decides when this one ends
        signal.signal(interruption, signal.SIG_IGN)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while (frame := _read_frame(source)) is not None:
        body = _read_frame(source)
        if body is None:
            return
        outcome, *parts = _parse(_task_decoder.decode(frame), body)
        del frame, body
        for part in (_outcome_encoder.encode(outcome), *parts):
            sink.write(LENGTH.pack(len(part)))
            sink.write(part)
        sink.flush()
        del parts, part  # while it waits for the next body, it holds nothing of this one


def _parse(task: Task, body: bytes) -> tuple[Outcome, bytes, bytes]:
    signal.setitimer(signal.ITIMER_PROF, task.cpu_limit_s)  # without a handler, the signal ends the process
    try:
        parsed = parsed_request.parse(
            body,
            task.protocol,
            task.default_model,
            is_ticket=task.is_ticket,
            is_resolved=task.is_resolved,
            ignored_parameters=task.ignored_parameters,
        )
    except InvalidRequest as error:
        refusal = Refusal(error.message, error.param, error.code, error.status, error.is_stream)
        return Outcome(refusal=refusal), b"", b""
    except UnresolvedReferences as error:
        # The body goes back: it is parsed again with the items that it refers to.
        return Outcome(references=References(error.previous, error.items)), body, b""
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return Outcome(parsed.summary), parsed.content, parsed.state


def _read_frame(source: BinaryIO) -> bytes | None:
    """Return the next frame; None at the end of the input."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    frame = source.read(length)
    return frame if len(frame) == length else None


if __name__ == "__main__":
    main()
