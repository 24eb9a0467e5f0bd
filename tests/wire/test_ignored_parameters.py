"""No parameter is dropped silently by an engine: each value of it changes the upstream's request, is refused
by its name, or is named in `x-chatapi-ignored`.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from msgspec import inspect

from chatapi.models import Engine
from chatapi.wire import parsed_request, request_body, requests
from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.protocols import PROTOCOLS
from chatapi.wire.upstream.anthropic_request import FORWARDED_EXTRAS
from chatapi.wire.upstream.http_api import ANTHROPIC, OPENAI
from chatapi.wire.upstream.upstream_errors import UpstreamError
from tests.wire.request_bodies import CUSTOM, FUNCTION
from tests.wire.test_fields_of_bodies import BODIES, NEEDS, body_of, changes, literals
from tests.wire.whole_bodies import SCHEMA

# The sandbox gets the request itself.
APIS = {Engine.OPENAI_COMPATIBLE: OPENAI, Engine.ANTHROPIC: ANTHROPIC}
CHATS = ("chat.completions", "responses", "messages")
FLAT = {"type": "function", "name": "f", "parameters": SCHEMA}
ALLOWED = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}
# Values beside those that `BODIES` has, and beside the literals of the types.
VALUES: dict[str, list[Any]] = {
    "response_format": [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "n"}},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "description": "d"}},
    ],
    "text": [
        {"format": {"type": "text"}},
        {"format": {"type": "json_object"}},
        {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
        *({"verbosity": level} for level in ("low", "medium", "high")),
    ],
    "reasoning": [
        *({"effort": effort} for effort in ("none", "minimal", "low", "max")),
        *({"context": context} for context in ("auto", "current_turn", "all_turns")),
        *({"mode": mode} for mode in ("standard", "pro")),
    ],
    "thinking": [
        {"type": "enabled", "budget_tokens": 1_024},
        {"type": "adaptive", "display": "omitted"},
        {"type": "between_tools"},
        {"type": "disabled"},
    ],
    "tool_choice": [
        "required",
        {"type": "function", "function": {"name": "get_weather"}},
        {"type": "function", "name": "f"},
        {"type": "allowed_tools", "allowed_tools": ALLOWED},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        *({"type": kind} for kind in ("any", "none")),
        {"type": "tool", "name": "f"},
    ],
    "tools": [[FUNCTION], [CUSTOM], [FLAT], [{"type": "custom", "name": "c"}]],
    "modalities": [["text"]],
    "seed": [0],
    "n": [1],
    "logprobs": [True],
    "stop": ["a"],
    "store": [True],
    "top_k": [0],
    "parallel_tool_calls": [True],
    "logit_bias": [{}],
    "frequency_penalty": [0],
    "prompt_cache_options": [{"mode": "explicit"}, {"ttl": "30m"}],
}
# The service itself acts on these, or they have no effect on any answer.
OF_THE_SERVICE: Final = {
    *("model", "models", "stream", "stream_options", "metadata", "prompt_cache_key", "max_tool_calls"),
    *("background", "previous_response_id"),
    # `check_fields` decides on their members.
    *("messages", "input", "instructions", "system"),
    # The limit is an argument of the engine.
    *("max_tokens", "max_completion_tokens", "max_output_tokens"),
}
# By protocol, if not all have it: values that ask for what is done without them.
NOTHING_LOST: Final[dict[tuple[str, str], list[Any]]] = {
    ("", "frequency_penalty"): [0],
    ("", "logit_bias"): [{}],
    ("", "modalities"): [["text"]],
    ("", "n"): [1],
    ("", "parallel_tool_calls"): [True],
    ("", "response_format"): [{"type": "text"}],
    ("", "text"): [{"format": {"type": "text"}}],
    ("", "reasoning"): [{"context": "auto"}, {"mode": "standard"}],
    ("", "service_tier"): ["auto", "default", "flex", "standard_only"],
    ("", "truncation"): ["disabled"],
    ("", "tool_choice"): ["auto", {"type": "auto"}, {"type": "auto", "disable_parallel_tool_use": False}],
    ("chat.completions", "store"): [False],
    ("responses", "store"): [True, False],
}


def values(protocol: str) -> Iterator[tuple[str, Any]]:
    """Yield the protocol's parameters with the values that their types have, or that are listed here."""
    info = inspect.type_info(body_of(protocol))
    assert isinstance(info, inspect.StructType)
    own = {*request_body.client_parameters(body_of(protocol))} - OF_THE_SERVICE
    for field in (field for field in info.fields if field.name in own):
        whole = BODIES[protocol][1][field.name]
        changed = (value for _, value in changes(field.name, field.type, whole))
        for value in [whole, *literals(field), *changed, *VALUES.get(field.name, ())]:
            yield field.name, value


