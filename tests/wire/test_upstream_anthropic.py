"""An Anthropic upstream: what it is asked, and that its streams become the deltas that made them."""

import base64
import json
import re
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chatapi.wire.deltas import AnyDelta, Finished, Reasoning, Refusal, Started, Text, ToolCall, Usage
from chatapi.wire.protocols.messages.request import parse as parse_messages
from chatapi.wire.upstream import anthropic_request, openai_request
from chatapi.wire.upstream.anthropic_request import messages_body
from chatapi.wire.upstream.chunks import ChunkReader
from chatapi.wire.upstream.http_api import ANTHROPIC
from chatapi.wire.upstream.upstream_errors import DISCONNECTED, INVALID_RESPONSE, UNAVAILABLE, UpstreamError
from tests.wire.folding import collect
from tests.wire.messages_cases import CASES, has_failed, stream
from tests.wire.request_bodies import CUSTOM, FUNCTION, chat, text
from tests.wire.test_messages import answers
from tests.wire.test_messages_requests import CONVERSATIONS
from tests.wire.test_requests_forwarding import EVERYTHING

OPTIONS: dict[str, Any] = {
    "model": "up",
    "max_output_tokens": 9,
    "extra_parameters": frozenset({"thinking", "top_k", "cache_control", "min_p"}),
}
SCHEMA = {"type": "object"}


def read(body: bytes, size: int = 100_000) -> list[AnyDelta]:
    """Return the deltas of a stream that arrives in reads of `size` bytes."""
    parser, reader = ANTHROPIC.parser(), ChunkReader(choices=1, max_chunks=1_000, stop_sequences=["3"])
    deltas: list[AnyDelta] = []
    for start in range(0, len(body), size):
        deltas += reader.read(parser.feed(body[start : start + size]))
    return deltas + reader.read_rest(parser.close()) + reader.end()


def said(deltas: list[AnyDelta]) -> dict[str, Any]:
    choice = collect(deltas).choice(0)
    calls = {call.id: (call.name, json.loads(call.arguments or "{}")) for call in choice.tool_calls.values()}
    spoken = "".join(delta.text for delta in deltas if isinstance(delta, Text | Refusal))
    return {"text": spoken, "reasoning": choice.reasoning or "", "calls": calls}


# ---- streams


@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize("case", [name for name, deltas in CASES.items() if not has_failed(deltas)])
def test_a_stream_becomes_the_deltas_that_made_it(case: str, size: int) -> None:
    if case in {"tool-call-long-name", "tool-call-cut", "cancelled"}:
        return
    found = read(stream(CASES[case]), size)
    assert said(found) == said(CASES[case])
    expected = CASES[case][-1]
    assert isinstance(expected, Usage)
    usage = found[-1]
    assert isinstance(usage, Usage)
    assert (usage.prompt_tokens, usage.completion_tokens) == (
        expected.prompt_tokens,
        expected.completion_tokens,
    )


@settings(max_examples=80)
@given(answers(), st.integers(1, 400))
def test_so_does_any(deltas: list[AnyDelta], size: int) -> None:
    assert said(read(stream(deltas), size)) == said(deltas)


def test_every_kind_of_input_is_counted() -> None:
    assert read(stream(CASES["usage-kinds"]))[-1] == Usage(
        100, 18, 50, 6, cache_write_tokens=30, cache_write_1h_tokens=10
    )


def test_why_it_ended() -> None:
    ends = {
        case: [delta for delta in read(stream(CASES[case])) if isinstance(delta, Finished)]
        for case in ("text", "length", "window-full", "tool-call", "refusal", "stop-sequence")
    }
    assert ends == {
        "text": [Finished("stop")],
        "length": [Finished("length")],
        "window-full": [Finished("length", is_window_full=True)],
        "tool-call": [Finished("tool_calls")],
        "refusal": [Finished("content_filter")],
        "stop-sequence": [Finished("stop", stop_sequence="3")],
    }


def event(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind} | members)}\n\n".encode()


