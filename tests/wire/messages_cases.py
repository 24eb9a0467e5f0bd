"""The answers of Messages that the golden transcripts hold, as deltas.

`python -m tests.wire.messages_cases` writes the transcripts anew; what has changed in them is then to be read
as a change of the wire.
"""

from collections.abc import Iterator
from pathlib import Path

from chatapi.wire.deltas import (
    AnyDelta,
    Failed,
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
from chatapi.wire.protocols import Answer
from chatapi.wire.protocols.messages import MESSAGES
from tests.wire.dialect_cases import TRANSCRIPTS, refused

FOLDER = TRANSCRIPTS / "messages"
ANSWER = Answer("0193ba5e0a7c7d1e8c3b5f2a9d4e6c80", 1_700_000_000, "claude-like", request_id="req_1")
FAILURE = Failed("The upstream is overloaded or down.", code="upstream_unavailable", status=503)
STARTED = Started(prompt_tokens=11)
STOPPED: list[AnyDelta] = [Finished("stop"), Usage(12, 18)]
CALLED: list[AnyDelta] = [Finished("tool_calls"), Usage(12, 18)]
WEATHER: list[AnyDelta] = [
    ToolCall(0, "", "call_1", "get_weather"),
    ToolCall(0, '{"city":'),
    ToolCall(0, '"Tokyo"}'),
]
TIME: list[AnyDelta] = [ToolCall(1, '{"zone"', "call_2", "get_time"), ToolCall(1, ':"JST"}')]

CASES: dict[str, list[AnyDelta]] = {
    "text": [STARTED, Text("Packets "), Text("in flight"), *STOPPED],
    "tool-call": [STARTED, Text("Let me see."), *WEATHER, *CALLED],
    "tool-calls": [STARTED, *WEATHER, *TIME, *CALLED],
    "tool-calls-interleaved": [STARTED, WEATHER[0], TIME[0], WEATHER[1], TIME[1], WEATHER[2], *CALLED],
    "tool-call-and-text": [STARTED, *WEATHER[:2], Text("Let me "), WEATHER[2], Text("see."), *CALLED],
    "tool-call-without-arguments": [STARTED, ToolCall(0, "", "call_1", "now"), *STOPPED],
    "tool-call-cut": [STARTED, *WEATHER[:2], Finished("length"), Usage(12, 18)],
    "tool-call-long-name": [
        Started(context={"tools": {"short_0123abcd": "a-name-that-was-too-long"}}),
        ToolCall(0, "{}", "call_1", "short_0123abcd"),
        *CALLED,
    ],
    "reasoning": [STARTED, Reasoning("Hm, "), Reasoning("yes."), Text("42"), *STOPPED],
    "refusal": [STARTED, Refusal("I can't help with that."), *STOPPED],
    "content-filter": [STARTED, Text("Once"), Finished("content_filter"), Usage(12, 18)],
    "length": [STARTED, Text("Once"), Finished("length"), Usage(12, 18)],
    "window-full": [STARTED, Text("Once"), Finished("length", is_window_full=True), Usage(12, 18)],
    "thinking-signed": [
        STARTED,
        *(Reasoning("Hm."), Reasoning("", signature="c2ln")),
        *(Reasoning("", redacted="eA=="), Reasoning("", signature="b21pdHRlZA==")),
        Text("42"),
        *STOPPED,
    ],
    "stop-sequence": [STARTED, Text("1 2"), Finished("stop", stop_sequence="3"), Usage(12, 18)],
    "empty": [STARTED, Finished("stop"), Usage(12, 0)],
    "cancelled": [STARTED, *WEATHER[:2], Finished("stop", is_cancelled=True), Usage(12, 18)],
    "usage-kinds": [
        STARTED,
        Text("42"),
        Finished("stop"),
        Usage(100, 18, 50, 6, cache_write_tokens=30, cache_write_1h_tokens=10),
    ],
    "failure": [STARTED, Text("Packets "), FAILURE],
    "failure-in-a-tool-call": [STARTED, *WEATHER[:2], TIME[0], FAILURE],
    "failure-behind-a-tool-call": [STARTED, *WEATHER[:2], *TIME, Text("Wait."), FAILURE],
    "cut": [STARTED, Text("Packets "), Usage(12, 18)],
    "cut-in-a-tool-call": [STARTED, *WEATHER[:2], TIME[0], Usage(12, 18)],
}


def has_failed(deltas: list[AnyDelta]) -> bool:
    return not any(isinstance(delta, Finished) for delta in deltas)


def stream(deltas: list[AnyDelta]) -> bytes:
    """Return the answer as a stream, after its deltas have crossed Redis."""
    encoder = MESSAGES.dialect("").encoder
    assert encoder is not None
    return encoder(ANSWER).encode(decode(encode(deltas)))


def body(deltas: list[AnyDelta]) -> bytes:
    """Return the answer in one piece."""
    folder = MESSAGES.dialect("").folder(ANSWER)
    for delta in decode(encode(deltas)):
        folder.add(delta)
    found = folder.body()
    return found if isinstance(found, bytes) else b"".join(found)


def transcripts() -> Iterator[tuple[Path, bytes]]:
    """Yield each golden file and its content."""
    for name, deltas in CASES.items():
        yield FOLDER / f"{name}.sse", stream(deltas)
        if not has_failed(deltas):
            yield FOLDER / f"{name}.json", body(deltas) + b"\n"
    yield refused(FOLDER, MESSAGES.dialect(""), FAILURE)


if __name__ == "__main__":
    for path, content in transcripts():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
