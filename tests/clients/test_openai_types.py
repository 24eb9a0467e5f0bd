"""OpenAI's published types accept all that is sent where its clients are at home, strictly: nothing missing,
mistyped or unheard of.
"""

import json
from collections.abc import Iterator
from typing import Any, Literal, TypeVar

import pydantic
import pytest
from openai.types import Completion, CompletionChoice, ErrorObject, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.chatapi.http_client import Client

T = TypeVar("T", bound=pydantic.BaseModel)
pytestmark = [pytest.mark.xdist_group("clients"), pytest.mark.timeout(120)]

DIALECTS = ["openai", "opentoken"]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
SHELL = {"type": "custom", "custom": {"name": "shell"}}
SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}

CHATS: dict[str, dict[str, Any]] = {
    "text": {"model": "sandbox"},
    "an upstream's text": {"model": "five"},
    "usage asked for": {"model": "sandbox", "stream_options": {"include_usage": True}},
    "choices with log probabilities": {"model": "sandbox", "n": 2, "logprobs": True, "top_logprobs": 3},
    "tool calls": {"model": "sandbox-parallel-tool-calls", "tools": [WEATHER], "n": 2},
    "an upstream's tool calls": {"model": "calls-tools"},
    "a call of an old function": {"model": "sandbox-tool-call", "functions": [WEATHER["function"]], "n": 2},
    "reasoning": {"model": "sandbox-reasoning"},
    "refusal": {"model": "sandbox-refusal"},
    "length": {"model": "sandbox", "max_tokens": 3},
    "content filter": {"model": "sandbox-content-filter"},
    "structured output": {
        "model": "sandbox",
        "response_format": {"type": "json_schema", "json_schema": {"name": "e", "schema": SCHEMA}},
    },
}
TEXTS: dict[str, dict[str, Any]] = {
    "text": {},
    "usage asked for": {"stream_options": {"include_usage": True}},
    "prompts and choices": {"prompt": ["Once", "Twice"], "n": 2, "logprobs": 2},
    "length": {"max_tokens": 3},
}
REFUSED: dict[str, dict[str, Any]] = {
    "wrong parameter": {"model": "sandbox", "temperature": "hot"},
    "no JSON schema": {"model": "sandbox", "response_format": {"type": "json_schema"}},
    "unknown model": {"model": "gpt-99"},
    "too fast": {"model": "status-429"},
    "broken upstream": {"model": "status-500"},
    "broken sandbox": {"model": "sandbox-error-before"},
}
UNPUBLISHED = {"reasoning_content", "kind"}
"""Members that OpenAI's reference does not have: reasoning, by the name that servers and clients share, and
the kind of a model.
"""


class TextChunkChoice(CompletionChoice):
    """As OpenAI streams it: its published type, meant for whole answers, forgets that most chunks have no
    finish reason yet.
    """

    finish_reason: Literal["stop", "length", "content_filter"] | None  # type: ignore[assignment]


class TextChunk(Completion):
    """A chunk of a text completion's stream."""

    choices: list[TextChunkChoice]  # type: ignore[assignment]


def check(kind: type[T], document: str | bytes) -> T:
    """Return the document as the type; fail unless it is one, strictly, without unknown members."""
    checked = kind.model_validate_json(document, strict=True)
    assert set(unknown(checked)) <= UNPUBLISHED
    return checked


def unknown(value: Any) -> Iterator[str]:
    """Yield the names of the members that the types do not know, at any depth."""
    if isinstance(value, pydantic.BaseModel):
        yield from value.model_extra or ()
        for _, member in value:
            yield from unknown(member)
    elif isinstance(value, list):
        for item in value:
            yield from unknown(item)


def frames(client: Client, path: str, body: dict[str, Any]) -> list[str]:
    """Return the data of each event of a stream, without the `[DONE]` that must be the last."""
    with client.exchange("POST", path, json.dumps(body).encode(), {}) as exchange:
        *frames, done = exchange.data()
    assert done == "[DONE]"
    return frames


def chat(case: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hello"}], **case, **more}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", CHATS)
def test_chat_bodies(http: Client, dialect: str, case: str) -> None:
    body = {name: value for name, value in chat(CHATS[case]).items() if name != "stream_options"}
    answer = http.send("POST", f"/{dialect}/v1/chat/completions", json.dumps(body).encode())
    completion = check(ChatCompletion, answer.body)
    assert completion.usage is not None
    for choice in answer.json["choices"]:
        assert choice.keys() == {"index", "message", "logprobs", "finish_reason"}
        assert choice["message"].keys() >= {"role", "content", "refusal"}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", CHATS)
def test_chat_chunks(http: Client, dialect: str, case: str) -> None:
    sent = frames(http, f"/{dialect}/v1/chat/completions", chat(CHATS[case], stream=True))
    chunks = [check(ChatCompletionChunk, frame) for frame in sent]
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert all("finish_reason" in choice for frame in sent for choice in json.loads(frame)["choices"])


def test_custom_tool_calls(http: Client) -> None:
    body = chat({"model": "sandbox-tool-call", "tools": [SHELL]})
    completion = check(
        ChatCompletion, http.send("POST", "/openai/v1/chat/completions", json.dumps(body).encode()).body
    )
    (call,) = completion.choices[0].message.tool_calls or []
    assert call.type == "custom"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", TEXTS)
def test_text_bodies_and_chunks(http: Client, dialect: str, case: str) -> None:
    path = f"/{dialect}/v1/completions"
    body = {"model": "sandbox", "prompt": "Once", **TEXTS[case]}
    whole = {name: value for name, value in body.items() if name != "stream_options"}
    check(Completion, http.send("POST", path, json.dumps(whole).encode()).body)
    for frame in frames(http, path, {**body, "stream": True}):
        check(TextChunk, frame)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", REFUSED)
def test_errors(http: Client, dialect: str, case: str, stream: bool) -> None:
    body = chat(REFUSED[case], stream=stream)
    check(
        ErrorObject,
        json.dumps(http.send("POST", f"/{dialect}/v1/chat/completions", json.dumps(body).encode()).error),
    )


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("model", ["sandbox-error-midstream", "breaks-by-error"])
def test_errors_inside_a_stream(http: Client, dialect: str, model: str) -> None:
    *chunks, error = frames(http, f"/{dialect}/v1/chat/completions", chat({"model": model}, stream=True))
    for chunk in chunks:
        check(ChatCompletionChunk, chunk)
    check(ErrorObject, json.dumps(json.loads(error)["error"]))


ANTHROPICS = {"type", "display_name", "created_at", "max_input_tokens", "max_tokens", "lifecycle"}
ANTHROPICS |= {"deprecated_at"}
"""Members of a model that OpenAI's does not have."""


@pytest.mark.parametrize("dialect", DIALECTS)
def test_models(http: Client, dialect: str) -> None:
    listed = http.send("GET", f"/{dialect}/v1/models").json
    assert listed.keys() == {"object", "data", "has_more", "first_id", "last_id"}
    for model in (*listed["data"], http.send("GET", f"/{dialect}/v1/models/five").json):
        check(Model, json.dumps({name: model[name] for name in model.keys() - ANTHROPICS}))
