"""Reads an upstream's embeddings, in base64 or as numbers, into deltas."""

import binascii
import json
import math
from array import array
from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec

from chatapi.wire import caps
from chatapi.wire.deltas import AnyDelta, Failed, Started, Usage, Vector
from chatapi.wire.sse import Event
from chatapi.wire.upstream.upstream_errors import (
    DISCONNECTED,
    INVALID_RESPONSE,
    UpstreamError,
    complaint_in,
    failure_of_complaint,
)

VALUE_BYTES: Final = 4
TOO_LARGE: Final = Failed(
    f"The embeddings would have more than {caps.MAX_VECTOR_VALUES} numbers. Nothing was charged. Send fewer "
    "inputs at once, or ask for fewer dimensions.",
    "invalid_request_error",
    "too_many_embeddings",
    "input",
    400,
)


# `gc=False`: there are thousands of them, and none is a part of a cycle.
class _Embedding(msgspec.Struct, gc=False):
    embedding: msgspec.Raw
    """Decoded one by one: Python's floats take eight times the memory."""
    index: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0)]


class _Answer(msgspec.Struct, gc=False):
    data: list[_Embedding] | None = None
    usage: Any = None
    error: Any = None
    message: Any = None
    """Only a flat error object has it."""


_answers = msgspec.json.Decoder(_Answer)
_texts_or_numbers = msgspec.json.Decoder(str | list[float])


class VectorReader:
    """Reads one answer, which is one document; see `upstream_kinds.Reader`."""

    max_answer_bytes = 32 << 20
    """The most numbers of an answer take 16 MiB in base64."""
    too_large = TOO_LARGE
    is_complete = False
    """The document has the usage, so none may follow."""
    is_cut = False

    def __init__(self, inputs: int) -> None:
        self._inputs = inputs
        self._usage: Usage | None = None
        self.has_started = False
        self.is_done = False
        self.failure: Failed | None = None

    def read_answer(self, body: bytes) -> list[AnyDelta]:
        """Return the deltas of the document."""
        try:
            deltas = self._read(body)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.failure = INVALID_RESPONSE
        except UpstreamError as error:
            self.failure = error.failure
        else:
            self.has_started = self.is_done = True
            return deltas
        return []

    def read(self, events: Iterable[Event]) -> list[AnyDelta]:
        """Return the deltas of the first event with data: some servers stream without being asked."""
        return next((self.read_answer(event.data) for event in events if event.data), [])

    def read_rest(self, events: Iterable[Event]) -> list[AnyDelta]:
        """Return the deltas of an event that the stream's end left without a blank line."""
        return [] if self.is_done or self.failure else self.read(events)

    def end(self) -> list[AnyDelta]:
        """Return the usage if the upstream sent it. Raises `UpstreamError` without an answer."""
        if self.failure is not None or not self.is_done:
            raise UpstreamError(self.failure or DISCONNECTED)
        return [] if self._usage is None else [self._usage]

    def _read(self, body: bytes) -> list[AnyDelta]:
        # The vectors are not decoded yet.
        answer = _answers.decode(body)
        if answer.error or (answer.data is None and isinstance(answer.message, str)):
            raise UpstreamError(failure_of_complaint(complaint_in(json.loads(body))))
        found = answer.data or []
        vectors: dict[int, Vector] = {}
        most_bytes = caps.MAX_VECTOR_VALUES * VALUE_BYTES
        for position, each in enumerate(found):
            index = position if each.index is None else each.index
            vectors[index] = Vector(_values(each.embedding), index)
            most_bytes -= len(vectors[index].values)
            # Inside the loop: vectors beyond the limit must not be decoded.
            if most_bytes < 0:
                raise UpstreamError(TOO_LARGE)
        # A missing vector would shift the following ones to the wrong inputs.
        if len(found) != self._inputs or sorted(vectors) != [*range(self._inputs)]:
            raise UpstreamError(INVALID_RESPONSE)
        self._usage = _usage(answer.usage)
        return [Started(), *(vectors[index] for index in range(self._inputs))]


def _values(embedding: msgspec.Raw) -> bytes:
    """Return a vector as 32-bit floats. Raises `ValueError` if it is empty or not all values are finite."""
    found = _texts_or_numbers.decode(embedding)
    values = array("f", binascii.a2b_base64(found, strict_mode=True) if isinstance(found, str) else found)
    # The sum is infinite or NaN if one of the values is; JSON has neither.
    if not values or not math.isfinite(sum(values)):
        raise ValueError("no vector")
    return values.tobytes()


def _usage(usage: object) -> Usage | None:
    """Return the usage, or None if it is missing or invalid: then this service counts."""
    if isinstance(usage, dict):
        usage = {"prompt_tokens": usage.get("total_tokens"), **usage}  # Voyage has the total only
    try:
        return Usage(msgspec.convert(usage, _Usage).prompt_tokens, 0)
    except msgspec.ValidationError:
        return None
