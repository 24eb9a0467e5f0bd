"""The parameters of a chat request: strict types, ranges and caps, each refusal naming its parameter."""

import json
from typing import Any

import pytest

from chatapi.wire.protocols.chat.request import ChatRequest
from chatapi.wire.protocols.chat.request import parse as parse_chat
from chatapi.wire.upstream.openai_request import upstream_body
from tests.wire.request_bodies import CUSTOM, FUNCTION, chat, chat_body, chat_refusal, refusal

NUMBERS = ["temperature", "top_p", "presence_penalty", "frequency_penalty"]
INTEGERS = ["n", "seed", "max_tokens", "max_completion_tokens", "top_logprobs"]
BOOLEANS = ["stream", "logprobs", "parallel_tool_calls", "store"]
STRINGS = [
    "model",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "reasoning_effort",
    "verbosity",
    "service_tier",
]
OBJECTS = [
    "stream_options",
    "logit_bias",
    "metadata",
    "audio",
    "prediction",
    "response_format",
    "web_search_options",
]
OBJECTS += ["moderation", "prompt_cache_options"]
ARRAYS = ["messages", "tools", "functions", "modalities"]


WRONG_TYPES: list[tuple[list[str], list[Any]]] = [
    (NUMBERS, ["5", "١٢", "1_0", True, {}, []]),
    (INTEGERS, ["5", "١٢", "1_0", True, {}, [], 0.5, 1.0]),
    (BOOLEANS, ["5", "true", 0, 1, {}, []]),
    (STRINGS, [1, True, {}, []]),
    (OBJECTS, ["5", 1, True, []]),
    (ARRAYS, ["5", 1, True, {}]),
    (["stop"], [1, True, {}]),
    (["tool_choice", "function_call"], [1, True, []]),
]


@pytest.mark.parametrize(
    ("name", "values"), [(name, values) for names, values in WRONG_TYPES for name in names]
)
def test_it_refuses_every_wrong_type(name: str, values: list[Any]) -> None:
    for value in values:
        assert chat_refusal(**{name: value}) == (name, "invalid_type")


def test_null_is_absent() -> None:
    for name in set(ChatRequest.__struct_fields__) - {"model", "messages"}:
        assert chat(**{name: None}) == chat()


@pytest.mark.parametrize("name", ["model", "messages"])
def test_it_misses_what_is_required(name: str) -> None:
    assert chat_refusal(**{name: None}) == (name, "missing_required_parameter")
    body = json.loads(chat_body())
    del body[name]
    assert refusal(json.dumps(body).encode()).code == "missing_required_parameter"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [0, 1, 2, 0.7, -0.0, 2.0]),
        ("top_p", [0, 1, 0.5, 1.0]),
        ("presence_penalty", [-2, 2, 0.1]),
        ("frequency_penalty", [-2.0, 2.0, 0]),
        ("n", [1, 128]),
        ("seed", [0, -(2**63), 2**63 - 1]),
        ("max_tokens", [1, 2**31 - 1]),
        ("max_completion_tokens", [1, 2**31 - 1]),
        ("stop", ["a", ["a"], ["a", "b", "c", "d"], "x" * 512]),
        ("logit_bias", [{}, {"0": -100, "4294967295": 100}]),
        ("metadata", [{}, {"k" * 64: "v" * 512}, {str(number): "" for number in range(16)}]),
        ("user", ["", "u" * 512]),
        ("safety_identifier", ["s" * 128]),
        ("reasoning_effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"]),
        ("verbosity", ["low", "medium", "high"]),
        ("service_tier", ["auto", "default", "flex", "scale", "priority", "fast"]),
        ("modalities", [["text"]]),
        ("model", ["m", "meta-llama/Llama-3.1_8B:free@v1+x", "m" * 128]),
        ("response_format", [{"type": "text"}, {"type": "json_object"}]),
        ("prompt_cache_retention", ["in_memory", "24h"]),
    ],
)
def test_it_takes_every_value_up_to_the_limits(name: str, values: list[Any]) -> None:
    for value in values:
        sent = json.loads(json.dumps(value))
        taken = getattr(chat(**{name: value}), name)
        assert taken == sent or not isinstance(sent, str | int | float | list)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-0.1, 2.1, 3, 10**30]),
        ("top_p", [-1, 1.1]),
        ("presence_penalty", [-2.1, 3]),
        ("frequency_penalty", [-3, 2.1]),
        ("n", [0, -1, 129, 2**63, 2**64]),
        ("seed", [2**63, -(2**63) - 1, 2**64, 10**300]),
        ("max_tokens", [0, -1, 2**31]),
        ("max_completion_tokens", [0, -1, 2**31]),
        ("stop", ["", [], ["a"] * 5, ["a"] * 100, "x" * 513]),
        (
            "logit_bias",
            [
                {"1": 101},
                {"1": -101},
                {"a": 1},
                {"-1": 1},
                {"1\n": 1},
                {"": 1},
                {str(n): 1 for n in range(1025)},
            ],
        ),
        (
            "metadata",
            [
                {"k" * 65: ""},
                {"k": "v" * 513},
                {str(number): "" for number in range(17)},
                {"k": "v" * 1_000_000},
            ],
        ),
        ("user", ["u" * 513]),
        ("safety_identifier", ["s" * 129]),
        ("reasoning_effort", ["", "huge", "High"]),
        ("verbosity", ["none"]),
        ("service_tier", ["cheap"]),
        ("model", ["", "a b", "m\n", "modèle", "\uff4d", "m" * 129, "m\u200b", "../m?x=1"]),
        ("modalities", [[], ["text", "audio", "text"]]),
        ("tools", [[], [FUNCTION] * 129]),
        ("functions", [[], [{"name": "f"}] * 129]),
        ("prompt_cache_retention", ["1h"]),
    ],
)
def test_it_refuses_every_value_beyond_the_limits(name: str, values: list[Any]) -> None:
    for value in values:
        assert chat_refusal(**{name: value}) == (name, "invalid_value")


