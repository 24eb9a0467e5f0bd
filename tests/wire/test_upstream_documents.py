"""The five wire documents' own examples, and what servers that follow none of them send: bytes in, deltas
out.
"""

import json
from typing import Any

import pytest

from chatapi.wire.deltas import AnyDelta, Finished, Started, Text, TokenLogprob, ToolCall, TopLogprob, Usage
from chatapi.wire.sse import MAX_EVENT_BYTES, EventTooLargeError, Parser
from chatapi.wire.upstream.chunks import ChunkReader
from chatapi.wire.upstream.upstream_errors import UpstreamError
from tests.wire.folding import collect


def read(
    stream: bytes, size: int = 1 << 30, *, choices: int = 1, max_chunks: int = 1000, is_text: bool = False
) -> list[AnyDelta]:
    """Return all deltas of a stream that comes in reads of `size` bytes; raises the error of an incomplete
    one.
    """
    parser, reader = Parser(), ChunkReader(choices=choices, max_chunks=max_chunks, is_text=is_text)
    parts = [parser.feed(stream[start : start + size]) for start in range(0, len(stream), size)]
    return (
        [delta for events in parts for delta in reader.read(events)]
        + reader.read_rest(parser.close())
        + reader.end()
    )


def failure_code(stream: bytes, **how: Any) -> str | None:
    with pytest.raises(UpstreamError) as raised:
        read(stream, **how)
    return raised.value.failure.code


def frames(*documents: Any) -> bytes:
    """Return the documents as events; bytes are sent unchanged."""
    return b"".join(
        part if isinstance(part, bytes) else b"data: " + json.dumps(part).encode() + b"\n\n"
        for part in documents
    )


def chunk(
    delta: dict[str, Any] | None = None, finish_reason: str | None = None, **more: Any
) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish_reason}], **more}


def text_chunk(text: str, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"object": "text_completion", "choices": [{"text": text, "index": index, **more}]}


DONE = b"data: [DONE]\n\n"
STOP = chunk(finish_reason="stop")
HELLO = [Started(), Text("Hello"), Text(" world"), Finished("stop")]

# Bitseek: seeds 000 and 002. They print their streams without blank lines, and say: "Split by lines starting
# with data:".

BITSEEK_HEAD = (
    b'data: {"id":"stream:chat:1","object":"chat.completion","created":1773042793,"model":"",'
    b'"choices":[{"index":0,'
)
BITSEEK_TEXT = (
    BITSEEK_HEAD + b'"delta":{"content":"Hello"},"finish_reason":null}]}\n',
    BITSEEK_HEAD + b'"delta":{"content":" world"},"finish_reason":null}]}\n',
    BITSEEK_HEAD + b'"delta":{"content":""},"finish_reason":"stop"}]}\n',
)
BITSEEK_TOOLS = (
    BITSEEK_HEAD
    + b'"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"get_weather",'
    b'"arguments":"{\\"city\\":\\"Singapore\\"}"}}]},"finish_reason":null}]}\n',
    BITSEEK_HEAD + b'"delta":{"content":""},"finish_reason":"tool_calls"}]}\n',
)


