"""No parameter vanishes: each one changes the request that workers get, is refused, or is named as one
without effect.
"""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from chatapi.wire import request_body
from chatapi.wire.invalid_request import UnresolvedReferences
from chatapi.wire.protocols import PROTOCOLS
from tests.wire.request_bodies import FUNCTION, HELLO
from tests.wire.test_requests_forwarding import EVERYTHING

FLAT_FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
SHARED = {"model": "other", "stream": True, "max_tokens": 9, "models": ["another"]}
PROMPT = {
    "model": "other",
    "messages": [{"role": "user", "content": "Bye!"}],
    "system": "Be brief.",
    "tools": [TOOL],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
    "output_format": {"type": "json_schema", "schema": {}},
    "metadata": {"user_id": "u"},
}
# By protocol: the least that it accepts, and all parameters with values other than those.
BODIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "chat.completions": (
        {"messages": [HELLO]},
        EVERYTHING | SHARED | {"stream_options": {"include_usage": True, "include_obfuscation": True}},
    ),
    "completions": (
        {"prompt": "Once"},
        SHARED
        | {"prompt": "Twice", "echo": True, "suffix": "s", "best_of": 2, "logprobs": 2}
        | {name: EVERYTHING[name] for name in ("n", "temperature", "top_p", "logit_bias", "seed", "stop")}
        | {name: EVERYTHING[name] for name in ("frequency_penalty", "presence_penalty", "user")}
        | {"stream_options": {"include_usage": True, "include_obfuscation": True}},
    ),
    "embeddings": (
        {"input": "Once"},
        {"model": "other", "input": "Twice", "encoding_format": "base64", "dimensions": 8, "user": "u"},
    ),
    "messages": (
        {"messages": [HELLO], "max_tokens": 5},
        PROMPT
        | {"max_tokens": 9, "stop_sequences": ["a"], "stream": True, "temperature": 0.5, "top_p": 0.5}
        | {"top_k": 5, "service_tier": "standard_only", "models": ["another"]},
    ),
    "messages.count_tokens": ({"messages": [HELLO]}, PROMPT),
    "responses": (
        {"input": "Once"},
        {"model": "other", "input": "Twice", "instructions": "Be brief.", "max_output_tokens": 99}
        | {"max_tool_calls": 3, "temperature": 0.5, "top_p": 0.5, "top_logprobs": 3, "stream": True}
        | {"stream_options": {"include_obfuscation": True}, "tools": [FLAT_FUNCTION]}
        | {"tool_choice": "required", "parallel_tool_calls": False}
        | {"text": {"format": {"type": "json_object"}, "verbosity": "low"}}
        | {"include": ["message.output_text.logprobs"], "truncation": "auto", "store": False}
        | {"previous_response_id": "resp_1", "background": True, "models": ["another"]}
        | {"reasoning": {"effort": "low", "summary": "auto", "generate_summary": "auto"}}
        | {name: EVERYTHING[name] for name in ("metadata", "user", "safety_identifier", "service_tier")}
        | {name: EVERYTHING[name] for name in EVERYTHING if name.startswith("prompt_cache_")}
        | {"moderation": EVERYTHING["moderation"]},
    ),
}
BODIES["responses"][1]["reasoning"] |= {"context": "all_turns", "mode": "pro"}
# What a parameter needs beside it.
NEEDS: dict[tuple[str, str], dict[str, Any]] = {
    ("chat.completions", "tool_choice"): {"tools": [FUNCTION]},
    ("chat.completions", "top_logprobs"): {"logprobs": True},
    ("chat.completions", "function_call"): {"functions": EVERYTHING["functions"]},
    ("chat.completions", "modalities"): {"audio": EVERYTHING["audio"]},
    ("messages", "tool_choice"): {"tools": [TOOL]},
    ("messages.count_tokens", "tool_choice"): {"tools": [TOOL]},
    ("responses", "tool_choice"): {"tools": [FLAT_FUNCTION]},
    ("responses", "parallel_tool_calls"): {"tools": [FLAT_FUNCTION]},
    ("responses", "top_logprobs"): {"include": ["message.output_text.logprobs"]},
}


def body_of(protocol: str) -> type[msgspec.Struct]:
    return PROTOCOLS[protocol].operations[0].request


def asked(protocol: str, members: dict[str, Any]) -> Any:
    """Return what workers get for a body, without the members that only repeat it."""
    try:
        found = PROTOCOLS[protocol].parse(json.dumps({"model": "m"} | members).encode(), None)
    except UnresolvedReferences as missing:
        return missing.args
    context = {name: value for name, value in found.context.items() if name != "echo"}
    return msgspec.structs.replace(found, digest="", context=context, state=found.state and b"kept")


def parameters() -> Iterator[tuple[str, str]]:
    """Yield each parameter by protocol, and each member of the objects that their protocol rewrites."""
    for protocol in BODIES:
        body = body_of(protocol)
        rewritten: frozenset[str] = getattr(body, "rewritten", frozenset())
        info = inspect.type_info(body)
        assert isinstance(info, inspect.StructType)
        own = set(request_body.client_parameters(body))
        for field in (field for field in info.fields if field.encode_name in own):
            yield protocol, field.name
            kinds = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
            structs = [each for each in kinds if isinstance(each, inspect.StructType) and each.tag is None]
            if field.name in rewritten and len(structs) == 1:
                yield from ((protocol, f"{field.name}.{inner.encode_name}") for inner in structs[0].fields)


def test_every_protocol_has_its_bodies() -> None:
    assert {body_of(name) for name in BODIES} == {body_of(name) for name in PROTOCOLS}


@pytest.mark.parametrize(("protocol", "path"), list(parameters()))
def test_no_parameter_vanishes(protocol: str, path: str) -> None:
    least, whole = BODIES[protocol]
    name, _, inner = path.partition(".")
    without = least | NEEDS.get((protocol, name), {}) | ({name: {}} if inner else {})
    value = {inner: whole[name][inner]} if inner else whole[name]
    is_same = asked(protocol, without | {name: value}) == asked(protocol, without)
    assert is_same == (path in getattr(body_of(protocol), "without_effect", ()))


class Body(msgspec.Struct):
    model: str
    asked: str
    mode: str
    rewritten = frozenset({"asked"})
    without_effect = frozenset({"mode", "asked.later"})


class Forgetful(Body):
    forgotten: str


class Inventive(Body):
    rewritten = frozenset({"asked", "invented"})


class Undecided(Body):
    refused = frozenset({"mode"})


def test_a_field_that_no_set_has_is_found() -> None:
    request_body.check_body(Body)
    for body, wrong in ((Forgetful, "forgotten"), (Inventive, "invented"), (Undecided, "mode")):
        with pytest.raises(AssertionError, match=f": {wrong}$"):
            request_body.check_body(body)
