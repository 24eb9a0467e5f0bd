"""The sandbox engine: tool calls, JSON, and answers that fit a schema."""

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from chatapi.wire import tokens
from chatapi.wire.deltas import Finished, ToolCall
from chatapi.wire.protocols.messages.request import parse as parse_messages
from chatapi.worker.engines import Call, Target
from tests.chatapi.worker.sandbox_calls import (
    CLOCK,
    SCRIBBLE,
    WEATHER,
    answer_to,
    broken_off,
    call,
    deltas_of,
    text_of,
    usage_of,
)
from tests.wire.folding import collect


async def test_a_tool_call_names_the_tool_and_fits_its_schema() -> None:
    answer = await answer_to(upstream_model="sandbox-tool-call", tools=[WEATHER, CLOCK])
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason, len(choice.tool_calls)) == (None, "tool_calls", 1)
    made = choice.tool_calls[0]
    assert made.name == "weather"
    assert made.id.startswith("call_")
    jsonschema.validate(json.loads(made.arguments), WEATHER["function"]["parameters"])  # type: ignore[index]
    assert usage_of(answer).completion_tokens == tokens.count(made.name) + tokens.count(made.arguments)


async def test_parallel_tool_calls_take_the_tools_in_turn() -> None:
    answer = await answer_to(upstream_model="sandbox-parallel-tool-calls", tools=[WEATHER, CLOCK], n=2)
    made = [answer.choices[index].tool_calls[position] for index in range(2) for position in range(2)]
    assert [one.name for one in made] == ["weather", "clock"] * 2
    assert len({one.id for one in made}) == 4


async def test_a_tool_of_more_than_128_is_called() -> None:
    body = {
        "model": "sandbox",
        "max_tokens": 99,
        "messages": [{"role": "user", "content": "[sandbox tool_calls=1]"}],
        "tools": [{"name": f"tool_{number}", "input_schema": {}} for number in range(129)],
        "tool_choice": {"type": "tool", "name": "tool_128"},
    }
    request = parse_messages(json.dumps(body).encode())
    answer = collect(await deltas_of(Call("0" * 32, request, Target(engine="sandbox"), 99)))
    assert [made.name for made in answer.choices[0].tool_calls.values()] == ["tool_128"]


async def test_fragments_carry_id_and_name_once() -> None:
    deltas = await deltas_of(call("[sandbox tool_calls=1]", tools=[WEATHER]))
    fragments = [delta for delta in deltas if isinstance(delta, ToolCall)]
    assert len(fragments) > 3
    assert [bool(fragment.id and fragment.name) for fragment in fragments] == [True] + [False] * (
        len(fragments) - 1
    )


async def test_a_custom_tool_gets_text() -> None:
    made = (await answer_to("[sandbox tool_calls=1]", tools=[SCRIBBLE])).choices[0].tool_calls[0]
    assert (made.name, made.kind, tokens.count(made.arguments)) == ("scribble", "custom", 8)


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("none", []),
        ("required", ["weather"]),
        ({"type": "function", "function": {"name": "clock"}}, ["clock"]),
        ({"type": "custom", "custom": {"name": "scribble"}}, ["scribble"]),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CLOCK]}}, ["clock"]),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CLOCK]}}, []),
    ],
)
async def test_tool_choice_is_obeyed_by_the_plain_sandbox(choice: Any, names: list[str]) -> None:
    answer = await answer_to(tools=[WEATHER, CLOCK, SCRIBBLE], tool_choice=choice)
    assert [made.name for made in answer.choices[0].tool_calls.values()] == names


async def test_no_parallel_calls_when_the_request_forbids_them() -> None:
    answer = await answer_to(
        upstream_model="sandbox-parallel-tool-calls", tools=[WEATHER, CLOCK], parallel_tool_calls=False
    )
    assert len(answer.choices[0].tool_calls) == 1


async def test_without_tools_an_example_is_called() -> None:
    assert (await answer_to(upstream_model="sandbox-tool-call")).choices[0].tool_calls[
        0
    ].name == "get_weather"


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


@pytest.mark.parametrize("behind", [[], [{"role": "user", "content": [PICTURE]}]], ids=["text", "picture"])
async def test_a_tools_answer_gets_text_so_that_an_agent_ends(behind: list[Any]) -> None:
    made = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "[sandbox tokens=4]"},
        {"role": "assistant", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]
    answer = await answer_to(upstream_model="sandbox-tool-call", messages=[*messages, *behind], tools=[CLOCK])
    assert (tokens.count(text_of(answer)), answer.choices[0].finish_reason) == (4, "stop")


async def test_old_functions_are_called_too() -> None:
    answer = await answer_to(functions=[CLOCK["function"]], function_call={"name": "clock"})
    assert answer.choices[0].tool_calls[0].name == "clock"


async def test_old_functions_get_the_one_call_that_they_know() -> None:
    functions = [CLOCK["function"], WEATHER["function"]]
    deltas = await deltas_of(call("[sandbox tool_calls=2]", functions=functions))
    fragments = [delta for delta in deltas if isinstance(delta, ToolCall)]
    assert {(each.kind, each.id, each.call_index) for each in fragments} == {("function_call", None, 0)}
    assert [each.finish_reason for each in deltas if isinstance(each, Finished)] == ["function_call"]


async def test_json_mode_gives_an_object() -> None:
    assert isinstance(json.loads(text_of(await answer_to(response_format={"type": "json_object"}))), dict)


async def test_structured_output_fits_its_schema() -> None:
    schema = WEATHER["function"]["parameters"]  # type: ignore[index]
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    jsonschema.validate(json.loads(text_of(await answer_to(response_format=wanted))), schema)


async def test_a_schema_that_is_too_large_is_a_400_that_names_the_parameter() -> None:
    large = {"enum": ["x" * 2_000 + str(last) for last in range(900)]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": large}}
    tool = {"type": "function", "function": {"name": "f", "parameters": large}}
    asked: list[dict[str, Any]] = [{"response_format": wanted}, {"tools": [tool], "tool_choice": "required"}]
    params = ("response_format.json_schema.schema", "tools[0].function.parameters")
    for parameters, param in zip(asked, params, strict=True):
        got, failure = await broken_off(call(**parameters))
        assert (got, failure.status, failure.code, failure.param) == ([], 400, "unsupported_schema", param)
        assert "more than 65536 bytes" in failure.message


async def test_an_unsupported_schema_is_a_400_that_names_the_path_and_what_is_supported() -> None:
    schema = {"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    got, failure = await broken_off(call(response_format=wanted))
    assert (got, failure.status, failure.code) == ([], 400, "unsupported_schema")
    assert failure.param == "response_format.json_schema.schema.properties.zip"
    assert "does not support 'pattern' in a JSON schema, only type, enum," in failure.message


async def test_an_unsupported_schema_of_a_function_names_the_function() -> None:
    function = {"name": "f", "parameters": {"properties": {"x" * 1_000: {"not": {}}}}}
    _, failure = await broken_off(call("[sandbox tool_calls=2]", tools=[CLOCK], functions=[function]))
    assert (failure.param or "").startswith("functions[0].parameters.properties.xxx")
    assert len(failure.param or "") == 200
