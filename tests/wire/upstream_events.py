"""Events as upstreams send them, and the deltas that they are read into."""

import json
from typing import Any

import pytest

from chatapi.wire.deltas import AnyDelta
from chatapi.wire.sse import Event
from chatapi.wire.upstream.chunks import ChunkReader
from chatapi.wire.upstream.upstream_errors import UpstreamError
from tests.wire.folding import collect


def new_reader(choices: int = 1, max_chunks: int = 1000) -> ChunkReader:
    return ChunkReader(choices=choices, max_chunks=max_chunks)


def event(document: Any, event_type: str = "message") -> Event:
    return Event(json.dumps(document).encode(), event_type)


def chunk(delta: dict[str, Any] | None = None, finish_reason: str | None = None, **more: Any) -> Event:
    return event({"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish_reason}], **more})


DONE = Event(b"[DONE]")
STOP = chunk(finish_reason="stop")


def read(*events: Event, reader: ChunkReader | None = None) -> list[AnyDelta]:
    """Return all deltas of a whole stream; raises the error of an incomplete one."""
    reader = reader or new_reader()
    return [delta for one in events for delta in reader.read([one])] + reader.end()


def failure_code(*events: Event) -> str | None:
    with pytest.raises(UpstreamError) as raised:
        read(*events)
    return raised.value.failure.code


def tools(*fragments: dict[str, Any]) -> Event:
    return chunk({"tool_calls": list(fragments)})


def call(arguments: str = "", name: str | None = None, **more: Any) -> dict[str, Any]:
    return {"function": {"arguments": arguments, **({"name": name} if name else {})}, **more}


def collected(*events: Event) -> list[tuple[int, str, str, str]]:
    calls = collect(read(*events, chunk(finish_reason="tool_calls"))).choice(0).tool_calls
    return [(number, one.id, one.name, one.arguments) for number, one in calls.items()]
