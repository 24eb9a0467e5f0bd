"""No parameter vanishes: each one changes the request that workers get, is refused, or is named as one
without effect.
"""

import json
from collections.abc import Collection, Iterator
from itertools import product
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from chatapi.wire import request_body
from chatapi.wire.invalid_request import InvalidRequest, UnresolvedReferences
from chatapi.wire.protocols import PROTOCOLS
from chatapi.wire.protocols.responses.items import ID_PREFIXES
from tests.wire.request_bodies import FUNCTION, HELLO
from tests.wire.test_requests_forwarding import EVERYTHING
from tests.wire.whole_bodies import WHOLE

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
    ("chat.completions", "parallel_tool_calls"): {"tools": [FUNCTION]},
    ("chat.completions", "top_logprobs"): {"logprobs": True},
    ("chat.completions", "function_call"): {"functions": EVERYTHING["functions"]},
    ("chat.completions", "modalities"): {"audio": EVERYTHING["audio"]},
    ("messages", "tool_choice"): {"tools": [TOOL]},
    ("messages.count_tokens", "tool_choice"): {"tools": [TOOL]},
    ("responses", "tool_choice"): {"tools": [FLAT_FUNCTION]},
    ("responses", "parallel_tool_calls"): {"tools": [FLAT_FUNCTION]},
    ("responses", "top_logprobs"): {"include": ["message.output_text.logprobs"]},
}

AS_THEY_ARE = ("chat.completions", "messages")
# Members of objects that change nothing for an upstream, with what is under them.
DROPPED = {
    # Kept with the response (`state`), whose items clients refer to.
    *(f"input.{kind}.id" for kind in ID_PREFIXES),
    # The whole item is left out, and named in `x-chatapi-ignored`.
    "input.web_search_call.id",
    # Upstreams get all tools from the first turn on.
    *(f"messages.system.content.{kind}.tool" for kind in ("tool_addition", "tool_removal")),
}


def body_of(protocol: str) -> type[msgspec.Struct]:
    return PROTOCOLS[protocol].operations[0].request


def asked(protocol: str, members: dict[str, Any]) -> Any:
    """Return what workers get for a body, without the members that only repeat it."""
    try:
        found = PROTOCOLS[protocol].parse(json.dumps({"model": "m"} | members).encode(), None)
    except UnresolvedReferences as missing:
        return missing.previous, missing.items
    context = {name: value for name, value in found.context.items() if name != "echo"}
    return msgspec.structs.replace(found, digest="", context=context, state=found.state and b"kept")


def parameters() -> Iterator[tuple[str, str]]:
    for protocol in BODIES:
        yield from ((protocol, name) for name in request_body.client_parameters(body_of(protocol)))


def rewritten(protocol: str) -> Iterator[inspect.Field]:
    """Yield the fields of a body that its protocol rewrites."""
    body = body_of(protocol)
    names: frozenset[str] = getattr(body, "rewritten", frozenset())
    own = names.intersection(request_body.client_parameters(body))
    info = inspect.type_info(body)
    assert isinstance(info, inspect.StructType)
    # The request has these messages themselves.
    yield from (field for field in info.fields if field.name in own and (protocol, field.name) != AS_THEY_ARE)


