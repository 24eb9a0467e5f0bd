"""Writes a response: as a stream of events, as one object, or as the number of its input's tokens."""

from collections.abc import Iterable

import msgspec

from chatapi.wire.deltas import AnyDelta, Failed, Usage
from chatapi.wire.protocols.protocol import Answer
from chatapi.wire.protocols.responses.output import Event
from chatapi.wire.protocols.responses.response import Response

_to_json = msgspec.json.Encoder().encode


class Encoder:
    """Writes a response as a stream of typed events, numbered from 0."""

    def __init__(self, answer: Answer, after: int = -1) -> None:
        """`after`: the number of the last event that the client has; -1: none."""
        self.response = Response(answer)
        self._after = after
        self._number = 0

    def encode(self, batch: Iterable[AnyDelta]) -> bytes:
        """Return the batch's events; see `protocol.Encoder`."""
        return self._frames(event for delta in batch for event in self.response.add(delta))

    def failed(self, failure: Failed) -> bytes:
        """Return the events that end a broken stream.

        Both have the number of the last event before them, so a client that continues with `starting_after`
        misses nothing: a new number would belong to an event still to come.
        """
        last = max(self._after, self._number - 1, 0)
        return b"".join(_frame(last, event) for event in self.response.fail(failure, is_end=False))

    def _frames(self, events: Iterable[Event]) -> bytes:
        frames = []
        for event in events:
            # `response.failed` is always sent: if Redis has lost events, this stream has counted fewer events
            # than the client has.
            if self._number > self._after or event[0] == "response.failed":
                frames.append(_frame(max(self._number, self._after), event))
            self._number += 1
        return b"".join(frames)


class Folder:
    """Writes a response as one object."""

    def __init__(self, answer: Answer) -> None:
        self.response = Response(answer)

    @property
    def usage(self) -> Usage | None:
        """The response's usage, once it has come."""
        return self.response.usage

    @property
    def failure(self) -> Failed | None:
        """Why there is no response."""
        return self.response.failure

    def add(self, delta: AnyDelta) -> None:
        for _ in self.response.add(delta):
            pass

    def body(self) -> bytes:
        return self.response.object()


class CountFolder:
    """Writes the number of a prompt's tokens."""

    def __init__(self, answer: Answer) -> None:
        self.usage: Usage | None = None
        self.failure: Failed | None = None

    def add(self, delta: AnyDelta) -> None:
        """Keep the usage, and ignore other deltas."""
        if isinstance(delta, Usage):
            self.usage = delta

    def body(self) -> bytes:
        assert self.usage is not None
        return _to_json({"object": "response.input_tokens", "input_tokens": self.usage.prompt_tokens})


def _frame(number: int, event: Event) -> bytes:
    kind, members = event
    data = _to_json({"type": kind, "sequence_number": number, **members})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
