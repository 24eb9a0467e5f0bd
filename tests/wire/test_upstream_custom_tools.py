"""Custom tools as functions, for upstreams that know nothing else: there and back."""

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapi.wire import requests
from chatapi.wire.deltas import AnyDelta, Finished, Text, ToolCall
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.parsed_request import parse
from chatapi.wire.upstream.custom_tools import CustomCalls, as_functions
from chatapi.wire.upstream.openai_request import upstream_body
from tests.wire.response_cases import FUNCTION

GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"+'}
PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Patches.",
    "format": GRAMMAR,
}
CALL = {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": 'a "b"\n'}
OUTPUT = {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"}
SCHEMA = {"type": "object", "required": ["input"], "additionalProperties": False}


def request(**members: Any) -> GenerationRequest:
    body = json.dumps({"model": "m", "input": "hi", "tools": [PATCH, FUNCTION]} | members).encode()
    return requests.from_bytes(parse(body, "responses", None).content)


def body_of(asked: GenerationRequest) -> dict[str, Any]:
    """The upstream's body."""
    found = upstream_body(asked, model="m", max_output_tokens=9, extra_parameters=frozenset())
    decoded: dict[str, Any] = json.loads(msgspec.json.encode(found))
    return decoded


def forwarded(**members: Any) -> dict[str, Any]:
    return body_of(as_functions(request(**members)))


def translated(*batches: list[AnyDelta]) -> list[AnyDelta]:
    calls = CustomCalls()
    calls.expect(request())
    return [delta for batch in batches for delta in calls.translate(batch)]


def pieces(*arguments: str) -> list[ToolCall]:
    first, *rest = arguments
    return [ToolCall(0, first, "c1", "apply_patch"), *(ToolCall(0, piece) for piece in rest)]


def input_of(*arguments: str) -> str:
    """Return the input that the client gets of a call whose arguments come in these pieces."""
    found = translated([*pieces(*arguments)], [Finished("tool_calls")])
    assert found.pop() == Finished("tool_calls")
    assert all(isinstance(call, ToolCall) and call.kind == "custom" for call in found)
    calls = [call for call in found if isinstance(call, ToolCall)]
    assert calls[0].name == "apply_patch"
    return "".join(call.arguments for call in calls)


# ---- there


def test_a_custom_tool_is_a_function_with_one_string() -> None:
    custom, function = forwarded()["tools"]
    text = {"type": "string", "description": 'Must follow this grammar (lark):\nstart: "a"+'}
    assert custom == {
        "type": "function",
        "function": {
            "name": "apply_patch",
            "description": "Patches.",
            "parameters": SCHEMA | {"properties": {"input": text}},
        },
    }
    assert function["function"]["name"] == "get_weather"


def test_a_tool_of_free_text_has_no_grammar() -> None:
    (tool,) = forwarded(tools=[{"type": "custom", "name": "say", "format": {"type": "text"}}])["tools"]
    assert tool["function"]["parameters"]["properties"] == {"input": {"type": "string"}}


def test_replayed_calls_are_calls_of_the_function() -> None:
    _, turn, output = forwarded(input=[{"role": "user", "content": "hi"}, CALL, OUTPUT])["messages"]
    (call,) = turn["tool_calls"]
    assert (call["type"], call["id"], call["function"]["name"]) == ("function", "c1", "apply_patch")
    assert json.loads(call["function"]["arguments"]) == {"input": 'a "b"\n'}
    assert (output["role"], output["tool_call_id"], output["content"]) == ("tool", "c1", "done")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (
            {"type": "custom", "name": "apply_patch"},
            {"type": "function", "function": {"name": "apply_patch"}},
        ),
        ("required", "required"),
    ],
)
def test_the_choice_of_a_tool_names_the_function(choice: Any, expected: Any) -> None:
    assert forwarded(tool_choice=choice)["tool_choice"] == expected


@pytest.mark.parametrize(
    ("name", "kind"), [("apply_patch", "custom"), ("get_weather", "function")], ids=["custom", "function"]
)
def test_of_allowed_tools_the_others_are_not_sent(name: str, kind: str) -> None:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": kind, "name": name}]}
    sent = forwarded(tool_choice=choice)
    assert [tool["function"]["name"] for tool in sent["tools"]] == [name]
    assert sent["tool_choice"] == "required"


@pytest.mark.parametrize("named", [{"name": ["get_weather"]}, {"name": {}}, {}, "get_weather", None])
def test_an_allowed_tool_may_have_any_form(named: Any) -> None:
    """Of an entry OpenAI's reference says only that it is an object."""
    choice = {"mode": "auto", "tools": [{"type": "function", "function": named}]}
    tool = {"type": "function", "function": {"name": "get_weather"}}
    members = {"tools": [tool], "tool_choice": {"type": "allowed_tools", "allowed_tools": choice}}
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]} | members).encode()
    sent = body_of(as_functions(requests.from_bytes(parse(body, "chat.completions", None).content)))
    assert sent["tool_choice"] == members["tool_choice"]


