"""Dialects write the golden transcripts, byte for byte, and keep the rules that clients rely on in all of
them.
"""

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from django.db.models import CharField, Model

from accounts.models import APIKey, Organization
from chatapi.wire.deltas import AnyDelta, Failed, Finished, Started, Text, ToolCall, Usage
from chatapi.wire.dialects import DIALECTS as ALL_NAMES
from chatapi.wire.dialects import UnknownDialect, choose
from chatapi.wire.protocols import chat, text_completions
from chatapi.wire.protocols.chat import STYLES as DIALECTS
from chatapi.wire.protocols.chat.encoder import CompletionFolder
from chatapi.wire.protocols.envelope import STREAM_HEADERS, ErrorAnswer
from chatapi.wire.upstream.logprobs import UNKNOWN_LOGPROB
from tests.wire.dialect_cases import (
    CASES,
    CHATS,
    COMPLETIONS,
    END,
    FAILURE,
    LOGPROBS,
    SEEDS,
    TRANSCRIPTS,
    Case,
    logprob,
    transcripts,
)
from usage.models import Generation

ROOT = Path(__file__).parents[2]
GOLDEN = dict(transcripts())
WHOLE = [name for name, case in CASES.items() if not case.has_failed]


COLUMNS = (Organization, "default_dialect"), (APIKey, "default_dialect"), (Generation, "dialect")


@pytest.mark.parametrize(("model", "column"), COLUMNS)
def test_a_dialects_name_fits_into_its_columns(model: type[Model], column: str) -> None:
    field = model._meta.get_field(column)
    assert isinstance(field, CharField)
    assert field.max_length is not None
    # SQLite takes longer names, PostgreSQL none.
    assert [name for name in ALL_NAMES if len(name) > field.max_length] == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_documents_tables_name_a_dialect(dialect: str) -> None:
    assert f"/{dialect}/v1` | `{dialect}` |" in (ROOT / "docs/chat.md").read_text()
    assert f"\n| `{dialect}` | " in (ROOT / "docs/errors.md").read_text()
    assert f"\n| `http://…/{dialect}/v1` | `{dialect}`" in (ROOT / "README.md").read_text()
    assert re.search(rf"\n\| (\| \w+ )*\| {dialect} \|", (ROOT / "chatapi/wire/README.md").read_text())


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: "-".join(path.relative_to(TRANSCRIPTS).parts))
def test_an_answer_is_the_golden_transcript(path: Path) -> None:
    assert GOLDEN[path].decode() == path.read_bytes().decode()


def test_every_transcript_is_some_cases() -> None:
    assert {path for dialect in DIALECTS for path in (TRANSCRIPTS / dialect).iterdir()} == set(GOLDEN)


def frames(stream: bytes) -> list[dict[str, Any]]:
    """Return the JSON documents of a stream."""
    return [json.loads(line[6:]) for line in stream.decode().split("\n") if line.startswith("data: {")]


def choices(stream: bytes) -> list[dict[str, Any]]:
    return [choice for frame in frames(stream) for choice in frame["choices"]]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", WHOLE)
def test_a_body_holds_what_the_stream_holds(dialect: str, case: str) -> None:
    body, written = json.loads(CASES[case].body(dialect)), choices(CASES[case].stream(dialect))
    for whole in body["choices"]:
        pieces = [choice for choice in written if choice["index"] == whole["index"]]
        said = [piece.get("delta", piece) for piece in pieces]
        message = whole.get("message", whole)
        for member in ("text", "content", "refusal", "reasoning_content"):
            assert (message.get(member) or "") == "".join(piece.get(member) or "" for piece in said)
        assert [piece["finish_reason"] for piece in pieces if piece["finish_reason"]] == [
            whole["finish_reason"]
        ]
    assert (
        body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]
    )


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", [name for name in COMPLETIONS if name in WHOLE])
def test_a_bodys_text_offsets_are_the_streams(dialect: str, case: str) -> None:
    written = choices(CASES[case].stream(dialect))
    for whole in json.loads(CASES[case].body(dialect))["choices"]:
        pieces = [
            choice["logprobs"]
            for choice in written
            if choice["index"] == whole["index"] and choice["logprobs"]
        ]
        offsets = [offset for piece in pieces for offset in piece["text_offset"]]
        assert offsets == (whole["logprobs"] or {}).get("text_offset", [])


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "case",
    [
        CASES["completion-echo-logprobs"],
        CASES["completion-prompts"],
        Case([Started(context=LOGPROBS), Text("an upstream without them"), *END], {}, is_text=True),
    ],
)
def test_each_choice_has_the_four_lists_if_log_probabilities_were_requested(dialect: str, case: Case) -> None:
    lists = {"tokens", "text_offset", "token_logprobs", "top_logprobs"}
    for choice in choices(case.stream(dialect)):
        assert choice["logprobs"].keys() == lists
        if not choice["text"] and choice["finish_reason"]:
            assert not any(choice["logprobs"].values())
    for whole in json.loads(case.body(dialect))["choices"]:
        assert whole["logprobs"].keys() == lists
    without = Case([Started(), *case.deltas[1:]], case.answer, is_text=True)
    assert choices(without.stream(dialect))[-1]["logprobs"] is None