@pytest.mark.parametrize("between", [b"", b"\n"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_bitseeks_text_stream_ends_by_closing(between: bytes, size: int) -> None:
    assert read(between.join(BITSEEK_TEXT), size) == HELLO


@pytest.mark.parametrize("between", [b"", b"\n"])
def test_bitseeks_tool_calls_come_whole(between: bytes) -> None:
    call = ToolCall(0, '{"city":"Singapore"}', "call_1", "get_weather")
    assert read(between.join(BITSEEK_TOOLS)) == [Started(), call, Finished("tool_calls")]


def test_lines_that_are_separate_events_are_read_before_the_end() -> None:
    parser = Parser()
    assert len(parser.feed(b"".join(BITSEEK_TEXT))) == 2


def test_a_done_without_a_blank_line_before_it_is_one() -> None:
    assert read(b"".join(BITSEEK_TEXT) + b"data: [DONE]\n") == HELLO


def test_a_bitseek_stream_that_closes_before_its_finish_reason_has_broken_off() -> None:
    assert failure_code(b"\n".join(BITSEEK_TEXT[:2])) == "upstream_disconnected"


def test_bitseeks_error_is_a_chunk_without_choices() -> None:
    error = {
        "id": "stream:chat:1",
        "object": "chat.completion",
        "choices": [],
        "error": {"message": "boom", "type": "server_error"},
    }
    assert failure_code(frames(chunk({"content": "a"}), error)) == "upstream_error"


def test_bitseeks_usage_is_on_the_last_chunk() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert read(frames(chunk({"content": "a"}), chunk({"content": ""}, "stop", usage=usage)))[-1] == Usage(
        3, 2
    )


# OpenToken: seed 004

OPENTOKEN_HEAD = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,'
    b'"model":"google/gemini-3-flash","choices":['
)


def test_opentokens_stream_has_a_usage_chunk_before_done() -> None:
    stream = [
        OPENTOKEN_HEAD + b'{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}\n\n',
        OPENTOKEN_HEAD + b'{"index":0,"delta":{"content":"Packets "},"finish_reason":null}]}\n\n',
        OPENTOKEN_HEAD + b'{"index":0,"delta":{"content":"in flight"},"finish_reason":null}]}\n\n',
        OPENTOKEN_HEAD + b'{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
        OPENTOKEN_HEAD + b'],"usage":{"prompt_tokens":12,"completion_tokens":18,"total_tokens":30}}\n\n',
    ]
    assert read(b"".join(stream) + DONE) == [
        Started(),
        Text("Packets "),
        Text("in flight"),
        Finished("stop"),
        Usage(12, 18),
    ]


def test_opentokens_error_is_an_envelope_in_a_data_frame_and_then_done() -> None:
    error = {"error": {"message": "slow down", "type": "rate_limit_error", "code": "rate_limited"}}
    assert failure_code(frames(chunk({"content": "a"}), error, DONE)) == "upstream_rate_limited"


# The llama server: seed 003

LLAMA_TEXT = (
    b'data: {"id":"cmpl-...","object":"text_completion","choices":[{"text":" Once","index":0}]}\n\n'
    b'data: {"id":"cmpl-...","object":"text_completion","choices":[{"text":" upon","index":0}]}\n\n'
    b'data: {"id":"cmpl-...","object":"text_completion","choices":[{"text":" a","index":0}]}\n\n'
)
LLAMA_TOOLS = rb"""data: {"choices":[{"delta":{"role":"assistant"}}]}

data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"call_weather","type":"function","function":\
{"name":"get_weather","arguments":""}}]}}]}

data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\""}}]}}]}

data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"city"}}]}}]}

data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\":\\\"Tokyo\\\"}"}}]}}]}

data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}

data: [DONE]

""".replace(b"\\\n", b"")


def test_llamas_text_stream_is_ended_by_done_alone() -> None:
    said = [Started(), Text(" Once"), Text(" upon"), Text(" a")]
    assert read(LLAMA_TEXT + DONE, is_text=True) == [*said, Finished("stop")]
    assert read(LLAMA_TEXT + DONE, is_text=True, max_chunks=3) == [*said, Finished("length")]


def test_llamas_text_stream_without_done_has_broken_off() -> None:
    assert failure_code(LLAMA_TEXT, is_text=True) == "upstream_disconnected"


def test_done_ends_no_chat_and_no_text_that_never_began() -> None:
    assert failure_code(LLAMA_TEXT + DONE) == "upstream_invalid_response"
    assert failure_code(DONE, is_text=True) == "upstream_invalid_response"


def test_done_leaves_the_texts_alone_that_have_a_finish_reason() -> None:
    stream = frames(
        text_chunk("a"), text_chunk("b", 1), text_chunk("", 1, finish_reason="content_filter"), DONE
    )
    assert read(stream, choices=2, is_text=True)[-2:] == [Finished("content_filter", 1), Finished("stop", 0)]


def test_llamas_tool_call_comes_in_fragments() -> None:
    said = collect(read(LLAMA_TOOLS)).choice(0)
    [call] = said.tool_calls.values()
    assert (call.id, call.name, call.arguments) == ("call_weather", "get_weather", '{"city":\\"Tokyo\\"}')
    assert said.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    "nested", [{}, {"error": {"message": "context overflow", "type": "server_error", "code": None}}]
)
def test_llamas_error_is_an_event(nested: dict[str, Any]) -> None:
    error = b"event: error\n" + frames({"message": "context overflow", "type": "server_error", **nested})
    assert failure_code(frames(chunk({"content": "a"}), error)) == "context_length_exceeded"