def test_chat_completions_are_the_same() -> None:
    custom = {"type": "custom", "custom": {"name": "apply_patch"}}
    called = {"id": "c1", "type": "custom", "custom": {"name": "apply_patch", "input": "a"}}
    output = {"role": "tool", "tool_call_id": "c1", "content": "b"}
    turns = [{"role": "assistant", "tool_calls": [called]}, output]
    body = json.dumps({"model": "m", "messages": turns, "tools": [custom], "tool_choice": custom}).encode()
    sent = as_functions(requests.from_bytes(parse(body, "chat.completions", None).content))
    found = body_of(sent)
    kinds = [found["tools"][0], found["tool_choice"], found["messages"][0]["tool_calls"][0]]
    assert [each["type"] for each in kinds] == ["function"] * 3


def test_a_request_without_custom_tools_stays_as_it_is() -> None:
    plain = request(tools=[FUNCTION])
    assert body_of(as_functions(plain)) == body_of(plain)


def test_the_hold_covers_the_function() -> None:
    """It is longer than the custom tool, and the upstream's own count is believed up to the hold."""
    tools = [{"type": "custom", "name": f"t{number}"} for number in range(128)]
    calls = [CALL | {"input": "\n" * 5_000}, OUTPUT]
    asked = request(tools=tools, input=calls)
    sent = as_functions(asked)
    assert asked.prompt_bytes == sent.prompt_bytes
    assert asked.prompt_text == sent.prompt_text


# ---- and back


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input":"a b"}', "a b"),
        (' {\n "input" : "a\\nb\\u00e9\\"" } ', 'a\nbé"'),
        ('{"input":"\\ud83d\\ude00!"}', "😀!"),
        ('{"input":""}', ""),
        (" { } ", ""),
        ("{}{", "{}{"),
        ('{"input":"a\nb"}', "a\nb"),
        ('{"input":"\\d+\\\\d"}', "\\d+\\d"),
        ('{"input":"\\uzz"}', "\\uzz"),
        ('{"input":"\\ud83d!"}', "�!"),
        ('{"input":"cut', "cut"),
        ('{"input":"cut\\', "cut"),
        ('{"input":"a","more":"b"}', "a"),
        ("*** Begin Patch", "*** Begin Patch"),
        ('{"patch":"a"}', '{"patch":"a"}'),
        ('{"input":5}', '{"input":5}'),
        ('{"inp', '{"inp'),
        (" " * 99, " " * 99),
    ],
)
def test_the_input_is_the_string(arguments: str, text: str) -> None:
    assert input_of(arguments) == text
    assert input_of(*arguments) == text
    assert input_of("", arguments, "") == text


@given(st.text(st.characters(exclude_categories=["Cs"])), st.booleans(), st.lists(st.integers(0, 40)))
def test_any_text_in_any_pieces(text: str, is_ascii: bool, cuts: list[int]) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=is_ascii)
    places = sorted({0, len(arguments), *(cut % (len(arguments) + 1) for cut in cuts)})
    assert input_of(*(arguments[begin:end] for begin, end in pairwise(places))) == text


def test_the_input_comes_as_it_is_written() -> None:
    found = translated([*pieces("", '{"in', 'put": "*** ', 'Begin"', "}")])
    assert found == [
        ToolCall(0, "", "c1", "apply_patch", kind="custom"),
        ToolCall(0, "*** ", kind="custom"),
        ToolCall(0, "Begin", kind="custom"),
    ]


def test_other_calls_and_texts_pass() -> None:
    others: list[AnyDelta] = [Text("a"), ToolCall(1, '{"input":"x"}', "c2", "get_weather"), ToolCall(1, " ")]
    assert translated(others) == others
    custom = ToolCall(0, "a", "c1", "apply_patch", kind="custom")
    assert translated([custom]) == [custom]


def test_calls_of_several_choices_are_kept_apart() -> None:
    batch: list[AnyDelta] = [
        ToolCall(0, '{"input":"a', "c1", "apply_patch"),
        ToolCall(0, '{"input":"b', "c2", "apply_patch", index=1),
        ToolCall(0, 'c"}'),
        ToolCall(0, 'd"}', index=1),
    ]
    found = [delta for delta in translated(batch) if isinstance(delta, ToolCall)]
    assert [(call.index, call.arguments) for call in found] == [(0, "a"), (1, "b"), (0, "c"), (1, "d")]