def test_only_the_first_token_of_an_echoed_prompt_has_no_probability() -> None:
    (choice,) = json.loads(COMPLETIONS["completion-echo-logprobs"].body("openai"))["choices"]
    assert choice["logprobs"]["token_logprobs"] == [None, -1.5, -0.5, -0.125, -0.25]
    assert [alternatives is None for alternatives in choice["logprobs"]["top_logprobs"]] == [
        True,
        *[False] * 4,
    ]
    told = Case([Started(), Text("a", logprobs=[logprob("a", UNKNOWN_LOGPROB, ("b", -0.5))]), *END], {}, True)
    (choice,) = json.loads(told.body("openai"))["choices"]
    assert choice["logprobs"]["token_logprobs"] == [UNKNOWN_LOGPROB]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", ["two-choices", "completion-prompts"])
def test_the_choices_are_first_heard_of_in_order(dialect: str, case: str) -> None:
    deltas: list[AnyDelta] = [
        Started(),
        Text("b", 1),
        Text("a", 0),
        Finished("stop", 1),
        Finished("stop", 0),
        Usage(1, 2),
    ]
    written = choices(Case(deltas, {"choices_count": 2}, CASES[case].is_text).stream(dialect))
    assert list(dict.fromkeys(choice["index"] for choice in written)) == [0, 1]


@pytest.mark.parametrize("dialect", ["openai", "opentoken", "llama"])
def test_a_role_is_sent_once_for_each_choice(dialect: str) -> None:
    written = choices(CHATS["two-choices"].stream(dialect))
    assert [choice["index"] for choice in written if "role" in choice["delta"]] == [0, 1]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", WHOLE)
def test_a_usage_is_on_the_very_last_chunk_or_nowhere(dialect: str, case: str) -> None:
    is_told = dialect in ("opentoken", "bitseek") or CASES[case].answer.get("include_usage", False)
    *others, last = frames(CASES[case].stream(dialect))
    assert bool(last.get("usage")) is is_told
    assert not any(frame.get("usage") for frame in others)


