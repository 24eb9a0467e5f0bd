"""The responses that the golden transcripts hold, as deltas, and what reads them back.

`python -m tests.wire.response_cases` writes the transcripts anew; what has changed in them is then to be read
as a change of the wire.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from openai import Omit
from openai._models import construct_type
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent

from chatapi.wire import requests
from chatapi.wire.deltas import (
    Annotations,
    AnyDelta,
    Finished,
    Reasoning,
    Refusal,
    Started,
    Text,
    ToolCall,
    Usage,
    decode,
    encode,
)
from chatapi.wire.parsed_request import parse
from chatapi.wire.protocols import PROTOCOLS, Answer
from chatapi.wire.sse import Event, Parser
from tests.wire.dialect_cases import CITATION, FAILURE, TRANSCRIPTS, WEATHER, logprob, refused

ID = "0193ba5e0a7c7d1e8c3b5f2a9d4e6c80"
ANSWER = Answer(ID, 1_700_000_000, "m", request_id="req_1")
FOLDER = TRANSCRIPTS / "responses"
DIALECT = PROTOCOLS["responses"].dialect("")
FUNCTION = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": False}
SPACE = {"type": "namespace", "name": "town", "tools": [FUNCTION]}
END: list[AnyDelta] = [Finished("stop"), Usage(12, 18, completed_at=ANSWER.created + 2)]
TIME = ToolCall(1, "{}", "call_2", "get_time")
PATCH = ToolCall(0, "*** Begin", "call_1", "apply_patch", kind="custom")

CASES: dict[str, list[AnyDelta]] = {
    "text": [Started(), Text("Packets "), Text("in flight"), *END],
    "empty": [Started(), Finished("stop"), Usage(12, 0)],
    "tool-call": [Started(), *WEATHER, Finished("tool_calls"), Usage(12, 18)],
    "text-and-calls": [Started(), Text("Let me see."), *WEATHER, TIME, Finished("tool_calls"), Usage(12, 18)],
    "interleaved-calls": [Started(), *WEATHER[:2], TIME, WEATHER[2], Finished("tool_calls"), Usage(12, 18)],
    "custom-call": [Started(), PATCH, ToolCall(0, " Patch", kind="custom"), Finished("tool_calls"), *END[1:]],
    "namespaced-call": [
        Started(),
        ToolCall(0, "{}", "call_1", "town__get_weather"),
        Finished("tool_calls"),
        *END[1:],
    ],
    "reasoning": [Started(), Reasoning("Let me "), Reasoning("think."), Text("42"), *END],
    "reasoning-summary": [Started(), Reasoning("Let me "), Reasoning("think."), Text("42"), *END],
    "refusal": [Started(), Text("Well. "), Refusal("I can't "), Refusal("help."), *END],
    "annotations": [Started(), Text("It is sunny."), Annotations([CITATION]), *END],
    "logprobs": [Started(), Text("Hi", logprobs=[logprob("Hi", -0.25, ("Hi", -0.25), ("Ho", -2.5))]), *END],
    "length": [Started(None, "flex"), Text("Once upon"), Finished("length"), Usage(12, 18, 8, 6)],
    "length-in-a-call": [Started(), *WEATHER[:2], Finished("length"), *END[1:]],
    "content-filter": [Started(), Text("Once"), Finished("content_filter"), *END[1:]],
    "cancelled": [Started(), Text("Once"), Finished("stop", is_cancelled=True), *END[1:]],
    "background": [Started(), Text("Hi"), *END],
    "cache": [Started(), Text("Hi"), Finished("stop"), Usage(12, 18, 4, 6, cache_write_tokens=5)],
    "failure": [Started(), Text("Packets "), FAILURE],
    "failure-in-a-call": [Started(), *WEATHER[:2], FAILURE],
    "failure-behind-a-call": [Started(), *WEATHER[:2], TIME, Text("Wait."), FAILURE],
    "cut": [Started(), Text("Packets "), *END[1:]],
    "cut-in-a-call": [Started(), *WEATHER[:2], TIME, *END[1:]],
}
ASKED: dict[str, dict[str, Any]] = {
    "tool-call": {
        "tools": [FUNCTION],
        "tool_choice": "required",
        "instructions": "Be brief.",
        "store": False,
    },
    "namespaced-call": {"tools": [SPACE]},
    "reasoning-summary": {"reasoning": {"effort": "low", "summary": "auto"}},
    "background": {"background": True, "metadata": {"a": "b"}},
}


def asked(**members: Any) -> Any:
    """Return the generation request of a body with these members."""
    body = {"model": "m", "input": "hi"} | members
    return requests.from_bytes(parse(json.dumps(body).encode(), "responses", None).content)


def deltas(name: str) -> list[AnyDelta]:
    """Return the case's deltas after they have crossed Redis; the first has the repeated parameters of its
    request.
    """
    (first, *rest) = CASES[name]
    assert isinstance(first, Started)
    context = asked(**ASKED.get(name, {})).context
    return decode(encode([Started(first.system_fingerprint, first.service_tier, context), *rest]))


def stream(of: Sequence[AnyDelta]) -> bytes:
    assert DIALECT.encoder is not None
    return DIALECT.encoder(ANSWER).encode(of)


def body(of: Sequence[AnyDelta]) -> bytes:
    folder = DIALECT.folder(ANSWER)
    for delta in of:
        folder.add(delta)
    whole = folder.body()
    assert isinstance(whole, bytes)
    return whole


def events(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(event.data) for event in Parser().feed(data)]


def frames(data: bytes) -> list[Event]:
    return Parser().feed(data)


def read_by_sdk(data: bytes) -> Any:
    """Return the result of openai-python's accumulator."""
    state: ResponseStreamState[object] = ResponseStreamState(input_tools=[], text_format=Omit())
    for event in events(data):
        state.handle_event(construct_type(type_=ResponseStreamEvent, value=event))  # type: ignore[arg-type]
    return state._completed_response


def has_failed(name: str) -> bool:
    return not any(isinstance(delta, Finished) for delta in CASES[name])


def transcripts() -> Iterator[tuple[Path, bytes]]:
    """Yield each golden file and its content."""
    for name in CASES:
        yield FOLDER / f"{name}.sse", stream(deltas(name))
        if not has_failed(name):
            yield FOLDER / f"{name}.json", body(deltas(name)) + b"\n"
    yield refused(FOLDER, DIALECT, FAILURE)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, content in transcripts():
        path.write_bytes(content)
