"""What upstreams send, in all the ways they send it, read into deltas."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapi.wire.deltas import (
    Finished,
    Reasoning,
    Refusal,
    Started,
    Text,
    TokenLogprob,
    ToolCall,
    TopLogprob,
    Usage,
)
from chatapi.wire.sse import Event, Parser
from chatapi.wire.upstream.logprobs import MAX_ALTERNATIVES, UNKNOWN_LOGPROB
from chatapi.wire.upstream.upstream_errors import UpstreamError
from tests.wire.folding import collect
from tests.wire.upstream_events import DONE, STOP, call, chunk, event, failure_code, new_reader, read, tools


def test_a_plain_stream_starts_speaks_and_ends() -> None:
    events = [
        chunk({"role": "assistant"}, system_fingerprint="fp"),
        chunk({"content": "Hi"}),
        chunk({"content": " you"}),
        STOP,
        DONE,
    ]
    assert read(*events) == [Started("fp"), Text("Hi"), Text(" you"), Finished("stop")]


def test_it_starts_with_the_first_delta_and_not_with_a_role() -> None:
    reader = new_reader()
    assert reader.read([chunk({"role": "assistant", "content": ""}), event({"choices": []})]) == []
    assert not reader.has_started
    assert reader.read([chunk({"role": "assistant", "content": "a"})]) == [Started(), Text("a")]


def test_an_answer_without_text_starts_with_its_end() -> None:
    assert read(STOP, DONE) == [Started(), Finished("stop")]


def test_choices_may_be_null_absent_or_without_index() -> None:
    events = [
        event({"choices": None}),
        event({}),
        event({"choices": [{"delta": {"content": "a"}}, {"delta": {"content": "b"}}]}),
    ]
    assert new_reader(choices=2).read(events) == [Started(), Text("a", 0), Text("b", 1)]


def test_choices_end_once_each_and_say_nothing_after_it() -> None:
    reader = new_reader(choices=2)
    reader.read([chunk({"content": "a"}, "stop"), chunk({"content": "late"}), STOP])
    assert not reader.is_complete
    assert reader.read([event({"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]})]) == [
        Finished("length", 1)
    ]
    assert reader.is_complete


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_has_two_names(field: str) -> None:
    assert read(chunk({field: "hm", "content": None}), chunk({"content": "a"}), STOP) == [
        Started(),
        Reasoning("hm"),
        Text("a"),
        Finished("stop"),
    ]


THINKING: dict[str, Any] = {
    "type": "thinking",
    "thinking": [{"type": "text", "text": "h"}, {"type": "text", "text": "m"}],
}
PARTS: list[dict[str, Any]] = [{"type": "text", "text": "a"}, {"type": "reference", "reference_ids": [1]}]


def test_content_may_be_parts_of_thinking_and_text() -> None:
    said = [Started(), Reasoning("hm"), Text("a"), Finished("stop")]
    assert read(chunk({"content": [THINKING]}), chunk({"content": PARTS}), STOP) == said
    whole = {"choices": [{"message": {"content": [THINKING, *PARTS]}, "finish_reason": "stop"}]}
    assert new_reader().read_answer(json.dumps(whole).encode()) == said
    assert read(chunk({"content": PARTS, "reasoning": "hm"}), STOP) == said
    nulls = [each | {name: None for name in ("text", "thinking") if name not in each} for each in PARTS]
    assert read(chunk({"content": [THINKING | {"text": None}, *nulls]}), STOP) == said


def test_a_refusal_is_read() -> None:
    assert read(chunk({"refusal": "No."}), STOP) == [Started(), Refusal("No."), Finished("stop")]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("max_tokens", "length"),
        ("end_turn", "stop"),
        ("tool_use", "tool_calls"),
        ("content_filter", "content_filter"),
        # Gemini's, at its endpoint for OpenAI's clients.
        ("content_filter: RECITATION", "content_filter"),
        # vLLM's, when it ends a text that repeats itself: the text is cut.
        ("repetition", "length"),
    ],
)
def test_finish_reasons_become_openais(theirs: str, ours: str) -> None:
    assert collect(read(chunk({"content": "a"}, theirs))).choice(0).finish_reason == ours


@pytest.mark.parametrize("theirs", ["model_context_window_exceeded", "model_length"])
def test_an_upstream_may_say_that_the_context_window_is_full(theirs: str) -> None:
    assert read(chunk({"content": "a"}, theirs))[-1] == Finished("length", is_window_full=True)


@pytest.mark.parametrize("theirs", ["error", "abort", "function_call_filter: MALFORMED_FUNCTION_CALL"])
def test_an_unknown_finish_reason_is_an_error_and_no_silent_stop(theirs: str) -> None:
    assert failure_code(chunk({"content": "a"}, theirs)) == "upstream_error"


# Tool calls


def test_chat_logprobs_stay_with_their_text() -> None:
    token = {"token": "a", "logprob": -0.5, "bytes": [97], "id": 7}
    logprobs = {"content": [{**token, "top_logprobs": [token]}], "refusal": None}
    ours = [TokenLogprob("a", -0.5, [97], [TopLogprob("a", -0.5, [97])])]
    assert new_reader().read(
        [event({"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": logprobs}]})]
    )[1] == Text("a", 0, ours)


def test_a_token_that_shows_no_text_keeps_its_logprobs() -> None:
    logprobs = {"content": [{"token": "\\xf0", "logprob": -1.0, "top_logprobs": None}]}
    deltas = new_reader().read([event({"choices": [{"delta": {"content": ""}, "logprobs": logprobs}]})])
    assert deltas == [Started(), Text("", 0, [TokenLogprob("\\xf0", -1.0)])]


def test_text_completions_and_their_logprobs_are_read() -> None:
    logprobs = {
        "tokens": ["a", "b"],
        "token_logprobs": [None, -2.0],
        "top_logprobs": [None, {"b": -2.0, "c": -3.0}],
        "text_offset": [0, 1],
    }
    ours = [
        TokenLogprob("a", UNKNOWN_LOGPROB),
        TokenLogprob("b", -2.0, None, [TopLogprob("b", -2.0), TopLogprob("c", -3.0)]),
    ]
    choices = [
        {"text": "ab", "index": 0, "logprobs": logprobs},
        {"text": "", "index": 0, "finish_reason": "stop"},
    ]
    assert read(*(event({"choices": [choice]}) for choice in choices)) == [
        Started(),
        Text("ab", 0, ours),
        Finished("stop"),
    ]


# Errors and ends


@pytest.mark.parametrize("events", [[], [chunk({"content": "a"})], [chunk({"role": "assistant"})]])
def test_an_end_without_finish_reason_is_an_error(events: list[Event]) -> None:
    assert failure_code(*events) == "upstream_disconnected"
    assert failure_code(*events, DONE) == "upstream_invalid_response"


def test_fewer_choices_than_asked_for_need_a_done() -> None:
    assert read(STOP, DONE, reader=new_reader(choices=2)) == [Started(), Finished("stop")]
    with pytest.raises(UpstreamError):
        read(STOP, reader=new_reader(choices=2))


def test_an_end_without_done_is_good_when_every_choice_has_ended() -> None:
    assert read(chunk({"content": "a"}, "stop")) == [Started(), Text("a"), Finished("stop")]


@pytest.mark.parametrize(
    "error",
    [
        event({"error": {"message": "boom", "type": "server_error", "code": None}}),
        event({"error": {"message": "boom", "code": 500}, "choices": []}),
        event({"error": "boom"}),
        event({"error": {"status": 1}}),
        event({"object": "error", "message": "boom", "type": "InternalServerError", "code": 500}),
        event({"message": "boom", "type": "server_error"}, "error"),
        Event(b"boom", "error"),
    ],
)
def test_an_error_in_the_stream_comes_after_the_deltas_before_it(error: Event) -> None:
    reader = new_reader()
    assert reader.read([chunk({"content": "a"}), error, chunk({"content": "b"})]) == [Started(), Text("a")]
    with pytest.raises(UpstreamError) as raised:
        reader.end()
    assert raised.value.failure.code == "upstream_error"
    assert "boom" not in raised.value.failure.message


def test_the_llama_dialects_documented_error_is_about_the_context() -> None:
    assert (
        failure_code(event({"message": "context overflow", "type": "server_error"}, "error"))
        == "context_length_exceeded"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"garbage",
        b'{"choices":[{',
        b"[]",
        b"1",
        b"null",
        b'{"choices":{}}',
        b'{"choices":[{"index":"0"}]}',
        b'{"choices":[{"index":-1}]}',
        b'{"choices":[{"index":1}]}',
        pytest.param(b"[" * 100_000, id="deep array"),
        pytest.param(b'{"x":' * 100_000, id="deep object"),
    ],
)
def test_what_is_no_chunk_is_an_error(data: bytes) -> None:
    assert failure_code(Event(data)) == "upstream_invalid_response"


@pytest.mark.parametrize(
    ("data", "text"), [(b"a\xff", "a\ufffd"), (b"a\\ud83d", "a?"), (b"\\ud83d\\ude00", "\U0001f600")]
)
def test_half_characters_are_replaced(data: bytes, text: str) -> None:
    assert new_reader().read([Event(b'{"choices":[{"delta":{"content":"' + data + b'"}}]}')]) == [
        Started(),
        Text(text),
    ]


# The cap


def test_a_choice_that_goes_on_beyond_the_cap_is_ended_with_length() -> None:
    reader = new_reader(max_chunks=2)
    usage: dict[str, Any] = {"usage": {"prompt_tokens": 1, "completion_tokens": 9}}
    assert reader.read(
        [
            chunk({"content": "a"}),
            chunk({"content": "b"}),
            chunk({"content": "c"}, **usage),
            chunk({"content": "d"}),
        ]
    ) == [Started(), Text("a"), Text("b"), Finished("length")]
    assert reader.is_done
    assert reader.end() == []


def test_a_choice_that_uses_its_cap_up_ends_by_itself() -> None:
    assert read(chunk({"content": "a"}), chunk({"content": "b"}), STOP, reader=new_reader(max_chunks=2))[
        -1
    ] == Finished("stop")


TEN = " the of and to in is that for it as"


def test_tokens_that_come_together_count_as_many() -> None:
    """Five chunks of ten tokens answer a request for five: beyond twice the limit, the upstream surely
    ignores it.
    """
    reader = new_reader(max_chunks=5)
    assert reader.read([chunk({"content": TEN})] * 5) == [Started(), Text(TEN), Finished("length")]
    assert reader.is_done


def test_tokens_that_come_together_within_the_limit_pass() -> None:
    assert (
        read(*[chunk({"content": TEN})] * 5, STOP, reader=new_reader(max_chunks=50))[1:-1] == [Text(TEN)] * 5
    )


@pytest.mark.parametrize("kind", [Text, Reasoning])
def test_of_an_answer_in_one_piece_its_beginning_is_shown(kind: type[Text | Reasoning]) -> None:
    body = {"content" if kind is Text else "reasoning": TEN * 5}
    reader = new_reader(max_chunks=5)
    usage = {"usage": {"prompt_tokens": 1, "completion_tokens": 50}}
    answer = json.dumps(
        {"choices": [{"index": 0, "message": body, "finish_reason": "stop"}], **usage}
    ).encode()
    assert reader.read_answer(answer) == [Started(), kind(" the of and to in"), Finished("length")]
    assert reader.end() == []


def test_arguments_of_calls_count_like_text() -> None:
    reader = new_reader(max_chunks=5)
    assert reader.read([tools(call(TEN * 5, "f", index=0))]) == [Started(), Finished("length")]


def test_the_other_choices_go_on_when_one_is_cut() -> None:
    reader = new_reader(choices=2, max_chunks=1)
    reader.read([chunk({"content": "a"}), chunk({"content": "b"})])
    assert not reader.is_done
    reader.read([event({"choices": [{"index": 1, "delta": {"content": "c"}, "finish_reason": "stop"}]})])
    assert reader.is_done


# An answer that ignored `stream`


def test_a_whole_answer_is_read_as_deltas() -> None:
    tool_calls = [call("{}", "f", id="x"), call("{}", "f", id="y")]
    message = {"role": "assistant", "content": "a", "reasoning_content": "hm", "tool_calls": tool_calls}
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": usage}
    reader = new_reader()
    said = [
        Started(),
        Reasoning("hm"),
        Text("a"),
        ToolCall(0, "{}", "x", "f"),
        ToolCall(1, "{}", "y", "f"),
        Finished("tool_calls"),
    ]
    assert reader.read_answer(json.dumps(body).encode()) == said
    assert reader.end() == [Usage(3, 1)]


# Properties


words = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=10)


@given(words, st.sampled_from(["\n", "\r\n", "\r"]), st.booleans(), st.integers(1, 50))
def test_any_text_in_any_framing_arrives_whole(
    texts: list[str], end: str, has_comments: bool, size: int
) -> None:
    documents = [chunk({"content": text}).data.decode() for text in texts] + [STOP.data.decode(), "[DONE]"]
    comment = f": ping{end}{end}" if has_comments else ""
    stream = "".join(f"{comment}data: {document}{end}{end}" for document in documents).encode()
    parser, reader = Parser(), new_reader()
    deltas = [
        delta
        for start in range(0, len(stream), size)
        for delta in reader.read(parser.feed(stream[start : start + size]))
    ]
    assert deltas == [Started(), *map(Text, texts), Finished("stop")]


def test_alternatives_beyond_openais_limit_are_left_out() -> None:
    alternatives = [{"token": str(number), "logprob": -1.0} for number in range(MAX_ALTERNATIVES + 1)]
    chat = {"content": [{"token": "a", "logprob": -1.0, "top_logprobs": alternatives}]}
    text = {
        "tokens": ["a"],
        "token_logprobs": [-1.0],
        "top_logprobs": [{str(number): -1.0 for number in range(MAX_ALTERNATIVES + 1)}],
    }
    for logprobs in (chat, text):
        choice = {"index": 0, "text": "a", "logprobs": logprobs, "finish_reason": "stop"}
        _, said, _ = read(event({"choices": [choice]}))
        assert isinstance(said, Text)
        assert said.logprobs is not None
        assert len(said.logprobs[0].top_logprobs) == MAX_ALTERNATIVES


keys = st.sampled_from(
    [
        "choices",
        "delta",
        "index",
        "usage",
        "error",
        "message",
        "finish_reason",
        "tool_calls",
        "logprobs",
        "content",
        "function",
    ]
)
leaves = st.none() | st.booleans() | st.integers() | st.text()
documents = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@given(documents)
def test_no_document_breaks_the_reader(document: Any) -> None:
    reader = new_reader()
    reader.read([event(document)])
    assert reader.failure is None or reader.failure.status >= 400