def kinds_of(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def literals(field: inspect.Field) -> list[Any]:
    return [
        value
        for kind in kinds_of(field.type)
        if isinstance(kind, inspect.LiteralType)
        for value in kind.values
    ]


def path_of(path: str, kind: inspect.StructType, field: inspect.Field) -> str:
    """Return the path of a member; a struct that has a tag is named by it."""
    return ".".join(part for part in (path, kind.tag, field.encode_name) if isinstance(part, str))


def paths(path: str, kind: inspect.Type, above: tuple[type, ...] = ()) -> Iterator[str]:
    """Yield the paths of all members of the structs in this type. A member that has only one value says
    nothing.
    """
    for each in kinds_of(kind):
        if isinstance(each, inspect.ListType):
            yield from paths(path, each.item_type, above)
        if isinstance(each, inspect.StructType) and each.cls not in above:
            for field in each.fields:
                member = path_of(path, each, field)
                if len(literals(field)) != 1:
                    yield member
                yield from paths(member, field.type, (*above, each.cls))


def changes(path: str, kind: inspect.Type, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield each member in this value by its path, and the value with another one in its place, or without
    it.
    """
    for each in kinds_of(kind):
        if isinstance(each, inspect.ListType) and isinstance(value, list):
            for index, item in enumerate(value):
                for member, changed in changes(path, each.item_type, item):
                    yield member, [*value[:index], changed, *value[index + 1 :]]
        if isinstance(each, inspect.StructType) and is_one(value, each):
            yield from changes_of_members(path, each, value)


def changes_of_members(
    path: str, kind: inspect.StructType, value: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    for field in (field for field in kind.fields if field.encode_name in value):
        name = field.encode_name
        member = path_of(path, kind, field)
        yield from ((member, value | {name: other}) for other in others(field, value[name]))
        if not field.required:
            yield member, {key: kept for key, kept in value.items() if key != name}
        yield from ((inner, value | {name: new}) for inner, new in changes(member, field.type, value[name]))


def is_one(value: Any, kind: inspect.StructType) -> bool:
    return isinstance(value, dict) and (kind.tag is None or value.get(kind.tag_field) == kind.tag)


def others(field: inspect.Field, value: Any) -> list[Any]:
    """Return other values that this member may have; none for an object, whose own members have some."""
    if allowed := literals(field):
        return [other for other in allowed if other != value]
    if isinstance(value, dict):
        is_free = any(isinstance(kind, inspect.DictType) for kind in kinds_of(field.type))
        return [value | {"another": 1}] if is_free else []
    if isinstance(value, bool):
        return [not value]
    # The first stays base64, or a URL.
    return [value + ("AAAA" if isinstance(value, str) else value if isinstance(value, list) else 1)]


def asked_or_refused(protocol: str, body: dict[str, Any]) -> Any:
    try:
        return asked(protocol, body)
    except InvalidRequest as error:
        return error


def read(protocol: str) -> set[str]:
    """Return the paths of the members that are read wherever a body has them: a change of one changes the
    request, or lets one in that was refused.
    """
    found: set[str] = set()
    lost: set[str] = set()
    for field, body in product(rewritten(protocol), WHOLE[protocol]):
        before = asked_or_refused(protocol, body)
        same: set[str] = set()
        another: set[str] = set()
        for path, value in changes(field.name, field.type, body.get(field.name)):
            after = asked_or_refused(protocol, body | {field.name: value})
            if not isinstance(after, InvalidRequest):
                (same if after == before else another).add(path)
        found |= another
        lost |= same - another
    return found - lost


def is_under(path: str, names: Collection[str]) -> bool:
    """Return whether this member, or one that holds it, is among these."""
    return any(f"{path}.".startswith(f"{name}.") for name in names)


def test_every_protocol_has_its_bodies() -> None:
    assert {body_of(name) for name in BODIES} == {body_of(name) for name in PROTOCOLS}


@pytest.mark.parametrize(("protocol", "path"), list(parameters()))
def test_no_parameter_vanishes(protocol: str, path: str) -> None:
    least, whole = BODIES[protocol]
    without = least | NEEDS.get((protocol, path), {})
    is_same = asked(protocol, without | {path: whole[path]}) == asked(protocol, without)
    assert is_same == (path in getattr(body_of(protocol), "without_effect", ()))


@pytest.mark.parametrize("protocol", BODIES)
def test_no_member_of_an_object_vanishes(protocol: str) -> None:
    known = {path for field in rewritten(protocol) for path in paths(field.name, field.type)}
    found = read(protocol)
    # A member whose own members are read is read.
    lost = {path for path in known - found if not any(is_under(each, {path}) for each in found)}
    dropped = DROPPED.union(getattr(body_of(protocol), "without_effect", ()))
    assert sorted(path for path in lost if not is_under(path, dropped)) == []
    assert known & dropped <= lost


def test_each_member_that_is_named_as_dropped_exists() -> None:
    known = {
        path for protocol in BODIES for field in rewritten(protocol) for path in paths(field.name, field.type)
    }
    assert known >= DROPPED


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