@pytest.mark.parametrize(
    ("members", "param", "code"),
    [
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "invalid_type"),
        ({"stop": ["a", 5]}, "stop[1]", "invalid_type"),
        ({"stop": ["a", ""]}, "stop[1]", "invalid_value"),
        ({"modalities": ["video"]}, "modalities[0]", "invalid_value"),
        ({"logit_bias": {"1": 1.0}}, "logit_bias", "invalid_type"),
        ({"logit_bias": {"1": "1"}}, "logit_bias", "invalid_type"),
        ({"metadata": {"k": 1}}, "metadata", "invalid_type"),
        ({"audio": {"voice": "alloy"}}, "audio.format", "missing_required_parameter"),
        ({"audio": {"format": "flv", "voice": "alloy"}}, "audio.format", "invalid_value"),
        ({"audio": {"format": "wav", "voice": {}}}, "audio.voice.id", "missing_required_parameter"),
        ({"prediction": {"content": "x"}}, "prediction.type", "missing_required_parameter"),
        ({"prediction": {"type": "content"}}, "prediction.content", "missing_required_parameter"),
        (
            {"web_search_options": {"search_context_size": "huge"}},
            "web_search_options.search_context_size",
            "invalid_value",
        ),
        (
            {"web_search_options": {"user_location": {"approximate": {}}}},
            "web_search_options.user_location.type",
            "missing_required_parameter",
        ),
        ({"moderation": {}}, "moderation.model", "missing_required_parameter"),
        ({"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options.ttl", "invalid_value"),
        ({"response_format": {}}, "response_format.type", "missing_required_parameter"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "missing_required_parameter",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.name",
            "missing_required_parameter",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
            "response_format.json_schema.name",
            "invalid_value",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": []}}},
            "response_format.json_schema.schema",
            "invalid_type",
        ),
    ],
)
def test_it_names_nested_parameters(members: dict[str, Any], param: str, code: str) -> None:
    assert chat_refusal(**members) == (param, code)