def test_what_is_new_or_nothing_is_passed_over() -> None:
    body = b"".join(
        [
            event("message_start", message={"usage": {"input_tokens": 3, "cache_read_input_tokens": 2}}),
            event("ping"),
            event("content_block_start", index=0, content_block={"type": "server_tool_use", "id": "x"}),
            event("content_block_start", index=1, content_block={"type": "text", "text": ""}),
            event("content_block_delta", index=1, delta={"type": "text_delta", "text": "a"}),
            event("content_block_delta", index=1, delta={"type": "citations_delta", "citation": {}}),
            event("content_block_delta", index=1, delta={"type": "news"}),
            event("news"),
            event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 1}),
            event("message_stop"),
        ]
    )
    assert read(body)[1:] == [Text("a"), Finished("stop"), Usage(5, 1, 2)]


def test_null_is_the_same_as_nothing() -> None:
    """Anthropic sends no nulls here; its SDKs read those of other servers."""
    names = ("text", "thinking", "signature", "partial_json", "stop_reason", "data", "id", "name", "input")
    nothing, call = dict.fromkeys(names), {"type": "tool_use", "id": "b", "name": "f"}
    body = b"".join(
        [
            event("message_start", message={"usage": {"input_tokens": 5}}, delta=None, content_block=None),
            event("content_block_start", content_block=nothing | {"type": "text", "text": ""}, message=None),
            event("content_block_delta", delta=nothing | {"type": "text_delta", "text": "a"}),
            event("content_block_delta", delta=nothing | {"type": "text_delta"}),
            event("content_block_delta", delta=nothing | {"type": "signature_delta"}),
            event("content_block_delta", delta=None),
            event("content_block_start", content_block=nothing | call),
            event("content_block_delta", delta=nothing | {"type": "input_json_delta"}),
            event("message_delta", delta=nothing | {"stop_reason": "tool_use"}, usage={"output_tokens": 3}),
            event("message_delta", delta=None, usage=None),
            event("message_stop"),
        ]
    )
    called = [ToolCall(0, "", "b", "f"), ToolCall(0, "{}"), Finished("tool_calls"), Usage(5, 3)]
    assert read(body)[1:] == [Text("a"), *called]


def test_a_beginning_without_a_message_has_no_usage_of_another_stream() -> None:
    text = event("content_block_delta", index=0, delta={"type": "text_delta", "text": "a"})
    end = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 7})
    other = end.replace(b'"output_tokens"', b'"input_tokens": 9, "output_tokens"')
    assert read(event("message_start") + text + other)[-1] == Usage(9, 7)
    assert read(event("message_start") + text + end)[-1] == Finished("stop")


@pytest.mark.parametrize("usage", [None, [], "9"])
def test_a_usage_of_another_type_spoils_no_answer(usage: object) -> None:
    beginning = event("message_start", message={"usage": usage})
    text = event("content_block_delta", index=0, delta={"type": "text_delta", "text": "a"})
    end = event("message_delta", delta={"stop_reason": "end_turn"}, usage=usage) + event("message_stop")
    assert read(beginning + text + end) == [Started(), Text("a"), Finished("stop")]


@pytest.mark.parametrize("usage", [{}, {"usage": {"output_tokens": None}}])
def test_the_beginnings_figure_is_not_the_answers(usage: dict[str, Any]) -> None:
    body = b"".join(
        [
            event("message_start", message={"usage": {"input_tokens": 5, "output_tokens": 1}}),
            event("content_block_start", content_block={"type": "text", "text": "Many tokens, not one."}),
            event("message_delta", delta={"stop_reason": "end_turn"}, **usage),
            event("message_stop"),
        ]
    )
    assert isinstance(read(body)[-1], Finished)  # so we count


@pytest.mark.parametrize(("data", "text"), [(b"a\xff", "a\ufffd"), (b"a\\ud83d", "a?")])
def test_half_characters_are_replaced(data: bytes, text: str) -> None:
    delta = b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"' + data + b'"}}\n\n'
    assert ChunkReader(choices=1, max_chunks=9).read(ANTHROPIC.parser().feed(delta)) == [
        Started(),
        Text(text),
    ]


def test_what_nests_too_deeply_is_no_event() -> None:
    deep = b'data: {"type":"message_delta","usage":' + b"[" * 100_000 + b"\n\n"
    reader = ChunkReader(choices=1, max_chunks=9)
    assert reader.read(ANTHROPIC.parser().feed(deep)) == []
    assert reader.failure is INVALID_RESPONSE


