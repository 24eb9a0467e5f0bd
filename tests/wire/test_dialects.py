"""Dialects write the golden transcripts, byte for byte; the seeds' own examples are among them."""

import json
from pathlib import Path

import pytest

from chatapi.wire.deltas import (
    AnyDelta,
    Failed,
    Finished,
    Reasoning,
    Refusal,
    Started,
    Text,
    TokenLogprob,
    ToolCall,
    TopLogprob,
    Usage,
    collect,
    decode,
    encode,
)
from chatapi.wire.dialects import DIALECTS, Answer, UnknownDialect, choose

TRANSCRIPTS = Path(__file__).parent.parent / "transcripts"
SEED_MODEL = "google/gemini-3-flash"
PACKETS: list[AnyDelta] = [Started(), Text("Packets "), Text("in flight"), Finished("stop"), Usage(12, 18)]
FAILURE = Failed("The upstream closed the connection.", "server_error", "upstream_disconnected")

CASES: dict[str, list[AnyDelta]] = {
    "text": PACKETS,
    "details": [Started("fp_1"), Reasoning("Hm."), Text("42"), Finished("length"), Usage(12, 18, cached_tokens=8, reasoning_tokens=6)],
    "tool-calls": [
        Started(),
        ToolCall(0, "", "call_1", "get_weather"),
        ToolCall(0, '{"city":'),
        ToolCall(0, '"Tokyo"}'),
        ToolCall(1, "ls -l", "call_2", "shell", kind="custom"),
        Finished("tool_calls"),
        Usage(12, 18),
    ],
    "refusal": [Started(), Refusal("I can't help with that."), Finished("content_filter"), Usage(12, 18)],
    "escapes": [Started(), Text('"\\\n\u0000\u2028é😀</script>'), Finished("stop"), Usage(12, 18)],
    "logprobs": [
        Started(),
        Text("Hi", logprobs=[TokenLogprob("Hi", -0.25, [72, 105], [TopLogprob("Hi", -0.25, [72, 105])])]),
        Finished("stop"),
        Usage(12, 1),
    ],
    "failure": [Started(), Text("Packets "), FAILURE],
}


def transcript(dialect: str, deltas: list[AnyDelta], **answer: object) -> bytes:
    given = {"id": "1", "created": 1_700_000_000, "model": SEED_MODEL} | answer
    return DIALECTS[dialect](Answer(**given)).encode(decode(encode(deltas)))  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stream_is_the_golden_transcript(dialect: str, case: str) -> None:
    golden = TRANSCRIPTS / dialect / f"{case}.sse"
    assert transcript(dialect, CASES[case]).decode() == golden.read_bytes().decode()


def test_the_canonical_usage_chunk_is_opt_in_and_null_elsewhere() -> None:
    golden = TRANSCRIPTS / "openai" / "include-usage.sse"
    assert transcript("openai", PACKETS, include_usage=True).decode() == golden.read_bytes().decode()


def test_several_choices_are_announced_in_order_and_interleaved() -> None:
    deltas: list[AnyDelta] = [Started(), Text("a", 0), Text("b", 1), Finished("stop", 1), Finished("length", 0), Usage(1, 2)]
    golden = TRANSCRIPTS / "openai" / "two-choices.sse"
    assert transcript("openai", deltas, choices_count=2).decode() == golden.read_bytes().decode()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", [case for case in CASES if case != "failure"])
def test_a_body_holds_what_the_stream_holds(dialect: str, case: str) -> None:
    body = json.loads(DIALECTS[dialect](Answer("1", 1, "m")).body(collect(CASES[case])))
    chunks = [json.loads(line[6:]) for line in transcript(dialect, CASES[case]).decode().split("\n") if line.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    message, finish = body["choices"][0]["message"], body["choices"][0]["finish_reason"]
    assert (message["content"] or "") == "".join(choice["delta"].get("content", "") for choice in choices)
    assert finish == choices[-1]["finish_reason"]
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]


def test_an_error_body_has_the_four_members_of_the_envelope() -> None:
    body = json.loads(DIALECTS["openai"].error_body(FAILURE))
    assert body == {"error": {"message": FAILURE.message, "type": "server_error", "param": None, "code": "upstream_disconnected"}}


def test_the_first_wish_that_is_not_empty_chooses_the_dialect() -> None:
    assert choose("", "openai", "opentoken").name == "openai"
    assert choose("opentoken", "openai", "").name == "opentoken"
    with pytest.raises(UnknownDialect, match="klingon"):
        choose("klingon", "openai")
