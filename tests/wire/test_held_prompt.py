"""What upstreams get as prompt is in the hold: each text of a request is made longer, and if the upstream
gets it, the bound of the prompt's tokens grows with it.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec import inspect

from chatapi.wire import parsed_request, requests, tokens
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.invalid_request import InvalidRequest, UnresolvedReferences
from chatapi.wire.parameters import COMPLETION_LIMIT, ENGINE_PARAMETERS, TEMPLATE_PARAMETERS, Functions, Tool
from chatapi.wire.prompts import Messages
from chatapi.wire.protocols import PROTOCOLS
from chatapi.wire.upstream.anthropic_request import messages_body
from chatapi.wire.upstream.upstream_errors import UpstreamError
from chatapi.wire.upstream.upstream_kinds import UPSTREAM_KINDS
from tests.wire.request_bodies import HELLO, chat
from tests.wire.test_fields_of_bodies import BODIES, NEEDS
from tests.wire.whole_bodies import MARK, TEXT, WHOLE

MORE = "QZQZ"
"""What each text gets at its end: it stays base64, an id, a name, or a URL."""
WINDOW = 1 << 30
EXTRAS = ENGINE_PARAMETERS | {COMPLETION_LIMIT}
# The texts that upstreams get and no model reads.
NO_PROMPT = {
    *(".metadata", ".prompt_cache_key", ".safety_identifier", ".user", ".moderation.model"),
    *(".stop", ".audio.voice"),
    *(".tool_cache_marks", ".prompt.messages[].cache_control", ".prompt.messages[].content[].cache_control"),
    # Names of tools, which the prompt has anyway.
    *(".function_call", ".tool_choice"),
    *(f".extras.{name}" for name in ENGINE_PARAMETERS - TEMPLATE_PARAMETERS),
}
# Bytes in the request, and the types of what they hold.
RAW = {"tools": list[Tool], "functions": Functions}
CALL = {"name": "f", "arguments": "{}"}
ANSWERS: list[dict[str, Any]] = [
    {"content": "a", "name": "n"},
    {"content": [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "a"}]},
    {"refusal": "a", "audio": {"id": "a"}},
    {"function_call": CALL},
    {"tool_calls": [{"id": "c", "type": "function", "function": CALL, "extra_content": {"a": "b"}}]},
    {"tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "i"}}]},
    {"content": "a", "reasoning_content": "r"},
]
OTHERS: list[dict[str, Any]] = [
    {"role": "developer", "content": [{"type": "text", "text": "a"}], "name": "n"},
    {"role": "system", "content": "a", "name": "n"},
    {"role": "function", "content": "a", "name": "n"},
    {"role": "tool", "content": [{"type": "text", "text": "a"}], "tool_call_id": "c"},
]
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
PLACE = dict.fromkeys(("city", "country", "region", "timezone"), "a")
# By protocol, beside those of other tests.
BODIES_WITH: dict[str, list[dict[str, Any]]] = {
    "chat.completions": [
        *({"messages": [HELLO, {"role": "assistant"} | each]} for each in ANSWERS),
        *({"messages": [each, HELLO]} for each in OTHERS),
        {"messages": [{"role": "user", "content": [SOUND]}]},
        *({"messages": [HELLO], name: {"a": "b"}} for name in sorted(ENGINE_PARAMETERS)),
        {"messages": [HELLO], "prediction": {"type": "content", "content": [TEXT | MARK]}},
        {
            "messages": [HELLO],
            "web_search_options": {"user_location": {"type": "approximate", "approximate": PLACE}},
        },
    ],
    "completions": [{"prompt": ["a", "b"]}],
    "embeddings": [{"input": ["a", "b"]}],
}


def sent_requests() -> Iterator[GenerationRequest]:
    """Yield requests that together have each text, of all protocols."""
    for protocol, (least, whole) in BODIES.items():
        singly = (least | NEEDS.get((protocol, name), {}) | {name: whole[name]} for name in whole)
        for body in (*singly, *WHOLE[protocol], *BODIES_WITH.get(protocol, ())):
            try:
                yield PROTOCOLS[protocol].parse(json.dumps({"model": "m"} | body).encode(), None)
            except (InvalidRequest, UnresolvedReferences):
                continue  # some of the bodies are there to be refused


def with_longer_texts(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path of each text in the value, and the value with that text made longer."""
    match value:
        case str():
            yield path, value + MORE
        case list():
            for index, item in enumerate(value):
                for where, longer in with_longer_texts(item, f"{path}[]"):
                    yield where, [*value[:index], longer, *value[index + 1 :]]
        case dict():
            for name, member in value.items():
                for where, longer in with_longer_texts(member, f"{path}.{name}"):
                    yield where, value | {name: longer}


