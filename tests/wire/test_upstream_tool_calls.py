"""The tool calls that upstreams send, whose fragments are numbered and named in many ways."""

from typing import Any

import pytest

from chatapi.wire.caps import MAX_TOOL_CALLS
from chatapi.wire.deltas import Finished, Started, Text, ToolCall, Usage
from tests.wire.upstream_events import STOP, call, chunk, collected, failure_code, new_reader, read, tools


def test_tool_call_fragments_carry_id_and_name_once() -> None:
    events = [
        tools(call("", "f", index=0, id="c1")),
        tools(call("{", "f", index=0, id="c1")),
        tools(call("}", index=0)),
    ]
    assert new_reader().read(events) == [
        Started(),
        ToolCall(0, "", "c1", "f"),
        ToolCall(0, "{"),
        ToolCall(0, "}"),
    ]


def test_the_first_piece_of_a_call_has_what_the_upstream_wants_back() -> None:
    signed = {"google": {"thought_signature": "c2ln"}}
    events = [tools(call("{", index=0, id="c1", extra_content=signed)), tools(call("}", "f", index=0))]
    assert new_reader().read(events) == [Started(), ToolCall(0, "{}", "c1", "f", extra_content=signed)]


@pytest.mark.parametrize("unknown", ["c2ln", [], 1, True])
def test_what_an_upstream_wants_back_is_left_out_if_it_is_no_object(unknown: object) -> None:
    events = [tools(call("{}", "f", index=0, id="c1", extra_content=unknown))]
    assert new_reader().read(events) == [Started(), ToolCall(0, "{}", "c1", "f")]


@pytest.mark.parametrize("index", [{"index": 0}, {}])
def test_calls_that_share_an_index_are_kept_apart_by_id_and_name(index: dict[str, Any]) -> None:
    events = [
        tools(call("{", "f", id="a", **index)),
        tools(call("}", **index)),
        tools(call("{}", "f", id="b", **index)),
    ]
    assert collected(*events) == [(0, "a", "f", "{}"), (1, "b", "f", "{}")]


def test_a_repeated_name_continues_a_call_until_it_is_whole() -> None:
    fragments = [
        call("{", "f", index=0),
        call("}", "f", index=0),
        call("{}", "f", index=0),
        call("[]", "g", index=0),
    ]
    found = [(number, name, arguments) for number, _, name, arguments in collected(*map(tools, fragments))]
    assert found == [(0, "f", "{}"), (1, "f", "{}"), (2, "g", "[]")]


@pytest.mark.parametrize("id_", ["same", "", None])
def test_no_two_calls_have_the_same_id(id_: str | None) -> None:
    """Clients send all calls and results of a conversation back, and match them by id."""
    calls = tools(call("{}", "f", index=0, id=id_), call("{}", "f", index=1, id=id_))
    ids = [found for _, found, *_ in collected(calls)]
    assert len({*ids}) == 2
    assert ids[0] == "same" if id_ else {*ids}.isdisjoint(found for _, found, *_ in collected(calls))


@pytest.mark.parametrize("index", [{"index": 0}, {}])
@pytest.mark.parametrize("name", [None, "f"])
def test_calls_that_share_an_index_go_on_by_their_ids(index: dict[str, Any], name: str | None) -> None:
    begun = tools(call("{", "f", id="a", **index), call("[", "g", id="b", **index))
    assert collected(begun, tools(call("}", name, id="a", **index)), tools(call("]", id="b", **index))) == [
        (0, "a", "f", "{}"),
        (1, "b", "g", "[]"),
    ]


def test_a_fragment_without_an_id_goes_on_where_its_index_was_last() -> None:
    begun = tools(call("{", "f", index=0, id="a"), call("[]", "g", index=0, id="b"))
    assert collected(begun, tools(call("1", index=0, id="a")), tools(call("}", index=0))) == [
        (0, "a", "f", "{1}"),
        (1, "b", "g", "[]"),
    ]


def test_calls_that_share_an_id_are_kept_apart_by_index() -> None:
    found = collected(tools(call("{}", "f", index=0, id="a"), call("[]", "g", index=1, id="a")))
    assert [(number, name, arguments) for number, _, name, arguments in found] == [
        (0, "f", "{}"),
        (1, "g", "[]"),
    ]


NOTHING = [
    {},
    {"function": {}},
    {"function": {"name": None, "arguments": None}},
    {"id": "", "function": {"name": "", "arguments": ""}},
]


@pytest.mark.parametrize("nothing", NOTHING)
def test_a_fragment_that_says_nothing_is_no_call(nothing: dict[str, Any]) -> None:
    said = [Started(), Text("a"), Finished("stop")]
    assert (
        read(
            chunk({"content": "a", "tool_calls": [{"index": 0, **nothing}]}),
            chunk({"tool_calls": [nothing]}),
            STOP,
        )
        == said
    )
    assert read(chunk({"content": "a", "function_call": nothing.get("function", {})}), STOP) == said
    assert collected(tools(call("{}", "f", index=0, id="a"), {"index": 1, **nothing})) == [
        (0, "a", "f", "{}")
    ]