def test_the_prompts_figures_come_before_the_answer() -> None:
    """So they are charged if the answer is cut off: nobody else can count pictures."""
    sent = {"input_tokens": 3, "cache_read_input_tokens": 2, "output_tokens": 1}
    beginning = [
        event("message_start", message={"usage": sent}),
        event("content_block_delta", index=0, delta={"type": "text_delta", "text": "a"}),
    ]
    found = ChunkReader(choices=1, max_chunks=9).read(ANTHROPIC.parser().feed(b"".join(beginning)))
    assert found == [Started(prompt_usage=Usage(5, 0, 2)), Text("a")]


@pytest.mark.parametrize(
    ("tail", "failure"),
    [
        (b"", DISCONNECTED),
        (b"data: {]}\n\n", INVALID_RESPONSE),
        (event("error", error={"type": "overloaded_error", "message": "Overloaded"}), UNAVAILABLE),
    ],
)
def test_a_stream_that_breaks_off_is_a_failure(tail: bytes, failure: object) -> None:
    head = event("content_block_delta", index=0, delta={"type": "text_delta", "text": "a"})
    with pytest.raises(UpstreamError) as raised:
        read(head + tail)
    assert raised.value.failure == failure


def test_calls_and_thinking() -> None:
    body = b"".join(
        [
            event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"}),
            event("content_block_delta", index=0, delta={"type": "signature_delta", "signature": "s"}),
            event("content_block_start", index=0, content_block={"type": "redacted_thinking", "data": "x"}),
            event("content_block_start", index=1, content_block={"type": "tool_use", "id": "a", "name": "f"}),
            event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": "{}"}),
            event("content_block_start", index=2, content_block={"type": "tool_use", "id": "b", "name": "g"}),
            event("message_delta", delta={"stop_reason": "tool_use"}, usage={}),
            event("message_stop"),
        ]
    )
    assert read(body)[1:] == [
        Reasoning("hm"),
        Reasoning("", signature="s"),
        Reasoning("", redacted="x"),
        ToolCall(0, "", "a", "f"),
        ToolCall(0, "{}"),
        ToolCall(1, "", "b", "g"),
        ToolCall(1, "{}"),
        Finished("tool_calls"),
    ]


@pytest.mark.parametrize("piece", [[], [{"type": "input_json_delta", "partial_json": ""}]])
def test_a_call_without_arguments_has_an_empty_object(piece: list[dict[str, str]]) -> None:
    """Anthropic sends no piece of it, or an empty one; clients of chats decode the arguments as JSON."""
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    body = b"".join(
        [
            event("content_block_start", index=0, content_block=call),
            *(event("content_block_delta", index=0, delta=each) for each in piece),
            event("content_block_stop", index=0),
            event("content_block_start", index=1, content_block={"type": "text", "text": "b"}),
            event("content_block_stop", index=1),
            event("message_delta", delta={"stop_reason": "tool_use"}, usage={}),
            event("message_stop"),
        ]
    )
    assert read(body)[1:] == [ToolCall(0, "", "a", "f"), ToolCall(0, "{}"), Text("b"), Finished("tool_calls")]


@pytest.mark.parametrize("pieces", [[], ["", ""], ['{"city":', '"Rome"}']])
@pytest.mark.parametrize("stop_reason", ["tool_use", "max_tokens"])
def test_an_input_that_comes_with_the_beginning_of_its_call_is_read(
    pieces: list[str], stop_reason: str
) -> None:
    """Anthropic's begins empty; SDKs read the one of other servers, unless pieces follow."""
    called = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"city": "Oslo"}}
    deltas = read(
        b"".join(
            [
                event("content_block_start", index=0, content_block=called),
                *(
                    event("content_block_delta", delta={"type": "input_json_delta", "partial_json": piece})
                    for piece in pieces
                ),
                event("content_block_stop", index=0),
                event("message_delta", delta={"stop_reason": stop_reason}),
                event("message_stop"),
            ]
        )
    )
    city = "Rome" if "".join(pieces) else "Oslo"
    assert said(deltas)["calls"] == {"toolu_1": ("f", {"city": city})}


