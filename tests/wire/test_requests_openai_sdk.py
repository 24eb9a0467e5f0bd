"""Every request that the types of the installed openai package allow is taken, and forwarded as it was sent.

The package is generated from OpenAI's reference: a parameter, a role, a content part or a word that a newer
version has and we do not know fails here.
"""

import types
from collections.abc import Iterator
from typing import Any, Literal, Required, Union, get_args, get_origin

import msgspec
import pytest
from openai.types import completion_create_params as text_params
from openai.types.chat import completion_create_params as chat_params
from typing_extensions import get_type_hints, is_typeddict

from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.parameters import SERVICE_TIER
from chatapi.wire.protocols.chat.request import ChatRequest
from chatapi.wire.protocols.text_completions.request import TextRequest
from chatapi.wire.upstream.openai_request import upstream_body
from tests.wire.request_bodies import CUSTOM, FUNCTION, chat, text

SCALARS: dict[Any, list[Any]] = {
    str: ["x"],
    int: [1],
    float: [0.5],
    bool: [True, False],
    object: [{"y": [1, None, "é"]}],
    type(None): [],
}
# What a type can't say: texts of a form, and members of which one excludes or needs another.
FORMS: dict[str, list[Any]] = {
    "logit_bias": [{"50256": -100}],
    "url": ["data:image/png;base64,AAAA"],
    "data": ["AAAA"],
    "file": [{"file_data": "AAAA", "filename": "a.pdf"}, {"file_id": "file-1"}],
}
NEEDED: dict[str, dict[str, Any]] = {
    "tool_choice": {"tools": [FUNCTION | {"function": {"name": "x"}}, CUSTOM | {"custom": {"name": "x"}}]},
    "function_call": {"functions": [{"name": "x"}]},
    "top_logprobs": {"logprobs": True},
    "modalities": {"audio": {"format": "wav", "voice": "alloy"}},
    "ChatCompletionAssistantMessageParam": {"content": "x"},
}


def examples(hint: Any) -> Iterator[Any]:
    """Yield values of a type: each alternative of a union, each word of a literal, each member of
    an object.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in SCALARS:
        yield from SCALARS[hint]
    elif is_typeddict(hint):
        yield from objects(hint)
    elif origin is Literal:
        yield from arguments
    elif origin in (Union, types.UnionType, Required):
        for inner in arguments:
            yield from examples(inner)
    elif origin is dict:
        yield from ({"x": value} for value in examples(arguments[1]))
    else:  # a list, an iterable, a sequence
        yield from ([value] for value in examples(arguments[0]))


def objects(hint: Any) -> Iterator[dict[str, Any]]:
    """Yield the object with its required members, then with each value of each member in turn."""
    members = get_type_hints(hint, include_extras=True)
    least = {name: next(values(name, inner)) for name, inner in members.items() if is_required(inner)}
    least |= NEEDED.get(hint.__name__, {})
    yield least
    yield from (least | {name: value} for name, inner in members.items() for value in values(name, inner))


def is_required(hint: Any) -> bool:
    origin: Any = get_origin(hint)
    return origin is Required


def values(name: str, hint: Any) -> Iterator[Any]:
    yield from FORMS[name] if name in FORMS else examples(hint)


def hints(module: types.ModuleType) -> dict[str, Any]:
    kinds = (module.CompletionCreateParamsNonStreaming, module.CompletionCreateParamsStreaming)
    return {name: hint for kind in kinds for name, hint in get_type_hints(kind, include_extras=True).items()}


def forwarded(request: GenerationRequest) -> dict[str, Any]:
    """Return what a deployment gets that asks for dear tiers, too."""
    extra_parameters = frozenset({SERVICE_TIER})
    body = upstream_body(request, model="x", max_output_tokens=1, extra_parameters=extra_parameters)
    return dict(msgspec.json.decode(msgspec.json.encode(body)))


CHAT, TEXT = hints(chat_params), hints(text_params)
OURS_TO_SAY = ("model", "stream", "stream_options")
# The roles that upstreams know by another word.
ROLES = {"developer": "system"}


def test_we_know_every_parameter() -> None:
    assert {"messages", "tools", "stream", "verbosity"} <= set(CHAT)
    assert set(CHAT) - set(ChatRequest.__struct_fields__) == set()
    assert {"prompt", "echo", "stream", "best_of"} <= set(TEXT)
    assert set(TEXT) - set(TextRequest.__struct_fields__) == set()


def test_we_know_no_parameter_that_openai_does_not() -> None:
    ours = {"extras", "ignored", "models"}
    assert set(ChatRequest.__struct_fields__) - ours == set(CHAT)
    assert set(TextRequest.__struct_fields__) - ours == set(TEXT)


@pytest.mark.parametrize("name", CHAT)
def test_every_value_in_a_chat_is_forwarded(name: str) -> None:
    found = list(values(name, CHAT[name]))
    assert found
    for value in found:
        request = chat(**NEEDED.get(name, {}) | {name: value})
        assert request.ignored == ()
        if name == "messages":
            roles = [ROLES.get(message["role"], message["role"]) for message in value]
            renamed = [message | {"role": role} for message, role in zip(value, roles, strict=True)]
            assert forwarded(request)[name] == renamed
        elif name not in OURS_TO_SAY:
            assert forwarded(request)[name] == value


@pytest.mark.parametrize("name", TEXT)
def test_every_value_in_a_text_request_is_forwarded(name: str) -> None:
    found = list(values(name, TEXT[name]))
    assert found
    for value in found:
        request = text(**{name: value})
        assert request.ignored == ()
        if name not in OURS_TO_SAY:
            assert forwarded(request)[name] == value


def test_the_examples_are_all_that_there_is() -> None:
    roles = {message["role"] for (message,) in values("messages", CHAT["messages"])}
    assert roles == {"developer", "system", "user", "assistant", "tool", "function"}
    contents = [message.get("content") for (message,) in values("messages", CHAT["messages"])]
    parts = {part["type"] for content in contents if isinstance(content, list) for part in content}
    assert parts == {"text", "image_url", "input_audio", "file", "refusal"}