@pytest.mark.parametrize("case", ["include-usage", "completion-include-usage"])
def test_the_usage_is_null_before_the_end_where_a_client_has_to_ask_for_it(case: str) -> None:
    for dialect in DIALECTS:
        is_null = dialect not in ("opentoken", "bitseek")
        assert all(("usage" in frame) is is_null for frame in frames(CASES[case].stream(dialect))[:-1])


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", ["failure", "failure-in-a-tool-call", "completion-failure"])
def test_a_stream_that_breaks_off_ends_with_the_error_and_no_end_of_a_choice(dialect: str, case: str) -> None:
    *_, last = written = frames(CASES[case].stream(dialect))
    error = {"message": FAILURE.message, "type": FAILURE.type, "code": FAILURE.code}
    assert last["error"].items() >= error.items()
    assert not any(choice["finish_reason"] for frame in written for choice in frame.get("choices", []))


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("is_text", [False, True])
@pytest.mark.parametrize("ends", [[], [Finished("stop", 1)]])
def test_a_usage_without_the_end_of_each_choice_is_an_error(
    dialect: str, is_text: bool, ends: list[AnyDelta]
) -> None:
    case = Case([Started(), Text("a"), Text("b", 1), *ends, Usage(1, 2)], {"choices_count": 2}, is_text)
    *_, last = frames(case.stream(dialect))
    assert last["error"]["code"] == "stream_unavailable"
    folder = CompletionFolder(case.encoder(dialect))
    for delta in case.deltas:
        folder.add(delta)
    assert folder.failure is not None


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name != "bitseek"])
def test_a_call_begins_when_the_one_before_it_is_whole(dialect: str) -> None:
    def pieces(case: str) -> list[tuple[int, str]]:
        return [
            (call["index"], call["function"]["arguments"])
            for frame in frames(CASES[case].stream(dialect))
            for choice in frame.get("choices", ())
            for call in choice["delta"].get("tool_calls", ())
        ]

    assert pieces("parallel-tool-calls") == [(0, ""), (0, '{"city":'), (0, '"Tokyo"}'), (1, "{}")]
    assert pieces("tool-call-without-arguments") == [(0, ""), (0, "{}"), (1, '{"city":"Tokyo"}')]
    # It is charged.
    assert pieces("failure-behind-a-tool-call") == [(0, ""), (0, '{"city":'), (1, "{}")]


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name != "bitseek"])
def test_calls_of_one_choice_do_not_wait_for_those_of_another(dialect: str) -> None:
    first, second = ToolCall(0, '{"a":', "a", "f"), ToolCall(0, "{}", "b", "f", index=1)
    writing = Case([], {"choices_count": 2}).encoder(dialect)
    writing.encode([Started(), first])
    assert b'"tool_calls"' in writing.encode([second])
    # The connection ends, not the generation: the rest comes when the stream is read again.
    assert writing.encode([ToolCall(1, "{}", "c", "f")]) == b""
    assert b'"tool_calls"' not in writing.failed(FAILURE)


def test_a_long_calls_arguments_take_as_much_memory_as_their_text() -> None:
    writing = Case([]).encoder("openai")
    writing.encode([Started(), ToolCall(0, '{"a":"', "a", "f")])
    tracemalloc.start()
    try:
        for number in range(25_000):
            writing.encode([ToolCall(0, f"{number:05}"[-4:])])
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()
    assert b'"index":1' in writing.encode([ToolCall(0, 'é"}'), ToolCall(1, "{}", "b", "f")])


def test_bitseek_never_tells_half_a_tool_call() -> None:
    assert b"tool_calls" not in CHATS["failure-in-a-tool-call"].stream("bitseek")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_error_body_has_the_four_members_of_the_envelope(dialect: str) -> None:
    error = {
        "message": FAILURE.message,
        "type": "server_error",
        "param": None,
        "code": "upstream_disconnected",
    }
    assert (
        json.loads(chat.CHAT.dialects[dialect].envelope(FAILURE).body)
        == json.loads(text_completions.TEXT_COMPLETIONS.dialects[dialect].envelope(FAILURE).body)
        == {"error": error}
    )


def test_only_llama_tells_an_invalid_request_inside_the_stream() -> None:
    event = (
        b"event: error\n" + SEEDS["llama"]["seed-003-error"].stream("llama").rpartition(b"event: error\n")[2]
    )
    failure = SEEDS["llama"]["seed-003-error"].deltas[-1]
    assert isinstance(failure, Failed)
    for protocol in (chat.CHAT, text_completions.TEXT_COMPLETIONS):
        for name, dialect in protocol.dialects.items():
            plain = dialect.envelope(failure)
            answer = dialect.envelope(failure, is_invalid_stream=True)
            assert plain.status == failure.status
            assert answer == (ErrorAnswer(200, STREAM_HEADERS, event) if name == "llama" else plain)


def test_llamas_error_in_mid_stream_is_its_documents() -> None:
    failure = Failed("context overflow", "invalid_request_error", "context_length_exceeded", status=400)
    stream = Case([Started(), Text("Hi"), failure]).stream("llama").decode()
    told = json.loads(stream.rpartition("event: error\ndata: ")[2])
    assert told.pop("error")["type"] == "invalid_request_error"
    assert told == {"message": "context overflow", "type": "server_error"}


def test_the_first_wish_that_is_not_empty_chooses_the_dialect() -> None:
    assert choose("", "openai", "opentoken") == "openai"
    assert choose("opentoken", "openai", "") == "opentoken"
    with pytest.raises(UnknownDialect, match="klingon"):
        choose("klingon", "openai")