def test_llamas_validation_error_comes_before_everything_else() -> None:
    error = b"event: error\n" + frames(
        {"message": "temperature is too high", "type": "invalid_request_error"}
    )
    with pytest.raises(UpstreamError) as raised:
        read(error)
    assert (raised.value.failure.status, raised.value.failure.message) == (400, "temperature is too high")


def test_llamas_log_probabilities_are_read() -> None:
    logprobs = {
        "tokens": [" a"],
        "text_offset": [0],
        "token_logprobs": [-0.5],
        "top_logprobs": [{" a": -0.5, " b": -1.5}],
    }
    tokens = [TokenLogprob(" a", -0.5, None, [TopLogprob(" a", -0.5), TopLogprob(" b", -1.5)])]
    stream = frames(text_chunk(" a", logprobs=logprobs), DONE)
    assert read(stream, is_text=True) == [Started(), Text(" a", 0, tokens), Finished("stop")]


# The deprecated function_call


def function_call(arguments: str, **more: Any) -> dict[str, Any]:
    return chunk({"function_call": {"arguments": arguments, **more}})


def test_a_legacy_function_call_is_one_call_without_an_id() -> None:
    pieces = [function_call("", name="f"), function_call('{"a":'), function_call("1}")]
    assert read(frames(*pieces, chunk(finish_reason="function_call"), DONE)) == [
        Started(),
        ToolCall(0, "", None, "f", kind="function_call"),
        ToolCall(0, '{"a":', kind="function_call"),
        ToolCall(0, "1}", kind="function_call"),
        Finished("function_call"),
    ]


def test_a_legacy_function_call_stays_one_when_its_name_is_repeated() -> None:
    stream = frames(
        function_call("{}", name="f"),
        function_call("", name="f"),
        chunk({"function_call": None}, "function_call"),
    )
    assert read(stream) == [
        Started(),
        ToolCall(0, "{}", None, "f", kind="function_call"),
        Finished("function_call"),
    ]


def test_a_call_in_both_forms_counts_once() -> None:
    call = {"name": "f", "arguments": "{}"}
    both = {"tool_calls": [{"index": 0, "id": "a", "function": call}], "function_call": call}
    assert read(frames(chunk(both, "tool_calls"))) == [
        Started(),
        ToolCall(0, "{}", "a", "f"),
        Finished("tool_calls"),
    ]


def test_a_legacy_function_call_of_a_whole_answer_is_read() -> None:
    message = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    reader = ChunkReader(choices=1, max_chunks=1000)
    deltas = reader.read_answer(
        json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "function_call"}]}).encode()
    )
    assert deltas == [
        Started(),
        ToolCall(0, "{}", None, "f", kind="function_call"),
        Finished("function_call"),
    ]


# What any of them may do


def test_fields_that_every_chunk_repeats_are_read_once() -> None:
    head = {"system_fingerprint": "fp", "service_tier": "flex"}
    assert read(frames(chunk({"role": "assistant"}, **head), chunk({"content": "a"}), STOP))[0] == Started(
        "fp", "flex"
    )
    assert read(frames(chunk({"content": "a"}, service_tier="platinum"), STOP))[0] == Started()