def test_a_choice_that_calls_has_not_just_stopped() -> None:
    called = chunk({"content": "a", "tool_calls": [call("{}", "f", index=0, id="c")]})
    old = chunk({"function_call": {"name": "f", "arguments": "{}"}})
    assert read(called, STOP)[-1] == Finished("tool_calls")
    assert read(old, STOP)[-1] == Finished("function_call")
    assert read(called, chunk(finish_reason="length"))[-1] == Finished("length")


def test_an_id_made_up_for_every_fragment_starts_no_call() -> None:
    events = [tools(call("{", "f", index=0, id="r1")), tools(call("}", index=0, id="r2"))]
    assert collected(*events) == [(0, "r1", "f", "{}")]


def test_interleaved_calls_with_gaps_in_their_numbers_become_contiguous() -> None:
    events = [
        tools(call("{", "f", index=1, id="a")),
        tools(call("[", "g", index=4, id="b")),
        tools(call("}", index=1), call("]", index=4)),
    ]
    assert collected(*events) == [(0, "a", "f", "{}"), (1, "b", "g", "[]")]


def test_a_call_waits_for_its_name() -> None:
    assert new_reader().read(
        [tools({"index": 0, "id": "a"}), tools(call("{", index=0)), tools(call("}", "f", index=0))]
    ) == [Started(), ToolCall(0, "{}", "a", "f")]


def test_a_call_without_a_name_is_an_error() -> None:
    assert (
        failure_code(tools(call("{}", index=0, id="a")), chunk(finish_reason="tool_calls"))
        == "upstream_invalid_response"
    )


def test_custom_tools_and_arguments_as_objects_are_read() -> None:
    custom = {"index": 0, "id": "a", "type": "custom", "custom": {"name": "sh", "input": "ls"}}
    function = {"index": 1, "id": "b", "function": {"name": "f", "arguments": {"x": 1}}}
    assert new_reader().read([tools(custom, function)]) == [
        Started(),
        ToolCall(0, "ls", "a", "sh", kind="custom"),
        ToolCall(1, '{"x":1}', "b", "f"),
    ]


@pytest.mark.parametrize("nothing", ["", " \n", None])
@pytest.mark.parametrize("reason", ["tool_calls", "stop"])
def test_a_call_without_arguments_has_an_empty_object(nothing: str | None, reason: str) -> None:
    """Some servers send no text for a function without parameters; clients decode it as JSON."""
    empty = {"index": 0, "id": "a", "function": {"name": "f", "arguments": nothing}}
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    called = tools(empty, call("[]", "g", index=1, id="b"))
    said = read(called, chunk(usage=usage), chunk(finish_reason=reason))
    assert said == [
        Started(),
        ToolCall(0, "", "a", "f"),
        ToolCall(1, "[]", "b", "g"),
        ToolCall(0, "{}"),
        Finished("tool_calls"),
        Usage(3, 1),
    ]


def test_null_arguments_are_an_empty_object() -> None:
    assert collected(tools(call("null", "f", index=0, id="a"))) == [(0, "a", "f", "{}")]
    value = [tools(call(piece, "f", index=0, id="a")) for piece in ('{"b":', "null", "}")]
    assert collected(*value) == [(0, "a", "f", '{"b":null}')]
    custom = {"index": 0, "id": "a", "type": "custom", "custom": {"name": "sh", "input": "null"}}
    assert collected(tools(custom)) == [(0, "a", "sh", "null")]


def test_arguments_do_not_begin_with_a_piece_of_white_space() -> None:
    """The stream helpers of OpenAI's and Anthropic's SDKs fail on it."""
    begun = tools(call(" ", "f", index=0, id="a"))
    rest = [tools(call(piece, index=0)) for piece in ("\n", "{", " ")]
    assert new_reader().read([begun, *rest]) == [
        Started(),
        ToolCall(0, "", "a", "f"),
        ToolCall(0, "{"),
        ToolCall(0, " "),
    ]


def test_only_a_whole_function_call_gets_an_empty_object() -> None:
    custom = {"index": 0, "id": "a", "type": "custom", "custom": {"name": "sh", "input": ""}}
    called = ToolCall(0, "", "a", "sh", kind="custom")
    assert read(tools(custom), STOP) == [Started(), called, Finished("tool_calls")]
    cut = [tools(call("", "f", index=0, id="a")), chunk(finish_reason="length")]
    assert read(*cut) == [Started(), ToolCall(0, "", "a", "f"), Finished("length")]


def test_the_deprecated_function_call_without_arguments_has_an_empty_object() -> None:
    said = read(chunk({"function_call": {"name": "f", "arguments": ""}}), STOP)
    assert said[-2:] == [ToolCall(0, "{}", kind="function_call"), Finished("function_call")]


# Log probabilities


def test_a_choice_has_a_bounded_number_of_tool_calls() -> None:
    calls = [call("{}", "f", index=number, id=f"c{number}") for number in range(MAX_TOOL_CALLS)]
    assert len(collected(tools(*calls))) == MAX_TOOL_CALLS
    assert (
        failure_code(tools(*calls, call("{}", "f", index=MAX_TOOL_CALLS, id="more")))
        == "upstream_invalid_response"
    )
