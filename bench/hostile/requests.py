"""Requests as bytes that are ready to be sent."""

import json
from collections.abc import Mapping
from typing import Any

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"


def request(
    method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> bytes:
    """Return a whole request with a `Content-Length`, if it has a body."""
    length = {} if body is None else {"Content-Length": str(len(body))}
    return head(method, path, {**(headers or {}), **length}) + (body or b"")


def head(method: str, path: str, headers: Mapping[str, str] | None = None) -> bytes:
    """Return a request's head."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: 127.0.0.1",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def chunked_head(method: str, path: str, headers: Mapping[str, str] | None = None) -> bytes:
    """Return a request's head whose body comes in chunks."""
    return head(
        method, path, {**(headers or {}), "Transfer-Encoding": "chunked", "Content-Type": "application/json"}
    )


def bearer(key: str) -> dict[str, str]:
    """Return the headers of a JSON request with this key."""
    return {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}


def chat(
    key: str,
    body: bytes | None = None,
    *,
    path: str = CHAT,
    extra: Mapping[str, str] | None = None,
    **fields: Any,
) -> bytes:
    """Return a chat request of this key: a body as it is, or a small one with these fields."""
    return request(
        "POST", path, {**bearer(key), **(extra or {})}, chat_body(**fields) if body is None else body
    )


def chat_body(**fields: Any) -> bytes:
    """Return the JSON of a small chat request with these fields."""
    small = {"model": "sandbox", "messages": [{"role": "user", "content": "hello"}]}
    return json.dumps({**small, **fields}).encode()


def with_raw(name: str, value: bytes, **fields: Any) -> bytes:
    """Return the JSON of a small chat request with one more member, whose value is given as JSON."""
    return chat_body(**fields)[:-1] + b', "%s": %s}' % (name.encode(), value)


def messages(content: Any) -> list[dict[str, Any]]:
    """Return one user message."""
    return [{"role": "user", "content": content}]
