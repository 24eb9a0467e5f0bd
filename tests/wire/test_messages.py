"""What Messages writes: the golden transcripts byte for byte, and what Anthropic's own SDK, which accumulates
a stream strictly in order, reads of them.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import Anthropic
from anthropic.types import Message, MessageParam
from hypothesis import given, settings
from hypothesis import strategies as st

from chatapi.wire.deltas import (
    AnyDelta,
    Failed,
    Finished,
    FinishReason,
    Reasoning,
    Refusal,
    Started,
    Text,
    ToolCall,
    Usage,
)
from chatapi.wire.protocols.envelope import END_LOST
from chatapi.wire.protocols.messages import MESSAGES
from chatapi.wire.sse import Parser
from tests.wire.folding import collect
from tests.wire.messages_cases import (
    ANSWER,
    CASES,
    FAILURE,
    FOLDER,
    STARTED,
    body,
    has_failed,
    stream,
    transcripts,
)

GOLDEN = dict(transcripts())
WHOLE = [name for name, deltas in CASES.items() if not has_failed(deltas)]
HELLO: list[MessageParam] = [{"role": "user", "content": "hello"}]


def sdk(answer: bytes, content_type: str, size: int) -> Anthropic:
    """Return the SDK with a server whose answer arrives in reads of `size` bytes."""

    def pieces() -> Iterator[bytes]:
        return (answer[start : start + size] for start in range(0, len(answer), size))

    def respond(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": content_type}, content=pieces())

    client = httpx2.Client(transport=httpx2.MockTransport(respond))
    return Anthropic(api_key="k", base_url="http://server", http_client=client, max_retries=0)


def streamed(deltas: list[AnyDelta], size: int) -> Message:
    with (
        sdk(stream(deltas), "text/event-stream", size) as client,
        client.messages.stream(model="m", max_tokens=9, messages=HELLO) as reading,
    ):
        return reading.get_final_message()


def whole(deltas: list[AnyDelta]) -> Message:
    with sdk(body(deltas), "application/json", 1_000) as client:
        return client.messages.create(model="m", max_tokens=9, messages=HELLO)


def said(message: Message) -> dict[str, Any]:
    """Return the content of a message, however it is cut into blocks; a stream's end has no
    `cache_creation`.
    """
    found: dict[str, Any] = message.to_dict()
    usage = {name: value for name, value in found["usage"].items() if name != "cache_creation"}
    return {
        "text": "".join(block.text for block in message.content if block.type == "text"),
        "thinking": "".join(block.thinking for block in message.content if block.type == "thinking"),
        "calls": {
            block.id: (block.name, block.input) for block in message.content if block.type == "tool_use"
        },
        "end": (message.stop_reason, message.stop_sequence, message.stop_details),
        "usage": {name: value for name, value in usage.items() if value is not None},
    }


# ---- transcripts


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_an_answer_is_the_golden_transcript(path: Path) -> None:
    assert GOLDEN[path].decode() == path.read_bytes().decode()


def test_every_transcript_is_some_cases() -> None:
    assert set(FOLDER.iterdir()) == set(GOLDEN)


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("case", WHOLE)
def test_the_sdk_reads_the_same_in_a_stream_and_in_one_message(case: str, size: int) -> None:
    read = said(streamed(CASES[case], size))
    message = said(whole(CASES[case]))
    if case in {"tool-call-cut", "cancelled"}:  # the SDK keeps what parses of an input
        message["calls"] = read["calls"]
    assert read == message


@pytest.mark.parametrize("case", [name for name in CASES if name not in WHOLE])
def test_the_sdk_raises_what_breaks_a_stream(case: str) -> None:
    failure = END_LOST if case.startswith("cut") else FAILURE
    with pytest.raises(anthropic.APIStatusError) as raised:
        streamed(CASES[case], 7)
    assert raised.value.body == {
        "type": "error",
        "error": {
            "type": "overloaded_error",
            "message": failure.message,
            "details": {"error_code": failure.code},
        },
        "request_id": "req_1",
    }


@pytest.mark.parametrize("case", ["cut", "cut-in-a-tool-call"])
def test_a_usage_without_the_end_of_the_answer_is_an_error(case: str) -> None:
    """The usage is charged, so it comes before the error, without a reason for an end."""
    (*_, delta, error) = [json.loads(each.data) for each in Parser().feed(stream(CASES[case]))]
    assert (delta["type"], error["type"]) == ("message_delta", "error")
    assert delta["delta"] == {"stop_reason": None, "stop_sequence": None}
    assert (delta["usage"]["input_tokens"], delta["usage"]["output_tokens"]) == (12, 18)
    folder = MESSAGES.dialect("").folder(ANSWER)
    for each in CASES[case]:
        folder.add(each)
    assert folder.failure == END_LOST


def test_a_call_is_sent_as_it_comes_unless_another_is_incomplete() -> None:
    encoder = MESSAGES.dialect("").encoder
    assert encoder is not None
    from tests.wire.messages_cases import TIME, WEATHER

    writing = encoder(ANSWER)
    writing.encode([STARTED])
    assert b"partial_json" in writing.encode(WEATHER[:2])
    assert writing.encode(TIME) == b""
    assert b"partial_json" in writing.encode(WEATHER[2:])
    behind = encoder(ANSWER)
    behind.encode([STARTED, *WEATHER])
    assert behind.encode(TIME).count(b"partial_json") == 2


# ---- any answer

texts = st.text(max_size=6) | st.sampled_from(["\u2028", "\r\n\n", "event: error\n\n", '"}\\', "\x1b"])
inputs = st.dictionaries(texts, texts | st.integers(-5, 5) | st.dictionaries(texts, texts, max_size=1))


@st.composite
def calls(draw: st.DrawFn, number: int) -> list[AnyDelta]:
    """Generate a call whose arguments come in pieces."""
    arguments = json.dumps(draw(inputs))
    cuts = sorted(draw(st.lists(st.integers(0, len(arguments)), max_size=4)))
    ends = [*cuts, len(arguments)]
    pieces = [arguments[start:end] for start, end in zip([0, *cuts], ends, strict=True)]
    first, *rest = pieces
    return [
        ToolCall(number, first, f"call_{number}", "tool"),
        *(ToolCall(number, piece) for piece in rest),
    ]


@st.composite
def answers(draw: st.DrawFn) -> list[AnyDelta]:
    """Generate a whole answer: texts and up to three calls, interleaved."""
    kinds = st.sampled_from([Text, Reasoning, Refusal])
    shown: list[list[AnyDelta]] = [[draw(kinds)(draw(texts))] for _ in range(draw(st.integers(0, 5)))]
    shown += [draw(calls(number)) for number in range(draw(st.integers(0, 3)))]
    turns = draw(st.permutations([index for index, deltas in enumerate(shown) for _ in deltas]))
    queues = [iter(deltas) for deltas in shown]
    prompt = draw(st.integers(0, 10**6))
    read = draw(st.integers(0, prompt))
    written = draw(st.integers(0, prompt - read))
    reasons: list[FinishReason] = ["stop", "length", "tool_calls", "content_filter"]
    return [
        Started(prompt_tokens=draw(st.none() | st.integers(0, 99))),
        *(next(queues[index]) for index in turns),
        Finished(draw(st.sampled_from(reasons)), stop_sequence=draw(st.none() | texts)),
        Usage(
            prompt, draw(st.integers(0, 99)), read, draw(st.none() | st.just(0)), cache_write_tokens=written
        ),
    ]


@given(answers())
def test_a_stream_that_breaks_off_says_all_that_the_deltas_say(deltas: list[AnyDelta]) -> None:
    """It is charged, though some of it was held back."""
    *content, _, _ = deltas
    encoder = MESSAGES.dialect("").encoder
    assert encoder is not None
    events = [json.loads(each.data) for each in Parser().feed(encoder(ANSWER).encode([*content, FAILURE]))]
    assert events[-1]["type"] == "error"
    said: dict[str, str] = {}
    names: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(names)
            block = event["content_block"]
            names[event["index"]] = block.get("id", block["type"])
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(names) - 1
            piece = next(value for name, value in event["delta"].items() if name != "type")
            said[names[event["index"]]] = said.get(names[event["index"]], "") + piece
    texts = [Text(delta.text) if isinstance(delta, Refusal) else delta for delta in content]
    choice = collect(texts).choice(0)
    expected = {"text": choice.text or "", "thinking": choice.reasoning or ""}
    expected |= {call.id: call.arguments for call in choice.tool_calls.values()}
    assert {key: text for key, text in said.items() if text} == {
        key: text for key, text in expected.items() if text
    }


@settings(max_examples=150)
@given(answers(), st.integers(1, 400))
def test_the_sdk_reads_any_answer_the_same_in_a_stream_and_in_one_message(
    deltas: list[AnyDelta], size: int
) -> None:
    read = said(streamed(deltas, size))
    assert read == said(whole(deltas))
    usage, used = deltas[-1], read["usage"]
    assert isinstance(usage, Usage)
    kinds = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    assert sum(used[kind] for kind in kinds) == usage.prompt_tokens


# ---- errors


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [
        (Failed("m", status=400), 400, "invalid_request_error"),
        (Failed("m", status=401), 401, "authentication_error"),
        (Failed("m", status=402, code="insufficient_quota"), 402, "billing_error"),
        (Failed("m", status=403), 403, "permission_error"),
        (Failed("m", status=404), 404, "not_found_error"),
        (Failed("m", status=413), 413, "request_too_large"),
        (Failed("m", status=422), 422, "invalid_request_error"),
        (Failed("m", status=429, retry_after_ms=1), 429, "rate_limit_error"),
        (Failed("m", status=500), 500, "api_error"),
        (Failed("m", status=502), 502, "api_error"),
        (Failed("m", status=503), 529, "overloaded_error"),
        (Failed("m", status=504), 504, "timeout_error"),
    ],
)
def test_every_failure_has_anthropics_status_and_type(failure: Failed, status: int, kind: str) -> None:
    answer = MESSAGES.dialect("").envelope(failure, request_id="req_1")
    document = json.loads(answer.body)
    assert (answer.status, document["type"], document["request_id"]) == (status, "error", "req_1")
    assert (document["error"]["type"], document["error"]["message"]) == (kind, "m")
    assert ((b"x-should-retry", b"false") in answer.headers) == (status == 402)


@pytest.mark.parametrize(
    ("message", "param", "shown"),
    [
        ("Unsupported value: 'stop'.", "stop", "Unsupported value: 'stop_sequences'."),
        ("Invalid schema.", "response_format", "output_config.format: Invalid schema."),
        ("Invalid value for 'messages[0]': no.", "messages[0]", "Invalid value for 'messages[0]': no."),
    ],
)
def test_a_refusal_names_the_clients_own_parameter(message: str, param: str, shown: str) -> None:
    """Anthropic's errors have no member for it."""
    refused = Failed(message, "invalid_request_error", param=param, status=400)
    assert json.loads(MESSAGES.dialect("").envelope(refused).body)["error"]["message"] == shown
    assert f'"message":{json.dumps(shown)}'.encode() in stream([STARTED, refused])


def test_a_name_that_came_twice_is_shown_as_the_client_wrote_it() -> None:
    """It may be one inside of a parameter, such as a property of a tool's schema."""
    message = "Duplicate parameter: 'user'."
    refused = Failed(message, "invalid_request_error", "duplicate_parameter", "user", 400)
    assert json.loads(MESSAGES.dialect("").envelope(refused).body)["error"]["message"] == message


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("The context is full.", "prompt is too long: The context is full."),
        ("prompt is too long: 9 tokens > 8 maximum", "prompt is too long: 9 tokens > 8 maximum"),
        ("Prompt is too long", "Prompt is too long"),
        ("input length and `max_tokens` exceed context limit: 9 + 9 > 8",) * 2,
    ],
)
def test_a_full_context_has_the_words_by_which_claude_code_compacts(message: str, shown: str) -> None:
    failure = Failed(message, code="context_length_exceeded", status=400)
    answer = MESSAGES.dialect("").envelope(failure)
    assert json.loads(answer.body)["error"]["message"] == shown
    assert f'"message":{json.dumps(shown)}'.encode() in stream([STARTED, failure])