def sent(engine: Engine, protocol: str, body: dict[str, Any], extras: frozenset[str]) -> Any:
    """Return the upstream's request."""
    parsed = parsed_request.parse(json.dumps({"model": "m"} | body).encode(), protocol, None)
    request = requests.from_bytes(parsed.content)
    kind = APIS[engine].kind(request)
    return kind.body(request, model="up", max_output_tokens=9, extra_parameters=extras)


def ignored(engine: Engine, protocol: str, body: dict[str, Any], extras: frozenset[str]) -> set[str]:
    """Return the names in `x-chatapi-ignored`, without the paths below them."""
    data = json.dumps({"model": "m"} | body).encode()
    summary = parsed_request.parse(data, protocol, None).summary
    names = requests.ignored_parameters(summary, extras)
    if engine == Engine.ANTHROPIC:
        names += PROTOCOLS[protocol].named(summary.not_for_anthropic)
    return {top(name) for name in names}


def top(path: str) -> str:
    """Return the parameter that a path begins with."""
    return path.partition(".")[0].partition("[")[0]


def is_lost(engine: Engine, protocol: str, name: str, value: Any, extras: frozenset[str]) -> bool:
    least = BODIES[protocol][0] | NEEDS.get((protocol, name), {})
    body = least | {name: value}
    try:
        is_sent = sent(engine, protocol, body, extras) != sent(engine, protocol, least, extras)
    except InvalidRequest as refused:
        return top(refused.param or "") != name
    except UpstreamError as refused:
        (param,) = PROTOCOLS[protocol].named([refused.failure.param or ""])
        return top(param) != name and param not in NEEDS.get((protocol, name), {})
    return not is_sent and name not in ignored(engine, protocol, body, extras)


@pytest.mark.parametrize("engine", APIS)
@pytest.mark.parametrize("protocol", CHATS)
@pytest.mark.parametrize("extras", [frozenset(), FORWARDED_EXTRAS], ids=["no extras", "extras"])
def test_no_parameter_is_dropped_silently(engine: Engine, protocol: str, extras: frozenset[str]) -> None:
    lost = [
        (name, value)
        for name, value in values(protocol)
        if value not in NOTHING_LOST.get((protocol, name), NOTHING_LOST.get(("", name), ()))
        and is_lost(engine, protocol, name, value, extras)
    ]
    assert lost == []


@pytest.mark.parametrize(
    ("protocol", "refused"),
    [
        ("chat.completions", {"n": 2}),
        ("chat.completions", {"logprobs": True, "top_logprobs": 2}),
        ("completions", {"best_of": 2}),
    ],
)
def test_nothing_is_lost_of_a_request_that_anthropics_api_refuses(
    protocol: str, refused: dict[str, Any]
) -> None:
    # Deployments of other engines answer it, if there are any, and get all of it.
    body = BODIES[protocol][0] | refused | {"seed": 1}
    assert ignored(Engine.ANTHROPIC, protocol, body, frozenset()) == set()


def test_parameters_beside_a_custom_tool_are_lost_at_anthropics_api() -> None:
    body = BODIES["chat.completions"][0] | {"tools": [CUSTOM], "seed": 1}
    assert ignored(Engine.ANTHROPIC, "chat.completions", body, frozenset()) == {"seed"}