@pytest.mark.parametrize(
    ("tool", "param", "code"),
    [
        ("x", "tools[0]", "invalid_type"),
        ({}, "tools[0].type", "missing_required_parameter"),
        ({"type": "code_interpreter"}, "tools[0].type", "invalid_value"),
        ({"type": "function"}, "tools[0].function", "missing_required_parameter"),
        ({"type": "function", "function": {}}, "tools[0].function.name", "missing_required_parameter"),
        ({"type": "function", "function": {"name": "a b"}}, "tools[0].function.name", "invalid_value"),
        ({"type": "function", "function": {"name": "a\n"}}, "tools[0].function.name", "invalid_value"),
        ({"type": "function", "function": {"name": "a" * 65}}, "tools[0].function.name", "invalid_value"),
        (
            {"type": "function", "function": {"name": "a", "strict": 1}},
            "tools[0].function.strict",
            "invalid_type",
        ),
        (
            {"type": "function", "function": {"name": "a", "parameters": []}},
            "tools[0].function.parameters",
            "invalid_type",
        ),
        (
            {"type": "custom", "custom": {"name": "a", "format": {"type": "json"}}},
            "tools[0].custom.format.type",
            "invalid_value",
        ),
        (
            {"type": "custom", "custom": {"name": "a", "format": {"type": "grammar"}}},
            "tools[0].custom.format.grammar",
            "missing_required_parameter",
        ),
    ],
)
def test_it_names_what_is_wrong_with_a_tool(tool: Any, param: str, code: str) -> None:
    assert chat_refusal(tools=[tool]) == (param, code)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}},
        {"$ref": "http://169.254.169.254/schema.json"},
        {"type": "array", "minItems": 10**18},
    ],
)
def test_schemas_are_only_passed_on(schema: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    request = chat(
        tools=[tool], response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    )
    body = upstream_body(request, model="m", max_output_tokens=1, extra_parameters=frozenset())
    assert json.loads(bytes(body["tools"])) == [tool]
    assert body["response_format"]["json_schema"]["schema"] == schema


@pytest.mark.parametrize(
    "tool_choice",
    [
        "none",
        "auto",
        "required",
        {"type": "function", "function": {"name": "get_weather"}},
        {"type": "custom", "custom": {"name": "run_code"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [FUNCTION]}},
    ],
)
def test_it_takes_every_kind_of_tool_choice(tool_choice: Any) -> None:
    assert chat(tools=[FUNCTION, CUSTOM], tool_choice=tool_choice).tool_choice is not None


@pytest.mark.parametrize(
    ("members", "param", "code"),
    [
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": "any", "tools": [FUNCTION]}, "tool_choice", "invalid_value"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": [FUNCTION]},
            "tool_choice",
            "invalid_value",
        ),
        (
            {"tool_choice": {"type": "custom", "custom": {"name": "get_weather"}}, "tools": [FUNCTION]},
            "tool_choice",
            "invalid_value",
        ),
        ({"tool_choice": {"type": "x"}, "tools": [FUNCTION]}, "tool_choice.type", "invalid_value"),
        (
            {
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}},
                "tools": [FUNCTION],
            },
            "tool_choice.allowed_tools.tools",
            "missing_required_parameter",
        ),
        ({"function_call": {"name": "f"}}, "function_call", "invalid_value"),
        ({"function_call": "any"}, "function_call", "invalid_value"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"top_logprobs": 3, "logprobs": False}, "top_logprobs", "invalid_value"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "invalid_value"),
        ({"top_logprobs": -1, "logprobs": True}, "top_logprobs", "invalid_value"),
        ({"modalities": ["text", "audio"]}, "audio", "missing_required_parameter"),
    ],
)
def test_it_refuses_parameters_that_contradict_each_other(
    members: dict[str, Any], param: str, code: str
) -> None:
    assert chat_refusal(**members) == (param, code)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"temperature": "5"}, "Invalid type for 'temperature': expected a number, got a string."),
        ({"n": True}, "Invalid type for 'n': expected an integer, got a boolean."),
        ({"n": 129}, "Invalid value for 'n': expected an integer <= 128."),
        ({"stop": 5}, "Invalid type for 'stop': expected a string or an array, got an integer."),
        ({"stop": ["a"] * 5}, "Invalid value for 'stop': expected an array of length <= 4."),
        (
            {"model": "a b"},
            "Invalid value for 'model': expected a string matching regex '^[A-Za-z0-9._:/@+-]{1,128}$'.",
        ),
        ({"model": None}, "Missing required parameter: 'model'."),
        (
            {"verbosity": "x"},
            "Invalid value for 'verbosity': 'x'. Supported values are: 'high', 'low', 'medium'.",
        ),
        (
            {"verbosity": "x" * 500},
            f"Invalid value for 'verbosity': '{'x' * 99}…'. Supported values are: 'high', 'low', 'medium'.",
        ),
        (
            {"verbosity": " - at `$.n`"},
            "Invalid value for 'verbosity': ' - at `$.n`'. Supported values are: 'high', 'low', 'medium'.",
        ),
        (
            {"messages": [{"role": "system", "content": [{"type": "image_url"}]}]},
            "Invalid value for 'messages[0].content[0].type': 'image_url'. Supported values are: 'text'.",
        ),
    ],
)
def test_messages_say_what_is_allowed(members: dict[str, Any], message: str) -> None:
    assert refusal(chat_body(**members)).message == message


def test_minus_zero_is_zero() -> None:
    assert parse_chat(chat_body()[:-1] + b',"seed":-0,"temperature":-0}').seed == 0


def test_the_newer_limit_wins() -> None:
    assert chat().max_output_tokens is None
    assert chat(max_tokens=5).max_output_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=7).max_output_tokens == 7


def test_choices_and_stop_sequences_have_one_form() -> None:
    assert (chat().choices_count, chat(n=3).choices_count, chat(n=3).sampled_count) == (1, 3, 3)
    assert (chat().stop_sequences, chat(stop="a").stop_sequences, chat(stop=["a", "b"]).stop_sequences) == (
        (),
        ("a",),
        ("a", "b"),
    )
