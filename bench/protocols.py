"""The protocols of the load generator: a request's path and body, and the check of its stream.

The checks of Responses and Messages are those of `bench.answers`: the text, the end, the exact usage.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from bench.answers import (
    AnswerError,
    Content,
    Expected,
    Usage,
    check_stream,
    check_text,
    check_usage,
    split_events,
)


class Protocol(NamedTuple):
    """`body` takes the model, the prompt and whether to stream; `check_stream` returns the pieces of text."""

    path: str
    body: Callable[[str, str, bool], dict[str, Any]]
    check_stream: Callable[[bytes, Expected], list[Content]]


def chat_body(model: str, prompt: str, is_stream: bool) -> dict[str, Any]:
    """Return a request of chat completions; a stream ends with its usage."""
    streaming = {"stream": True, "stream_options": {"include_usage": True}} if is_stream else {}
    return {"model": model, "messages": [{"role": "user", "content": prompt}], **streaming}


def responses_body(model: str, prompt: str, is_stream: bool) -> dict[str, Any]:
    """Return a request of the Responses API that is not stored, as coding agents send it."""
    return {"model": model, "input": prompt, "stream": is_stream, "store": False}


def messages_body(model: str, prompt: str, is_stream: bool) -> dict[str, Any]:
    """Return a request of the Messages API."""
    messages = [{"role": "user", "content": prompt}]
    return {"model": model, "messages": messages, "max_tokens": 1024, "stream": is_stream}


def check_responses(body: bytes, expected: Expected) -> list[Content]:
    """Return the pieces of text of a stream of the Responses API; raises AnswerError if it is wrong."""
    events = list(_typed_events(body))
    contents = [
        Content(end, event["delta"]) for end, event in events if event["type"] == "response.output_text.delta"
    ]
    check_text("".join(content.text for content in contents), expected)
    if [event["sequence_number"] for _, event in events] != list(range(len(events))):
        raise AnswerError("sequence numbers with a gap")
    last = events[-1][1]
    if last["type"] != "response.completed":
        raise AnswerError(f"the last event is {last['type']}")
    usage = last["response"]["usage"]
    check_usage(Usage(usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]), expected)
    return contents


def check_messages(body: bytes, expected: Expected) -> list[Content]:
    """Return the pieces of text of a stream of the Messages API; raises AnswerError if it is wrong."""
    events = list(_typed_events(body))
    deltas = [(end, event["delta"]) for end, event in events if event["type"] == "content_block_delta"]
    contents = [Content(end, delta["text"]) for end, delta in deltas]
    check_text("".join(content.text for content in contents), expected)
    if [event["type"] for _, event in events[-2:]] != ["message_delta", "message_stop"]:
        raise AnswerError("no message_delta and message_stop at the end")
    usage = events[-2][1]["usage"]
    tokens = (usage["input_tokens"], usage["output_tokens"])
    check_usage(Usage(*tokens, sum(tokens)), expected)
    return contents


def _typed_events(body: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    for event in split_events(body):
        data = msgspec.json.decode(event.data)
        if data["type"] == "error":
            raise AnswerError(f"error event: {data.get('error', data)}")
        if data["type"] != "ping":
            yield event.end_bytes, data


PROTOCOLS = {
    "chat": Protocol("/chat/completions", chat_body, check_stream),
    "responses": Protocol("/responses", responses_body, check_responses),
    "messages": Protocol("/messages", messages_body, check_messages),
}