def read(value: Any) -> GenerationRequest | None:
    """Return the request of this JSON value; None if it is not valid."""
    try:
        request = requests.from_bytes(msgspec.json.encode(value))
        for name, raw in RAW.items():
            if found := getattr(request, name):
                msgspec.json.decode(found, type=raw)
    except (msgspec.ValidationError, ValueError):
        return None
    return request


def reaches_an_upstream(request: GenerationRequest) -> bool:
    """Return whether some body for an upstream has the longer text."""
    writers = [UPSTREAM_KINDS[type(request.prompt)].body]
    if isinstance(request.prompt, Messages):
        writers.append(messages_body)
    for write in writers:
        try:
            body = write(request, model="m", max_output_tokens=5, extra_parameters=EXTRAS)
        except UpstreamError:
            continue
        if MORE.encode() in msgspec.json.encode(body):
            return True
    return False


def bound(request: GenerationRequest) -> int:
    summary = parsed_request.read(requests.to_bytes(request)).summary
    return summary.prompt_tokens_bound(WINDOW)


def paths(kind: inspect.Type, path: str = "") -> Iterator[str]:
    """Yield the path of each text in this type, and of each value that may hold any."""
    match kind:
        case inspect.StrType() | inspect.AnyType():
            yield path
        case inspect.UnionType():
            for each in kind.types:
                yield from paths(each, path)
        case inspect.DictType() if any(paths(kind.value_type)):
            yield path
        case inspect.ListType():
            yield from paths(kind.item_type, f"{path}[]")
        case inspect.StructType():
            for field in kind.fields:
                raw = RAW.get(field.name) if isinstance(field.type, inspect.RawType) else None
                own = inspect.type_info(raw) if raw else field.type
                yield from paths(own, f"{path}.{field.encode_name}")


class Found(NamedTuple):
    """The paths of texts."""

    changed: set[str]
    reaching: set[str]
    """Part of `changed`: an upstream gets them."""
    uncounted: set[str]
    """Part of `reaching`: the bound is the same whatever their length."""


@pytest.fixture(scope="module")
def found() -> Found:
    found = Found(set(), set(), set())
    for request in sent_requests():
        before = bound(request)
        for path, value in with_longer_texts(msgspec.json.decode(requests.to_bytes(request))):
            if (longer := read(value)) is None:
                continue
            found.changed.add(path)
            if reaches_an_upstream(longer):
                found.reaching.add(path)
                # One that can't be measured may fill the context window.
                if before < WINDOW and bound(longer) - before < len(MORE):
                    found.uncounted.add(path)
    return found


def is_at(path: str, names: Iterable[str]) -> bool:
    """Return whether the path is one of these, or below one."""
    return any(path == name or path.startswith((f"{name}.", f"{name}[")) for name in names)


def test_what_an_upstream_gets_as_prompt_is_in_the_hold(found: Found) -> None:
    assert sorted(path for path in found.uncounted if not is_at(path, NO_PROMPT)) == []


def test_each_text_of_a_request_was_made_longer(found: Found) -> None:
    known = set(paths(inspect.type_info(GenerationRequest)))
    assert sorted(name for name in known if not any(is_at(path, [name]) for path in found.changed)) == []


def test_each_text_that_no_model_reads_reaches_an_upstream(found: Found) -> None:
    assert sorted(name for name in NO_PROMPT if not any(is_at(path, [name]) for path in found.reaching)) == []


def test_the_hold_has_what_a_template_writes_around_calls() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    bounds = [
        bound(chat(messages=[HELLO, {"role": "assistant", "content": "", "tool_calls": [call] * count}]))
        for count in (1, 101)
    ]
    written = '\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'  # as Qwen's template does
    assert bounds[1] - bounds[0] >= 100 * tokens.count(written)
