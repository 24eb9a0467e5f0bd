"""Request bodies for tests: the smallest valid ones, what they become, and why they are refused."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.messages import Message
from chatapi.wire.parsed_request import RequestSummary, parse
from chatapi.wire.prompts import Messages, Texts
from chatapi.wire.protocols.chat.request import NAME as CHAT
from chatapi.wire.protocols.chat.request import parse as parse_chat
from chatapi.wire.protocols.text_completions.request import NAME as TEXT
from chatapi.wire.protocols.text_completions.request import parse as parse_text
from chatapi.wire.requests import refuse_remote_media

HELLO = {"role": "user", "content": "Hello!"}
FUNCTION = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
CUSTOM = {"type": "custom", "custom": {"name": "run_code"}}


def chat_body(**members: Any) -> bytes:
    """Return a chat request with these members beside `model` and `messages`."""
    return json.dumps({"model": "m", "messages": [HELLO]} | members).encode()


def text_body(**members: Any) -> bytes:
    """Return a text request with these members beside `model` and `prompt`."""
    return json.dumps({"model": "m", "prompt": "Once"} | members).encode()


def chat(**members: Any) -> GenerationRequest:
    return parse_chat(chat_body(**members))


def text(**members: Any) -> GenerationRequest:
    return parse_text(text_body(**members))


def summary(**members: Any) -> RequestSummary:
    """Return the web process's summary of a request: a text request if there is a `prompt`, else a chat
    request.
    """
    if "prompt" in members:
        return parse(text_body(**members), TEXT, None).summary
    return parse(chat_body(**members), CHAT, None).summary


def messages_of(request: GenerationRequest) -> list[Message]:
    assert isinstance(request.prompt, Messages)
    return request.prompt.messages


def prompts_of(request: GenerationRequest) -> list[str | list[int]]:
    assert isinstance(request.prompt, Texts)
    return request.prompt.prompts


def parse_for_careful_deployments(body: bytes) -> GenerationRequest:
    """Return the chat request, for a model none of whose deployments may receive remote pictures."""
    request = parse_chat(body)
    refuse_remote_media(request)
    return request


def refusal(body: bytes, parse: Callable[[bytes], Any] = parse_for_careful_deployments) -> InvalidRequest:
    """Return the error that refuses this body."""
    with pytest.raises(InvalidRequest) as caught:
        parse(body)
    return caught.value


def chat_refusal(**members: Any) -> tuple[str | None, str | None]:
    """Return the parameter of this chat request that is refused, and the code."""
    error = refusal(chat_body(**members))
    assert error.status == 400
    return error.param, error.code


def text_refusal(**members: Any) -> tuple[str | None, str | None]:
    """Return the parameter of this text request that is refused, and the code."""
    error = refusal(text_body(**members), parse_text)
    assert error.status == 400
    return error.param, error.code
