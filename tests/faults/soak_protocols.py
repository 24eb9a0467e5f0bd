"""The requests of a soak's clients in each protocol, and the readers of the answers."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

RESPONSE_ENDS = {"response.completed", "response.incomplete", "response.failed"}
MESSAGE_ENDS = {"message_stop", "error"}
UNFINISHED = {"queued", "in_progress"}


class Reading(NamedTuple):
    """The content of one event, or of an answer in one piece."""

    text: str = ""
    usage: dict[str, int] | None = None
    error_code: str = ""
    is_end: bool = False
    """It is a finish or an error."""
    is_last: bool = False
    """Nothing may come after it."""
    id: str = ""
    number: int | None = None
    """The event's own number, behind which a client can go on."""
    is_accepted: bool = False
    """The answer comes later."""


class Protocol(NamedTuple):
    """A route, its requests and its answers."""

    path: str
    body: Callable[[str, bool], dict[str, Any]]
    """Takes the prompt and whether to stream; returns the body without the model."""
    event: Callable[[dict[str, Any]], Reading]
    document: Callable[[dict[str, Any]], Reading]
    acts: dict[str, int]
    """The acts of its clients, with weights."""


# ---- requests


def _chat(prompt: str, stream: bool) -> dict[str, Any]:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    return {"messages": [{"role": "user", "content": prompt}], "stream": stream, **options}


def _text(prompt: str, stream: bool) -> dict[str, Any]:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    return {"prompt": prompt, "stream": stream, "max_tokens": 1_000, **options}


def _response(prompt: str, stream: bool) -> dict[str, Any]:
    return {"input": prompt, "stream": stream}


def _message(prompt: str, stream: bool) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}], "stream": stream, "max_tokens": 1_000}


def prompt_of(body: dict[str, Any]) -> str:
    """Return the prompt of a request to an upstream, in any protocol."""
    prompt: Any = body.get("prompt") or body.get("input")
    if prompt is None:
        prompt = body["messages"][0]["content"]
    return str(prompt[0] if isinstance(prompt, list) else prompt)


# ---- answers


def error_code(error: dict[str, Any]) -> str:
    """Return the code of an error in OpenAI's envelope or in Anthropic's."""
    details = error.get("details") or {}
    return str(details.get("error_code") or error.get("code") or error.get("type"))


def _chunk(chunk: dict[str, Any], said: str) -> Reading:
    if "error" in chunk:
        return Reading(error_code=error_code(chunk["error"]), is_end=True)
    choices = chunk["choices"]
    return Reading(
        _joined(choice[said] for choice in choices),
        chunk.get("usage"),
        is_end=any(choice["finish_reason"] for choice in choices),
        id=chunk["id"],
    )


def _completion(document: dict[str, Any], said: str) -> Reading:
    usage = document.get("usage")
    return Reading(_joined(choice[said] for choice in document.get("choices", ())), usage)


def _joined(said: Iterable[Any]) -> str:
    return "".join(each if isinstance(each, str) else each.get("content") or "" for each in said)


def _response_event(event: dict[str, Any]) -> Reading:
    kind, number = event["type"], event["sequence_number"]
    if kind == "response.output_text.delta":
        return Reading(event["delta"], number=number)
    if kind in RESPONSE_ENDS:
        reading = _response_document(event["response"])
        return reading._replace(text="", is_end=True, is_last=True, number=number)
    return Reading(number=number, id=event.get("response", {}).get("id", ""))


def _response_document(document: dict[str, Any]) -> Reading:
    if "output" not in document:
        return Reading()  # an error in one piece
    usage, error = document["usage"], document["error"]
    parts = [part for item in document["output"] for part in item.get("content", ())]
    return Reading(
        "".join(part["text"] for part in parts),
        usage and {"prompt_tokens": usage["input_tokens"], "completion_tokens": usage["output_tokens"]},
        error_code(error) if error else "",
        id=document["id"],
        is_accepted=document["status"] in UNFINISHED,
    )


def _message_event(event: dict[str, Any]) -> Reading:
    kind = event["type"]
    return Reading(
        event["delta"].get("text", "") if kind == "content_block_delta" else "",
        _message_usage(event["usage"]) if kind == "message_delta" else None,
        error_code(event["error"]) if kind == "error" else "",
        is_end=kind in MESSAGE_ENDS,
        is_last=kind in MESSAGE_ENDS,
        id=event["message"]["id"] if kind == "message_start" else "",
    )


def _message_document(document: dict[str, Any]) -> Reading:
    if "content" not in document:
        return Reading()  # an error, in OpenAI's envelope where the protocol of a generation is not known yet
    text = "".join(block["text"] for block in document["content"])
    return Reading(text, _message_usage(document["usage"]), id=document["id"])


def _message_usage(usage: dict[str, int]) -> dict[str, int]:
    kinds = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return {"prompt_tokens": sum(usage[kind] for kind in kinds), "completion_tokens": usage["output_tokens"]}


def _vectors(document: dict[str, Any]) -> Reading:
    if "error" in document:
        return Reading()
    assert document["data"]
    return Reading(usage={"prompt_tokens": document["usage"]["prompt_tokens"], "completion_tokens": 0})


def _count(document: dict[str, Any]) -> Reading:
    assert "error" in document or document["input_tokens"] > 0
    return Reading()


def _no_event(event: dict[str, Any]) -> Reading:
    raise ValueError(f"an event where none was asked for: {event}")


# ---- the protocols


_ACTS = {
    "reads": 25,
    "wants it whole": 15,
    "leaves": 14,
    "reads slowly": 8,
    "cancels": 8,
    "sends it again": 8,
    "attaches": 6,
    "resumes": 6,
    "fetches it later": 6,
    "delivers it twice": 4,
}
_RESPONSE_ACTS = {
    **{act: weight for act, weight in _ACTS.items() if act != "fetches it later"},
    "continues": 14,
    "runs in the background": 10,
    "cancels in the background": 10,
}
PROTOCOLS = {
    "chat": Protocol(
        "/openai/v1/chat/completions",
        _chat,
        lambda chunk: _chunk(chunk, "delta"),
        lambda document: _completion(document, "message"),
        _ACTS,
    ),
    "text": Protocol(
        "/openai/v1/completions",
        _text,
        lambda chunk: _chunk(chunk, "text"),
        lambda document: _completion(document, "text"),
        _ACTS,
    ),
    "responses": Protocol("/v1/responses", _response, _response_event, _response_document, _RESPONSE_ACTS),
    "messages": Protocol("/v1/messages", _message, _message_event, _message_document, _ACTS),
    "embeddings": Protocol(
        "/v1/embeddings",
        lambda prompt, _: {"input": prompt},
        _no_event,
        _vectors,
        {"wants it whole": 6, "leaves": 2, "sends it again": 2},
    ),
    "input_tokens": Protocol(
        "/v1/responses/input_tokens", lambda prompt, _: {"input": prompt}, _no_event, _count, {"counts": 1}
    ),
    "count_tokens": Protocol(
        "/v1/messages/count_tokens",
        lambda prompt, _: {"messages": [{"role": "user", "content": prompt}]},
        _no_event,
        _count,
        {"counts": 1},
    ),
}
SHARES = {
    "chat": 22,
    "text": 8,
    "responses": 26,
    "messages": 22,
    "embeddings": 12,
    "input_tokens": 5,
    "count_tokens": 5,
}
"""The number of clients of each protocol, of 100."""