def test_a_call_that_is_cut_before_its_arguments_does_not_look_whole() -> None:
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    beginning = event("content_block_start", index=0, content_block=call)
    end = event("message_delta", delta={"stop_reason": "max_tokens"}, usage={}) + event("message_stop")
    assert read(beginning + end)[1:] == [ToolCall(0, "", "a", "f"), Finished("length")]


# ---- requests


@pytest.mark.parametrize("case", [name for name in CONVERSATIONS if name != "nothing"])
def test_a_conversation_comes_through(case: str) -> None:
    """The request of a Messages client reaches an Anthropic upstream unchanged."""
    asked = {"model": "m", "max_tokens": 9, "messages": CONVERSATIONS[case][0]}
    once = parse_messages(json.dumps(asked).encode())
    again = parse_messages(msgspec.json.encode(messages_body(once, **OPTIONS)))
    assert again.prompt == once.prompt


MARK = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def test_marks_stay_where_they_were() -> None:
    def text(content: str) -> dict[str, Any]:
        return {"type": "text", "text": content}

    use = {"type": "tool_use", "id": "1", "name": "get_weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "no", "is_error": True}
    thinking = {"type": "thinking", "thinking": "t", "signature": "s"}
    redacted = {"type": "redacted_thinking", "data": "x"}
    asked = {
        "system": [text("a") | MARK, text("b")],
        "tools": [{"name": "get_weather", "input_schema": SCHEMA} | MARK],
        "messages": [
            {"role": "user", "content": [text("c") | MARK, text("d")]},
            {"role": "assistant", "content": [thinking, redacted, text("e"), use | MARK]},
            {"role": "user", "content": [result | MARK, text("f")]},
            {"role": "system", "content": [text("g") | MARK]},
        ],
    }
    request = parse_messages(json.dumps({"model": "m", "max_tokens": 9} | asked).encode())
    body = json.loads(msgspec.json.encode(messages_body(request, **OPTIONS)))
    assert {name: body[name] for name in asked} == asked
    without = messages_body(request, **OPTIONS | {"extra_parameters": frozenset()})
    assert b"cache_control" not in msgspec.json.encode(without)


def test_marks_inside_documents_and_search_results_stay_where_they_were() -> None:
    a, b, c = ({"type": "text", "text": each} for each in "abc")
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    document = {"type": "document", "source": {"type": "content", "content": [a | MARK, picture | MARK, b]}}
    found = {"type": "search_result", "source": "s", "title": "t", "content": [a | MARK, b, c]}
    use = {"type": "tool_use", "id": "1", "name": "get_weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "1"}
    asked = [
        {"role": "user", "content": [document, document | MARK, found]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result | {"content": [document, found]}]},
    ]
    request = parse_messages(json.dumps({"model": "m", "max_tokens": 9, "messages": asked}).encode())
    body = json.loads(msgspec.json.encode(messages_body(request, **OPTIONS)))
    inside = [a | MARK, picture | MARK]
    texts = [{"type": "text", "text": "t\ns\na"} | MARK, {"type": "text", "text": "b\nc"}]
    assert body["messages"][0]["content"] == [*inside, b, *inside, b | MARK, *texts]
    answer = result | {"content": "a\nb\nt\ns\na\nb\nc"} | MARK
    assert body["messages"][2]["content"] == [answer, picture | MARK]


@pytest.mark.parametrize(
    ("openais", "members"),
    [
        (
            {"temperature": 0, "top_p": 0.5, "stop": "a"},
            {"temperature": 0.0, "top_p": 0.5, "stop_sequences": ("a",)},
        ),
        ({"user": "u"}, {"metadata": {"user_id": "u"}}),
        (
            {"tools": [FUNCTION]},
            {
                "tools": [{"name": "get_weather", "input_schema": SCHEMA}],
                "tool_choice": {"type": "auto"},
            },
        ),
        (
            {"tools": [FUNCTION], "tool_choice": "required", "parallel_tool_calls": False},
            {
                "tools": [{"name": "get_weather", "input_schema": SCHEMA}],
                "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            },
        ),
        ({"reasoning_effort": "minimal"}, {"output_config": {"effort": "low"}}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        ),
        ({"top_k": 5, "min_p": 0.1, "seed": 7}, {"top_k": 5}),
    ],
)
def test_a_parameter_is_anthropics(openais: dict[str, Any], members: dict[str, Any]) -> None:
    assert messages_body(chat(**openais), **OPTIONS) == {
        "model": "up",
        "max_tokens": 9,
        "stream": True,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}],
        **members,
    }


