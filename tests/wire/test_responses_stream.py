"""`/v1/responses`: the golden transcripts, byte for byte, and what every reader of the events relies on."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from chatapi.wire.deltas import AnyDelta, Failed, Finished, Reasoning, Refusal, Started, Text, ToolCall, Usage
from chatapi.wire.json_guard import as_object
from chatapi.wire.protocols.responses.encoder import Encoder
from chatapi.wire.protocols.responses.items import ID_PREFIXES, WholeItem
from chatapi.wire.protocols.responses.response import MAX_PARTS
from tests.wire.dialect_cases import FAILURE
from tests.wire.folding import collect
from tests.wire.response_cases import (
    ANSWER,
    CASES,
    DIALECT,
    ID,
    asked,
    body,
    deltas,
    events,
    frames,
    has_failed,
    read_by_sdk,
    stream,
    transcripts,
)

GOLDEN = dict(transcripts())
PUBLISHED: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TERMINAL = {"response.completed", "response.incomplete", "response.failed"}


def events_of(name: str) -> list[dict[str, Any]]:
    return events(stream(deltas(name)))


def kinds(of: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in of]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_transcripts(path: Path) -> None:
    assert path.read_bytes() == GOLDEN[path]


def test_no_transcript_is_left_over() -> None:
    (folder,) = {path.parent for path in GOLDEN}
    assert set(folder.iterdir()) == set(GOLDEN)


# ---- all streams


@pytest.mark.parametrize("name", CASES)
def test_every_event_is_named_numbered_and_of_the_published_type(name: str) -> None:
    for number, frame in enumerate(frames(stream(deltas(name)))):
        event = json.loads(frame.data)
        assert (event["type"], event["sequence_number"]) == (frame.type, number)
        if event["type"] == "response.failed":  # the published codes are few, and SDKs keep any
            event["response"]["error"]["code"] = "server_error"
            PUBLISHED.validate_python(event)
        else:
            PUBLISHED.validate_json(frame.data)


@pytest.mark.parametrize("name", CASES)
def test_it_begins_with_created_and_ends_with_one_terminal_event(name: str) -> None:
    found = events_of(name)
    assert found[0]["type"] == "response.created"
    assert [event["type"] in TERMINAL for event in found].count(True) == 1
    assert found[-1]["type"] in TERMINAL
    assert b"[DONE]" not in stream(deltas(name))


@pytest.mark.parametrize("name", CASES)
def test_items_and_parts_open_one_at_a_time_in_order(name: str) -> None:
    open_items: list[dict[str, Any]] = []
    count = 0
    for event in events_of(name):
        kind = event["type"]
        if kind == "response.output_item.added":
            assert not open_items or has_failed(name)  # what is broken never ends
            assert event["output_index"] == count
            open_items.append(event["item"])
            count += 1
        elif kind == "response.output_item.done":
            opened = open_items.pop()
            assert {**event["item"], **opened}.keys() == event["item"].keys()
            assert [event["item"][key] for key in ("id", "type")] == [opened["id"], opened["type"]]
        elif "item_id" in event:
            assert (event["item_id"], event["output_index"]) == (open_items[-1]["id"], count - 1)
    assert not open_items or has_failed(name)


@pytest.mark.parametrize("name", CASES)
def test_every_item_of_an_answer_can_be_sent_back(name: str) -> None:
    for item in events_of(name)[-1]["response"]["output"]:
        msgspec.convert(item, type=WholeItem)
        assert item["id"].startswith(f"{ID_PREFIXES[item['type']]}_")


def test_the_cases_have_every_type_of_item_that_answers_have() -> None:
    items = [item for name in CASES for item in events_of(name)[-1]["response"]["output"]]
    assert {item["type"] for item in items} == {kind for kind in ID_PREFIXES if not kind.endswith("_output")}


@pytest.mark.parametrize("name", [name for name in CASES if not has_failed(name)])
def test_the_last_event_has_the_object_that_a_body_is(name: str) -> None:
    last = events_of(name)[-1]["response"]
    assert last == json.loads(body(deltas(name)))
    Response.model_validate(last)
    done = [event["item"] for event in events_of(name) if event["type"] == "response.output_item.done"]
    assert last["output"] == done
    ids = [item["id"] for item in done]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", CASES)
def test_the_sdk_accumulates_each_transcript(name: str) -> None:
    """Its accumulator raises for an event that does not follow from those before."""
    read, last = read_by_sdk(stream(deltas(name))), events_of(name)[-1]
    assert (read is not None) == (last["type"] == "response.completed")
    if read is not None:
        whole = Response.model_validate(last["response"])
        assert (read.output_text, read.usage) == (whole.output_text, whole.usage)
        assert [item.id for item in read.output] == [item.id for item in whole.output]


@pytest.mark.parametrize("name", CASES)
def test_a_replay_in_other_batches_is_the_same(name: str) -> None:
    assert DIALECT.encoder is not None
    encoder = DIALECT.encoder(ANSWER)
    assert b"".join(encoder.encode([delta]) for delta in deltas(name)) == stream(deltas(name))


# ---- sequences


@pytest.mark.parametrize(
    ("name", "status", "reason", "last"),
    [
        ("text", "completed", None, "completed"),
        ("refusal", "completed", None, "completed"),
        ("empty", "completed", None, "completed"),
        ("length", "incomplete", "max_output_tokens", "incomplete"),
        ("length-in-a-call", "incomplete", "max_output_tokens", "incomplete"),
        ("content-filter", "incomplete", "content_filter", "incomplete"),
        ("cancelled", "cancelled", None, "incomplete"),
        ("failure", "failed", None, "failed"),
        ("cut", "failed", None, "failed"),
        ("cut-in-a-call", "failed", None, "failed"),
    ],
)
def test_how_it_ends(name: str, status: str, reason: str | None, last: str) -> None:
    found = events_of(name)[-1]
    response = found["response"]
    assert (found["type"], response["status"]) == (f"response.{last}", status)
    assert response["incomplete_details"] == (reason and {"reason": reason})
    if response["output"]:
        whole = "completed" if status == "completed" else "incomplete"
        assert response["output"][-1]["status"] == whole


def test_a_text() -> None:
    assert kinds(events_of("text")) == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]


def test_reasoning_ends_with_the_first_text() -> None:
    assert kinds(events_of("reasoning"))[2:12] == [
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
    ]


def test_a_summary_is_sent_instead_where_it_was_requested() -> None:
    found = events_of("reasoning-summary")
    assert kinds(found)[2:9] == [
        *("output_item.added", "reasoning_summary_part.added"),
        *("reasoning_summary_text.delta", "reasoning_summary_text.delta"),
        *("reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done"),
    ]
    item = found[-1]["response"]["output"][0]
    assert item["summary"] == [{"type": "summary_text", "text": "Let me think."}]
    assert "content" not in item


def test_interleaved_calls_are_sent_one_after_the_other() -> None:
    calls = events_of("interleaved-calls")[-1]["response"]["output"]
    assert [(call["call_id"], call["arguments"]) for call in calls] == [
        ("call_1", '{"city":"Tokyo"}'),
        ("call_2", "{}"),
    ]


@pytest.mark.parametrize("end", [Finished("length"), Finished("stop", is_cancelled=True)])
def test_no_call_of_a_cut_answer_is_completed_unless_its_arguments_are_whole(end: Finished) -> None:
    calls = [ToolCall(n, start, f"c{n}", "f") for n, start in enumerate(['{"a":', "{}", '{"b":'])]
    items = events(stream([Started(), *calls, end, Usage(1, 1)]))[-1]["response"]["output"]
    assert [item["status"] for item in items] == ["incomplete", "completed", "incomplete"]


@pytest.mark.parametrize(
    "content",
    [
        [ToolCall(n % 3, '{"a":' if n < 3 else " ", f"c{n}" if n < 3 else None, "f") for n in range(9_000)],
        [Text("a") if n % 2 else Reasoning("b") for n in range(9_000)],
        [Text("a") if n % 2 else Refusal("b") for n in range(9_000)],
    ],
    ids=["calls", "reasoning", "refusals"],
)
def test_pieces_that_alternate_make_few_events(content: list[AnyDelta]) -> None:
    """Held-back pieces are joined: their events are all made in one turn of the event loop."""
    all_deltas = [Started(), *content, Finished("stop"), Usage(1, 1)]
    found = events(stream(all_deltas))
    assert kinds(found).count("output_item.added") < MAX_PARTS + 3
    (choice, items) = (collect(all_deltas).choice(0), found[-1]["response"]["output"])
    parts = [part for item in items for part in item.get("content", ())]
    for kind, member, whole in [
        ("output_text", "text", choice.text),
        ("refusal", "refusal", choice.refusal),
        ("reasoning_text", "text", choice.reasoning),
    ]:
        assert "".join(part[member] for part in parts if part["type"] == kind) == (whole or "")
    told_calls = [item["arguments"] for item in items if item["type"] == "function_call"]
    assert told_calls == [call.arguments for call in choice.tool_calls.values()]


def test_a_call_that_is_whole_ends_when_the_next_begins() -> None:
    """Otherwise the stream would be silent while the next call arrives."""
    encoder = DIALECT.encoder and DIALECT.encoder(ANSWER)
    assert encoder is not None
    encoder.encode([Started(), ToolCall(0, '{"a":1}', "c1", "f")])
    assert b"response.output_item.done" in encoder.encode([ToolCall(1, "", "c2", "f")])


def test_name_and_call_id_are_there_from_the_beginning() -> None:
    (added, *_) = (event for event in events_of("tool-call") if event["type"] == "response.output_item.added")
    item = added["item"]
    assert (item["name"], item["call_id"], item["arguments"]) == ("get_weather", "call_1", "")
    assert item["id"].startswith("fc_" + ID)


def test_arguments_are_sent_in_the_upstreams_pieces() -> None:
    pieces = [event["delta"] for event in events_of("tool-call") if event["type"].endswith("arguments.delta")]
    assert pieces == ['{"city":', '"Tokyo"}']


def test_a_namespace_is_sent_beside_the_short_name() -> None:
    (call,) = events_of("namespaced-call")[-1]["response"]["output"]
    assert (call["namespace"], call["name"]) == ("town", "get_weather")


def test_repeated_call_ids_become_unique() -> None:
    calls: list[AnyDelta] = [ToolCall(0, "{}", "same", "f"), ToolCall(1, "{}", "same", "f")]
    found = json.loads(body([Started(), *calls, Finished("tool_calls"), Usage(1, 1)]))
    assert len({call["call_id"] for call in found["output"]}) == 2


def test_only_a_completed_response_has_the_time_of_its_end() -> None:
    first, *_, last = events_of("text")
    times = [event["response"]["completed_at"] for event in (first, last)]
    assert times == [None, ANSWER.created + 2]
    for finish in (Finished("length"), Finished("stop", is_cancelled=True)):
        cut: list[AnyDelta] = [Started(), Text("a"), finish, Usage(1, 1, completed_at=ANSWER.created + 2)]
        assert json.loads(body(cut))["completed_at"] is None


def test_it_never_completes_before_it_was_created() -> None:
    early: list[AnyDelta] = [
        Started(),
        Text("a"),
        Finished("stop"),
        Usage(1, 1, completed_at=ANSWER.created - 1),
    ]
    assert json.loads(body(early))["completed_at"] == ANSWER.created


def test_all_usage_numbers_are_sent() -> None:
    assert events_of("cache")[-1]["response"]["usage"] == {
        "input_tokens": 12,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 5},
        "output_tokens": 18,
        "output_tokens_details": {"reasoning_tokens": 6},
        "total_tokens": 30,
    }


def test_a_failure_has_both_shapes_and_completes_no_item() -> None:
    (*_, error, failed) = events_of("failure-in-a-call")
    assert error["error"]["message"] == error["message"] == failed["response"]["error"]["message"]
    assert isinstance(error["code"], str)
    assert failed["response"]["usage"] is None
    assert "response.output_item.done" not in {event["type"] for event in events_of("failure-in-a-call")}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("response_format", "text.format"),
        ("response_format.json_schema.schema", "text.format"),
        ("max_completion_tokens", "max_output_tokens"),
        ("reasoning_effort", "reasoning.effort"),
        ("messages[1].content[0]", "input"),
        ("tools[0].name", "tools[0].name"),
    ],
)
def test_a_refusal_by_the_upstream_has_the_clients_own_name(theirs: str, ours: str) -> None:
    message = "This model's upstream does not support '{}'."
    refused = Failed(message.format(theirs), "invalid_request_error", "x", theirs, 400)
    (error, _) = events(stream([refused]))
    whole = json.loads(DIALECT.envelope(refused).body)["error"]
    assert {(found["param"], found["message"]) for found in (error, error["error"], whole)} == {
        (ours, message.format(ours))
    }


@pytest.mark.parametrize("name", ["cut", "cut-in-a-call"])
def test_a_usage_without_the_end_of_the_answer_is_a_failure(name: str) -> None:
    """The usage is charged, so the failed response has it."""
    (*_, error, failed) = events_of(name)
    assert error["code"] == failed["response"]["error"]["code"] == "stream_unavailable"
    assert failed["response"]["usage"]["total_tokens"] == 30
    assert failed["response"]["completed_at"] is None
    assert "response.output_item.done" not in {event["type"] for event in events_of(name)}
    folder = DIALECT.folder(ANSWER)
    for delta in deltas(name):
        folder.add(delta)
    assert folder.failure is not None
    assert folder.failure.code == "stream_unavailable"


@pytest.mark.parametrize("after", [-1, 4])
def test_a_resumed_stream_without_its_end_fails_as_well(after: int) -> None:
    resumed = events(Encoder(ANSWER, after).encode(deltas("cut")))
    assert resumed == events_of("cut")[after + 1 :]
    assert kinds(resumed)[-2:] == ["error", "failed"]


def test_what_was_held_back_comes_before_the_failure() -> None:
    """It is charged. The broken call has no end, and the whole one does."""
    found = events_of("failure-behind-a-call")
    assert kinds(found)[2:] == [
        *("output_item.added", "function_call_arguments.delta"),
        *("output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "error", "failed"),
    ]
    items = found[-1]["response"]["output"]
    assert [item["status"] for item in items] == ["incomplete", "completed", "incomplete"]


@pytest.mark.parametrize("content", [[Text("a"), Refusal("b")], [Reasoning("a"), Text("b")]])
def test_a_failure_leaves_no_held_item_whole_but_a_whole_call(content: list[AnyDelta]) -> None:
    """More of a text may be on its way, also where another item was held behind it."""
    open_call, whole_call = ToolCall(0, '{"a":', "c0", "f"), ToolCall(1, "{}", "c1", "f")
    found = events(stream([Started(), open_call, *content, whole_call, ToolCall(2, "", "c2", "f"), FAILURE]))
    items = found[-1]["response"]["output"]
    completed = [item for item in items if item["status"] == "completed"]
    assert [item["call_id"] for item in completed] == ["c1"]
    assert [event["item"] for event in found if event["type"] == "response.output_item.done"] == completed
    assert not {"content_part.done", "output_text.done", "reasoning_text.done"} & {*kinds(found)}


def test_a_stream_that_may_go_on_keeps_what_is_held_back() -> None:
    assert DIALECT.encoder is not None
    encoder = DIALECT.encoder(ANSWER)
    (*_, last) = events(encoder.encode(deltas("failure-behind-a-call")[:-1]))
    found = events(encoder.failed(FAILURE))
    assert kinds(found) == ["error", "failed"]
    # Numbers of their own would be those of other events when the stream is read again.
    assert [event["sequence_number"] for event in found] == [last["sequence_number"]] * 2


def test_a_stream_that_breaks_off_before_it_has_come_so_far_says_so() -> None:
    encoder = Encoder(ANSWER, after=1_000)
    assert encoder.encode(deltas("failure-behind-a-call")[:-1]) == b""
    assert [event["sequence_number"] for event in events(encoder.failed(FAILURE))] == [1_000, 1_000]


def test_a_failure_ends_a_stream_behind_any_number() -> None:
    """The numbers behind which a client reads on may be those of events that are lost."""
    content = deltas("failure-behind-a-call")
    whole = events(Encoder(ANSWER).encode(content))
    for after in range(len(whole) + 2):
        *before, last = events(Encoder(ANSWER, after).encode(content))
        assert before == whole[after + 1 : -1]
        assert (last["type"], last["sequence_number"]) == ("response.failed", max(after, len(whole) - 1))


def test_a_background_response_was_queued() -> None:
    (created, queued, running, *_) = events_of("background")
    assert [created["response"]["status"], queued["type"]] == ["queued", "response.queued"]
    assert running["response"]["status"] == "in_progress"


def test_a_large_echo_is_left_out() -> None:
    tool = {"type": "function", "name": "f", "parameters": {"a": "x" * 40_000}}
    context = asked(instructions="y" * 40_000, tools=[tool]).context
    created = events(stream([Started(context=context)]))[0]["response"]
    assert (created["instructions"], created["tools"]) == (None, [])


# ---- any deltas

_words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_calls = st.builds(ToolCall, st.integers(0, 2), _words)
_content = st.lists(st.one_of(*(st.builds(kind, _words) for kind in (Text, Reasoning, Refusal)), _calls))


def well_formed(content: Sequence[AnyDelta]) -> list[AnyDelta]:
    """Name the calls on their first pieces, number them as they come, and let nothing follow a whole call."""
    numbers: dict[int, int] = {}
    arguments: dict[int, str] = {}
    found: list[AnyDelta] = []
    for delta in content:
        if isinstance(delta, ToolCall):
            is_new = delta.call_index not in numbers
            number = numbers.setdefault(delta.call_index, len(numbers))
            before = arguments.get(number, "")
            if as_object(before) is None:
                known = (f"call_{number}", f"f{number}") if is_new else (None, None)
                found.append(ToolCall(number, delta.arguments, *known))
                arguments[number] = before + delta.arguments
        else:
            found.append(delta)
    return found


def test_what_follows_a_whole_call_behind_another_item_is_dropped() -> None:
    whole_call, text = ToolCall(0, "{}", "c0", "f"), Text("after it")
    response = read_by_sdk(
        stream(
            [Started(), whole_call, text, ToolCall(0, " "), ToolCall(0, "0"), Finished("stop"), Usage(3, 5)]
        )
    )
    assert [item.type for item in response.output] == ["function_call", "message"]
    assert response.output[0].arguments == "{}"


@example([ToolCall(0, "{}"), Text("0"), ToolCall(0, "0")])
@given(_content)
def test_a_stream_that_breaks_off_says_all_that_the_deltas_say(content: list[AnyDelta]) -> None:
    all_deltas = [Started(), *well_formed(content), FAILURE]
    choice = collect(all_deltas).choice(0)
    said: dict[str, str] = {}
    for event in events(stream(all_deltas)):
        kind, _, what = event["type"].removeprefix("response.").partition(".")
        if what == "delta":
            key = event["item_id"] if kind == "function_call_arguments" else kind
            said[key] = said.get(key, "") + event["delta"]
    calls = [call.arguments for call in choice.tool_calls.values() if call.arguments]
    texts = [text for text in (choice.text, choice.reasoning, choice.refusal) if text]
    assert sorted(said.values()) == sorted(calls + texts)


@given(_content)
def test_the_sdk_reads_what_the_deltas_say(content: list[AnyDelta]) -> None:
    all_deltas = [Started(), *well_formed(content), Finished("stop"), Usage(3, 5)]
    data = stream(all_deltas)
    choice = collect(all_deltas).choice(0)
    response = read_by_sdk(data)
    assert response.output_text == (choice.text or "")
    calls = [item for item in response.output if item.type == "function_call"]
    assert {(call.call_id, call.name): call.arguments for call in calls} == {
        (call.id, call.name): call.arguments for call in choice.tool_calls.values()
    }
    parts = [part for item in response.output if item.type == "message" for part in item.content]
    assert "".join(part.refusal for part in parts if part.type == "refusal") == (choice.refusal or "")
    assert (response.usage.input_tokens, response.usage.output_tokens) == (3, 5)
    deltas_of_calls: dict[str, str] = {}
    for event in events(data):
        if event["type"] == "response.function_call_arguments.delta":
            deltas_of_calls[event["item_id"]] = deltas_of_calls.get(event["item_id"], "") + event["delta"]
    assert deltas_of_calls == {call.id: call.arguments for call in calls if call.arguments}
