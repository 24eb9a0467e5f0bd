"""JSON that is right and says what no request may say: kinds, combinations, schemas, keys that would act if
anyone obeyed them.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.bad_input.bodies import CHAT, POSTED, TEXT, body_for, chat, refusal, text, with_member
from tests.chatapi.http_client import Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("bad_input"), pytest.mark.timeout(120)]

# ---- keys

TWICE: dict[str, Callable[[bytes], bytes]] = {
    "a parameter": lambda body: with_member(body, "model", '"other"'),
    "an escaped name": lambda body: body[:-1] + rb',"\u006dodel":"other"}',
    "an unknown one": lambda body: with_member(with_member(body, "x", "1"), "x", "1"),
    "deep inside": lambda body: with_member(body, "metadata", '{"a": 1, "a": 2}'),
    "in something ignored": lambda body: with_member(body, "x", '[[{"": 1, "": 2}]]'),
    "stream": lambda body: with_member(with_member(body, "stream", "false"), "stream", "true"),
}


@pytest.mark.parametrize("path", POSTED)
@pytest.mark.parametrize("case", TWICE)
def test_a_key_that_comes_twice_is_refused(suspect: Client, path: str, case: str) -> None:
    assert refusal(suspect.send("POST", path, TWICE[case](body_for(path))))[:2] == (
        400,
        "duplicate_parameter",
    )


ROUTING = """
api_base base_url api_key headers extra_headers extra_body user_id tenant organization is_admin
custom_llm_provider api_version timeout proxy mock_response fallbacks model_list callbacks use_beam_search
__proto__ constructor __class__ price cost max_budget generation_id request_id chat_template n_predict
""".split()  # noqa: SIM905  # as thirty quoted lines nobody would read it


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("name", ROUTING)
def test_a_parameter_that_would_route_or_rule_is_not_forwarded(
    client: Client, installation: Installation, path: str, name: str
) -> None:
    for value in ('"http://127.0.0.1:9/canary"', "true", '{"canary": ["canary"]}'):
        assert client.send("POST", path, with_member(body_for(path), name, value)).status == 200
    for call in installation.calls("five")[-3:]:
        assert name not in call["body"]
        assert "canary" not in json.dumps(call)


def test_unknown_members_inside_are_not_forwarded(client: Client, installation: Installation) -> None:
    message = {
        "role": "user",
        "content": [{"type": "text", "text": "hello", "api_key": "canary"}],
        "headers": {"x": "canary"},
    }
    tool = {"type": "function", "function": {"name": "f", "url": "canary"}, "server_url": "canary"}
    assert client.send("POST", CHAT, chat(messages=[message], tools=[tool])).status == 200
    assert "canary" not in json.dumps(installation.calls("five")[-1])


# ---- messages

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGES: dict[str, tuple[Any, str, str]] = {
    "none": ([], "invalid_value", "messages"),
    "an object": ({}, "invalid_type", "messages"),
    "a string": ("hello", "invalid_type", "messages"),
    "strings": (["hello"], "invalid_type", "messages[0]"),
    "nulls": ([None], "invalid_type", "messages[0]"),
    "lists": ([[]], "invalid_type", "messages[0]"),
    "no role": ([{"content": "a"}], "missing_required_parameter", "messages[0].role"),
    "an unknown role": ([{"role": "king", "content": "a"}], "invalid_value", "messages[0].role"),
    "a role in capitals": ([{"role": "USER", "content": "a"}], "invalid_value", "messages[0].role"),
    "a role that is null": ([{"role": None, "content": "a"}], "invalid_type", "messages[0].role"),
    "a role that is a list": ([{"role": ["user"], "content": "a"}], "invalid_type", "messages[0].role"),
    "no content": ([{"role": "user"}], "missing_required_parameter", "messages[0].content"),
    "content that is null": ([{"role": "user", "content": None}], "invalid_type", "messages[0].content"),
    "content that is a number": ([{"role": "user", "content": 5}], "invalid_type", "messages[0].content"),
    "content that is an object": ([{"role": "user", "content": {}}], "invalid_type", "messages[0].content"),
    "an empty list of parts": ([{"role": "user", "content": []}], "invalid_value", "messages[0].content"),
    "parts that are strings": (
        [{"role": "user", "content": ["a"]}],
        "invalid_type",
        "messages[0].content[0]",
    ),
    "parts of both kinds": (
        [{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}],
        "invalid_type",
        "messages[0].content[1]",
    ),
    "a part of no type": (
        [{"role": "user", "content": [{"text": "a"}]}],
        "missing_required_parameter",
        "messages[0].content[0].type",
    ),
    "a part of an unknown type": (
        [{"role": "user", "content": [{"type": "video"}]}],
        "invalid_value",
        "messages[0].content[0].type",
    ),
    "a part without its text": (
        [{"role": "user", "content": [{"type": "text"}]}],
        "missing_required_parameter",
        "messages[0].content[0].text",
    ),
    "a picture of the assistant's": (
        [
            {
                "role": "assistant",
                "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
            }
        ],
        "invalid_value",
        "messages[0].content[0].type",
    ),
    "an empty name": ([{"role": "user", "content": "a", "name": ""}], "invalid_value", "messages[0].name"),
    "an assistant that says nothing": (
        [{"role": "assistant"}],
        "missing_required_parameter",
        "messages[0].content",
    ),
    "tool calls that are an object": (
        [{"role": "assistant", "tool_calls": {}}],
        "invalid_type",
        "messages[0].tool_calls",
    ),
    "a tool call without id": (
        [{"role": "assistant", "tool_calls": [{key: CALL[key] for key in ("type", "function")}]}],
        "missing_required_parameter",
        "messages[0].tool_calls[0].id",
    ),
    "a tool call without function": (
        [{"role": "assistant", "tool_calls": [{"id": "a", "type": "function"}]}],
        "missing_required_parameter",
        "messages[0].tool_calls[0].function",
    ),
    "arguments that are an object": (
        [{"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": {}}}]}],
        "invalid_type",
        "messages[0].tool_calls[0].function.arguments",
    ),
    "1,025 tool calls": (
        [{"role": "assistant", "tool_calls": [CALL] * 1_025}],
        "invalid_value",
        "messages[0].tool_calls",
    ),
    "a tool's answer to nobody": (
        [{"role": "tool", "content": "a"}],
        "missing_required_parameter",
        "messages[0].tool_call_id",
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_messages_that_say_nothing_are_refused_by_name(suspect: Client, case: str) -> None:
    messages, code, param = MESSAGES[case]
    assert refusal(suspect.send("POST", CHAT, chat(messages=messages))) == (400, code, param)


# ---- parameters

BOMB = "(a+)+" * 50 + "$"
PARAMETERS: list[tuple[str, Any, str]] = [
    ("stream", "true", "invalid_type"),
    ("stream", 1, "invalid_type"),
    ("n", 0, "invalid_value"),
    ("n", 129, "invalid_value"),
    ("stop", ["x"] * 100, "invalid_value"),
    ("stop", [], "invalid_value"),
    ("stop", "", "invalid_value"),
    ("stop", ["a", 5], "invalid_type"),
    ("stop", "x" * 10_000, "invalid_value"),
    ("metadata", {"k": 5}, "invalid_type"),
    ("metadata", {"k" * 65: "v"}, "invalid_value"),
    ("metadata", {str(number): "v" for number in range(17)}, "invalid_value"),
    ("response_format", "json", "invalid_type"),
    ("response_format", {}, "missing_required_parameter"),
    ("response_format", {"type": "xml"}, "invalid_value"),
    ("response_format", {"type": "json_schema"}, "missing_required_parameter"),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "a b"}}, "invalid_value"),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": []}}, "invalid_type"),
    ("tools", [], "invalid_value"),
    ("tools", {}, "invalid_type"),
    ("tools", [{"type": "function"}], "missing_required_parameter"),
    ("tools", [{"type": "web_search"}], "invalid_value"),
    ("tools", [{"type": "function", "function": {"name": "../f"}}], "invalid_value"),
    ("tools", [{"type": "function", "function": {"name": "f" * 65}}], "invalid_value"),
    ("tools", [{"type": "function", "function": {"name": "f", "parameters": "{}"}}], "invalid_type"),
    ("tool_choice", "required", "invalid_value"),
    ("tool_choice", {"type": "function", "function": {"name": "f"}}, "invalid_value"),
    ("functions", [], "invalid_value"),
    ("modalities", ["smell"], "invalid_value"),
    ("modalities", ["audio"], "missing_required_parameter"),
    ("top_logprobs", 5, "invalid_value"),
    ("reasoning_effort", "", "invalid_value"),
    ("service_tier", "free", "invalid_value"),
    ("user", 5, "invalid_type"),
]


@pytest.mark.parametrize(
    ("name", "value", "code"), PARAMETERS, ids=[f"{name}={value!s:.30}" for name, value, _ in PARAMETERS]
)
def test_a_parameter_that_makes_no_sense_is_named(suspect: Client, name: str, value: Any, code: str) -> None:
    status, shown, param = refusal(suspect.send("POST", CHAT, chat(**{name: value})))
    assert (status, shown) == (400, code)
    assert (param or "").startswith(("audio", name))


WRONG_OPTIONS: list[Any] = [True, "yes", [], 0, {"include_usage": "yes"}, {"include_usage": {}}]
WITH_OPTIONS = pytest.mark.parametrize(("path", "body"), [("chat/completions", chat), ("completions", text)])


@WITH_OPTIONS
@pytest.mark.parametrize("options", WRONG_OPTIONS, ids=str)
@pytest.mark.parametrize("dialect", ["openai", "llama", "bitseek"])
def test_wrong_stream_options_are_named(
    suspect: Client, dialect: str, path: str, body: Callable[..., bytes], options: Any
) -> None:
    status, code, param = refusal(suspect.send("POST", f"/{dialect}/v1/{path}", body(stream_options=options)))
    assert (status, code) == (400, "invalid_type")
    assert (param or "").startswith("stream_options")


@WITH_OPTIONS
@pytest.mark.parametrize("options", WRONG_OPTIONS, ids=str)
@pytest.mark.parametrize("prefix", ["", "/opentoken"])
def test_opentoken_ignores_stream_options_of_any_form(
    client: Client, prefix: str, path: str, body: Callable[..., bytes], options: Any
) -> None:
    for stream in (True, False):
        sent = body(stream=stream, stream_options=options)
        assert client.send("POST", f"{prefix}/v1/{path}", sent).status == 200
    answer = client.send("POST", f"{prefix}/v1/{path}", body(stream=True, stream_options=options))
    *_, usage, done, rest = answer.body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    assert json.loads(usage.removeprefix(b"data: "))["choices"] == []
    # All else is still checked.
    assert refusal(client.send("POST", f"{prefix}/v1/{path}", body(stream_options=options, n=0))) == (
        400,
        "invalid_value",
        "n",
    )


PROMPTS: list[Any] = [
    {},
    5,
    True,
    [],
    [[]],
    ["a", 5],
    [5, "a"],
    [["a"]],
    [None],
    [[5], "a"],
    [-1],
    [2**31],
    [[1.5]],
    [["a", [5]]],
]
PROMPTS += [["a"] * 129]


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: str(prompt)[:20])
def test_a_prompt_of_no_kind_is_refused(suspect: Client, prompt: Any) -> None:
    status, _, param = refusal(suspect.send("POST", TEXT, text(prompt=prompt)))
    assert status == 400
    assert (param or "").startswith("prompt")


def test_more_choices_than_128_in_all_are_refused(suspect: Client) -> None:
    for members in (
        {"prompt": ["a"] * 43, "n": 3},
        {"prompt": ["a"] * 128, "best_of": 2},
        {"best_of": 2, "n": 3},
    ):
        assert refusal(suspect.send("POST", TEXT, text(**members)))[0] == 400


# ---- schemas that explode when they are followed

LOOP: dict[str, Any] = {"$ref": "#"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "a reference to itself": LOOP,
    "two that refer to each other": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "$ref": "#/$defs/a",
    },
    "an endless object": {"type": "object", "properties": {"a": LOOP}, "required": ["a"]},
    "a doubling": {
        "$defs": {
            str(level): {"type": "array", "minItems": 2, "items": {"$ref": f"#/$defs/{level + 1}"}}
            for level in range(40)
        }
        | {"40": {"type": "string"}},
        "$ref": "#/$defs/0",
    },
    "a reference elsewhere": {"$ref": "http://127.0.0.1:9/schema.json"},
    "a reference to a file": {"$ref": "file:///etc/passwd"},
    "a reference to nothing": {"$ref": "#/%zz/~9"},
    "a pattern that explodes": {"type": "string", "pattern": BOMB},
    "a million items": {"type": "array", "minItems": 1_000_000, "items": {"type": "string"}},
    "more than there is room for": {"type": "string", "minLength": 10**15},
    "properties from a pattern": {
        "type": "object",
        "patternProperties": {BOMB: LOOP},
        "minProperties": 10**9,
    },
    "nothing but contradictions": {"allOf": [{"type": "string"}, {"type": "integer"}], "not": {}},
    "no schema": {"type": 5, "properties": [], "required": "x", "enum": {}},
    "an empty enum": {"enum": []},
    "bounds without room": {"type": "integer", "minimum": 5, "maximum": 4},
    "a huge multiple": {"type": "number", "multipleOf": 1e-300, "minimum": 1e300},
}


@pytest.mark.parametrize("case", SCHEMAS)
@pytest.mark.parametrize("is_tool", [True, False])
def test_a_schema_is_data_to_us(client: Client, case: str, is_tool: bool) -> None:
    """Only the sandbox reads a schema: it makes an instance or refuses the schema."""
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMAS[case]}}
    schema = {"type": "json_schema", "json_schema": {"name": "f", "schema": SCHEMAS[case]}}
    members = {"tools": [tool], "tool_choice": "required"} if is_tool else {"response_format": schema}
    answer = client.send("POST", CHAT, chat(model="sandbox", max_tokens=50, **members))
    assert answer.status in {200, 400}, answer.error
    if answer.status == 400:
        assert answer.error["code"] in {"unsupported_schema", "invalid_value"}
