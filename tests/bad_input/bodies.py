"""The smallest valid request bodies, made wrong in one place, and what a refusal must look like wherever it
comes from.
"""

import json
import re
from typing import Any

from tests.chatapi.http_client import HELLO, Answer

CHAT, TEXT, TICKETS = "/v1/chat/completions", "/v1/completions", "/v1/chat/completions/tickets"
EMBEDDINGS = "/v1/embeddings"
POSTED = (CHAT, TEXT, TICKETS, EMBEDDINGS)
"""The routes that take a JSON body."""

SMALL_REQUEST: dict[str, Any] = {"model": "five", "max_tokens": 100}


def chat(**members: Any) -> bytes:
    """Return a chat request with these members beside `model` and `messages`."""
    return json.dumps({"model": "five", "messages": HELLO} | members).encode()


def text(**members: Any) -> bytes:
    """Return a text request with these members beside `model` and `prompt`."""
    return json.dumps({"model": "five", "prompt": "hello"} | members).encode()


def embeddings(**members: Any) -> bytes:
    """Return a request to embed a text, with these members beside `model` and `input`."""
    return json.dumps({"model": "five-embeddings", "input": "hello"} | members).encode()


def body_for(path: str) -> bytes:
    """Return a valid body for this route."""
    return {TEXT: text, EMBEDDINGS: embeddings}.get(path, chat)()


def with_member(body: bytes, name: str, json_text: str | bytes) -> bytes:
    """Return the body with one more member, given as the JSON text that `json.dumps` would not write."""
    value = json_text.encode() if isinstance(json_text, str) else json_text
    return body[:-1] + b"," + json.dumps(name).encode() + b":" + value + b"}"


def refusal(answer: Answer) -> tuple[int, str, str | None]:
    """Return status, code and param of an error, after checks that hold for every refusal."""
    error = answer.error
    assert 400 <= answer.status < 500, error
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", answer.headers["x-request-id"])
    assert "x-generation-id" not in answer.headers
    assert len(answer.body) < 20_000
    for secret in (b"Traceback", b"/site-packages/", b"Daphne", b"Django", b"<html"):
        assert secret not in answer.body
    return answer.status, error["code"], error["param"]