@pytest.mark.parametrize(("said", "texts"), [({}, ["No."]), ({"content": "a"}, ["a", "No."])])
def test_an_earlier_refusal_is_text(said: dict[str, str], texts: list[str]) -> None:
    (turn,) = messages_body(chat(messages=[{"role": "assistant", "refusal": "No."} | said]), **OPTIONS)[
        "messages"
    ]
    assert [block["text"] for block in turn["content"]] == texts


def test_white_space_before_an_earlier_call_is_left_out() -> None:
    """Anthropic refuses a text block of white space; Qwen's models write one before each call."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = {"role": "assistant", "content": "\n\n", "tool_calls": [call]}
    (turn,) = messages_body(chat(messages=[said]), **OPTIONS)["messages"]
    assert [block["type"] for block in turn["content"]] == ["tool_use"]


@pytest.mark.parametrize("content", ["", "\n\n", [{"type": "refusal", "refusal": ""}]])
def test_an_earlier_answer_without_content_is_left_out(content: object) -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": content}]
    (turn,) = messages_body(chat(messages=said), **OPTIONS)["messages"]
    assert turn["role"] == "user"


@pytest.mark.parametrize("sent", [None, {}, {"properties": {}}, {"properties": {}, "type": "object"}])
def test_a_tools_schema_has_the_type_that_anthropic_requires(sent: dict[str, Any] | None) -> None:
    function = {"name": "f"} | ({} if sent is None else {"parameters": sent})
    (tool,) = messages_body(chat(tools=[{"type": "function", "function": function}]), **OPTIONS)["tools"]
    assert tool["input_schema"] == SCHEMA | (sent or {})


def test_a_thinking_budget_is_not_sent_twice() -> None:
    thinking = {"type": "enabled", "budget_tokens": 2_000}
    asked = {"model": "m", "max_tokens": 9_000, "messages": [{"role": "user", "content": "a"}]}
    body = messages_body(parse_messages(json.dumps(asked | {"thinking": thinking}).encode()), **OPTIONS)
    assert (body["thinking"], "output_config" in body) == (thinking, False)


def test_a_budget_does_not_replace_an_effort_that_was_named() -> None:
    thinking = {"type": "enabled", "budget_tokens": 2_000}
    asked = {"model": "m", "max_tokens": 9_000, "messages": [{"role": "user", "content": "a"}]}
    asked |= {"thinking": thinking, "output_config": {"effort": "low"}}
    body = messages_body(parse_messages(json.dumps(asked).encode()), **OPTIONS)
    assert (body["thinking"], body["output_config"]) == (thinking, {"effort": "low"})


def test_thinking_of_another_type_is_left_to_the_upstream() -> None:
    assert messages_body(chat(thinking=True), **OPTIONS)["thinking"] is True


def test_a_picture_has_the_right_name_of_its_type() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/jpg;base64,AAAA"}}
    body = messages_body(chat(messages=[{"role": "user", "content": [picture]}]), **OPTIONS)
    assert body["messages"][0]["content"][0]["source"]["media_type"] == "image/jpeg"


@pytest.mark.parametrize("prefix", ["", "data:application/pdf;base64,"])
def test_a_pdf_in_base64_needs_no_type(prefix: str) -> None:
    """OpenAI's reference asks for base64, its guides for a data: URL."""
    pdf = {"type": "file", "file": {"file_data": prefix + "JVBERi0x", "filename": "a.pdf"}}
    body = messages_body(chat(messages=[{"role": "user", "content": [pdf]}]), **OPTIONS)
    source = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0x"}
    assert body["messages"][0]["content"] == [{"type": "document", "source": source, "title": "a.pdf"}]