def test_events_of_any_name_count_and_comments_garbage_lines_and_pings_do_not() -> None:
    noise = [
        b": ping\n\n",
        b"event: ping\ndata: {}\n\n",
        b"<garbage>\n\n",
        b"retry: 3000\n\n",
        b"id: 7\n",
        b"data: \n\n",
    ]
    stream = b"".join(line + b"event: chunk\n" + frames(chunk({"content": "a"})) for line in noise) + frames(
        STOP
    )
    assert read(stream) == [Started(), *[Text("a")] * len(noise), Finished("stop")]


def test_garbage_in_an_event_is_an_error_because_it_may_be_lost_text() -> None:
    assert (
        failure_code(frames(chunk({"content": "a"}), b"data: garbage\n\n", STOP))
        == "upstream_invalid_response"
    )


def test_an_event_that_is_cut_through_is_none() -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_to'
    assert read(frames(chunk({"content": "a"}), STOP) + usage) == [Started(), Text("a"), Finished("stop")]
    assert failure_code(frames(chunk({"content": "a"})) + usage) == "upstream_disconnected"


def test_roles_and_finishes_may_be_repeated_and_what_follows_a_finish_is_dropped() -> None:
    stream = frames(
        chunk({"role": "assistant", "content": "a"}),
        chunk({"role": "assistant"}),
        STOP,
        STOP,
        chunk({"content": "late"}),
    )
    usage = frames(chunk({"content": "later"}, usage={"prompt_tokens": 1, "completion_tokens": 1}), DONE)
    assert read(stream + usage) == [Started(), Text("a"), Finished("stop"), Usage(1, 1)]


@pytest.mark.parametrize("size", [64, 16_384])
def test_a_delta_of_a_mebibyte_is_read_in_small_reads_too(size: int) -> None:
    text = "x" * (1 << 20)
    assert read(frames(chunk({"content": text}), STOP), size, max_chunks=len(text)) == [
        Started(),
        Text(text),
        Finished("stop"),
    ]


def test_a_delta_beyond_the_cap_is_refused_before_it_is_there() -> None:
    with pytest.raises(EventTooLargeError):
        read(b'data: {"choices":[{"delta":{"content":"' + b"x" * MAX_EVENT_BYTES, 16_384)


def test_arguments_may_be_an_empty_object() -> None:
    calls = [{"function": {"name": "f", "arguments": {}}}, {"function": {"name": "f", "arguments": {}}}]
    said = collect(read(frames(chunk({"tool_calls": calls}, "tool_calls")))).choice(0)
    assert [call.arguments for call in said.tool_calls.values()] == ["{}", "{}"]


def test_a_whole_text_answer_needs_no_finish_reason() -> None:
    reader = ChunkReader(choices=1, max_chunks=1000, is_text=True)
    assert reader.read_answer(json.dumps(text_chunk("a")).encode()) == [
        Started(),
        Text("a"),
        Finished("stop"),
    ]
    assert reader.end() == []


def test_a_text_that_says_nothing_and_not_why_is_no_answer() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 0}}
    assert failure_code(frames(text_chunk(""), usage, DONE), is_text=True) == "upstream_invalid_response"
    assert read(frames(text_chunk("", finish_reason="stop"), usage, DONE), is_text=True) == [
        Started(),
        Finished("stop"),
        Usage(9, 0),
    ]


def test_beside_a_text_another_may_be_empty() -> None:
    stream = frames(text_chunk("a"), text_chunk("", 1), DONE)
    assert read(stream, choices=2, is_text=True) == [
        Started(),
        Text("a"),
        Finished("stop"),
        Finished("stop", 1),
    ]


def test_a_text_of_no_tokens_needs_no_finish_reason() -> None:
    assert read(frames(text_chunk("")) + DONE, is_text=True, max_chunks=0) == [Started(), Finished("length")]


def test_a_whole_chat_answer_needs_one() -> None:
    reader = ChunkReader(choices=1, max_chunks=1000)
    reader.read_answer(json.dumps({"choices": [{"index": 0, "message": {"content": "a"}}]}).encode())
    with pytest.raises(UpstreamError):
        reader.end()