@pytest.mark.parametrize("media_type", ["text/plain", "text/markdown", "application/json"])
def test_a_file_of_text_is_a_document_of_text(media_type: str) -> None:
    """Anthropic's API takes only PDFs in base64."""
    data = base64.b64encode('{"größe": 1}'.encode()).decode()
    file = {"file_data": f"data:{media_type};base64,{data}", "filename": "a.json"}
    body = messages_body(
        chat(messages=[{"role": "user", "content": [{"type": "file", "file": file}]}]), **OPTIONS
    )
    source = {"type": "text", "media_type": "text/plain", "data": '{"größe": 1}'}
    assert body["messages"][0]["content"] == [{"type": "document", "source": source, "title": "a.json"}]


def test_a_file_of_text_in_another_encoding_is_refused() -> None:
    file = {"file_data": "data:text/plain;base64,/w==", "filename": "a.txt"}
    with pytest.raises(UpstreamError) as raised:
        messages_body(
            chat(messages=[{"role": "user", "content": [{"type": "file", "file": file}]}]), **OPTIONS
        )
    assert (raised.value.failure.param, raised.value.failure.status) == ("messages", 400)


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (chat(n=2), "n"),
        (chat(logprobs=True), "logprobs"),
        (chat(moderation={"model": "m", "policy": {"output": {"mode": "block"}}}), "moderation"),
        (chat(tools=[CUSTOM]), "tools"),
        (chat(functions=[{"name": "f"}]), "functions"),
        (
            chat(messages=[{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]),
            "messages",
        ),
        *(
            (chat(messages=[{"role": "assistant", "content": "a"} | member]), "messages")
            for member in ({"function_call": {"name": "f", "arguments": "{}"}}, {"audio": {"id": "a"}})
        ),
    ],
)
def test_what_anthropic_has_no_words_for_is_refused_by_name(request_: Any, param: str) -> None:
    with pytest.raises(UpstreamError) as raised:
        messages_body(request_, **OPTIONS)
    assert (raised.value.failure.param, raised.value.failure.status) == (param, 400)


def test_a_call_whose_arguments_are_cut_is_named() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"city":'}}
    turns = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": ""},
    ]
    with pytest.raises(UpstreamError) as raised:
        messages_body(chat(messages=turns), **OPTIONS)
    assert "'call_1'" in raised.value.failure.message


def test_ids_of_calls_that_anthropic_refuses_are_replaced() -> None:
    """Other models' ids may have any characters; Kimi's have dots and colons."""
    ids = ["functions.f:0", "functions.f:1", "call_1"]
    calls = [{"id": id_, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id_ in ids]
    results = [{"role": "tool", "tool_call_id": id_, "content": ""} for id_ in ids]
    turns = [{"role": "assistant", "tool_calls": calls}, *results]
    called, answered = messages_body(chat(messages=turns), **OPTIONS)["messages"]
    sent = [block["id"] for block in called["content"]]
    assert sent == [block["tool_use_id"] for block in answered["content"]]
    assert all(re.fullmatch("[a-zA-Z0-9_-]+", id_) for id_ in sent)
    assert (len(set(sent)), sent[2]) == (3, "call_1")


def test_it_takes_chats_only() -> None:
    with pytest.raises(UpstreamError) as raised:
        ANTHROPIC.kind(text())
    assert (raised.value.failure.param, raised.value.failure.code) == ("prompt", "unsupported_parameter")


def test_each_parameter_is_translated_or_refused_unless_it_is_listed_as_left_out() -> None:
    known, sent = chat(tools=[FUNCTION]), chat(**EVERYTHING)
    best_of = text(best_of=2).best_of
    without, left_out = messages_body(known, **OPTIONS), set()
    # `max_output_tokens` says what becomes of this one.
    for name in openai_request._FORWARDED - {"max_completion_tokens"}:
        value = best_of if name == "best_of" else getattr(sent, name)
        assert value != getattr(known, name), f"the test has no value for {name}"
        with suppress(UpstreamError):  # refused
            if messages_body(replace(known, **{name: value}), **OPTIONS) == without:
                left_out.add(name)
    assert left_out == {*anthropic_request._LEFT_OUT, *anthropic_request._BY_SERVICE}
