"""Checks every answer to the byte: the text, one finish, the exact usage, the end, and nothing after it.

Pure functions over stored bytes; `AnswerError` names the first thing that is wrong. The contract is OpenAI's
stream with a usage chunk (as in OpenToken's document): role first, content, one finish, usage alone on the
last chunk, then `data: [DONE]`.
"""

import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from bench.behaviour import PROMPT_TOKENS

BLANK_LINE = re.compile(rb"\r?\n\r?\n")


class AnswerError(Exception):
    """The answer breaks the contract. The message is short and fixed for each breach, because equal messages
    are counted.
    """


class Expected(NamedTuple):
    """The text of the right answer, and the tokens that it reports."""

    text: str
    tokens: int
    prompt_tokens: int = PROMPT_TOKENS


class Event(NamedTuple):
    """The data of a server-sent event, and where in the body the event is complete."""

    end_bytes: int
    data: bytes


class Content(NamedTuple):
    """A piece of the answer's text, and where in the body its event is complete."""

    end_bytes: int
    text: str


class Usage(msgspec.Struct):
    """OpenAI's usage object; details are ignored."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Delta(msgspec.Struct):
    """The new part of a message."""

    role: str | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct):
    """The one choice of a chunk; `finish_reason` must be there, if only as null."""

    index: Literal[0]
    delta: Delta
    finish_reason: str | None


class Chunk(msgspec.Struct):
    """One chunk of a stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
    error: Any = None


class Message(msgspec.Struct):
    """The whole message of an answer that is not streamed."""

    role: Literal["assistant"]
    content: str


class Choice(msgspec.Struct):
    """The one choice of an answer that is not streamed."""

    index: Literal[0]
    message: Message
    finish_reason: str


class Completion(msgspec.Struct):
    """An answer that is not streamed."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


CHUNK_DECODER = msgspec.json.Decoder(Chunk)
COMPLETION_DECODER = msgspec.json.Decoder(Completion)


def check_stream(body: bytes, expected: Expected) -> list[Content]:
    """Return the pieces of text of a right stream; raises AnswerError for any other."""
    events = list(split_events(body))
    done = next((event for event in events if event.data == b"[DONE]"), None)
    if done is not None and done.end_bytes != len(body):
        raise AnswerError("bytes after [DONE]")
    chunks = [decode_chunk(event.data) for event in events if event is not done]
    if done is None:
        raise AnswerError("no [DONE]")
    contents = [
        Content(event.end_bytes, choice.delta.content)
        for event, chunk in zip(events, chunks, strict=False)  # [DONE] is an event and no chunk
        for choice in chunk.choices
        if choice.delta.content
    ]
    check_text("".join(content.text for content in contents), expected)
    check_frame_order(chunks)
    check_usage(chunks[-1].usage, expected)
    return contents


def split_events(body: bytes) -> Iterator[Event]:
    """Yield the events that have data, in order; skip comments and an event that is cut off (WHATWG HTML,
    section 9.2.6).
    """
    start = 0
    for blank_line in BLANK_LINE.finditer(body):
        lines = body[start : blank_line.start()].splitlines()
        data = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
        if data:
            yield Event(blank_line.end(), b"\n".join(data))
        start = blank_line.end()


def decode_chunk(data: bytes) -> Chunk:
    """Return the decoded chunk; raises AnswerError for an error frame and for anything that is no chunk."""
    try:
        chunk = CHUNK_DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise AnswerError(error_code(data, "error frame") or f"no chunk: {error}") from error
    if chunk.error is not None:
        raise AnswerError(error_code(data, "error frame") or "error frame")
    return chunk


def check_frame_order(chunks: list[Chunk]) -> None:
    """Check the order: role first, one finish after all text, usage once and last, one id; raises
    AnswerError.
    """
    choices = [choice for chunk in chunks for choice in chunk.choices]
    finishes = [choice.finish_reason for choice in choices if choice.finish_reason is not None]
    roles = [choice.delta.role for choice in choices if choice.delta.role is not None]
    if finishes != ["stop"]:
        raise AnswerError(f"finish_reason {' and '.join(finishes)}" if finishes else "no finish_reason")
    if choices[-1].finish_reason is None:
        raise AnswerError("a choice after finish_reason")
    if roles != ["assistant"] or choices[0].delta.role is None:
        raise AnswerError("role missing, repeated or late")
    if any(chunk.usage for chunk in chunks[:-1]):
        raise AnswerError("usage before the last chunk")
    if len({chunk.id for chunk in chunks}) != 1:
        raise AnswerError("the id changes")


def check_completion(body: bytes, expected: Expected) -> None:
    """Check an answer that is not streamed; raises AnswerError."""
    try:
        completion = COMPLETION_DECODER.decode(body)
    except msgspec.DecodeError as error:
        raise AnswerError(error_code(body, "error") or f"no completion: {error}") from error
    if len(completion.choices) != 1:
        raise AnswerError(f"{len(completion.choices)} choices")
    check_text(completion.choices[0].message.content, expected)
    if completion.choices[0].finish_reason != "stop":
        raise AnswerError(f"finish_reason {completion.choices[0].finish_reason}")
    check_usage(completion.usage, expected)


def check_text(text: str, expected: Expected) -> None:
    """Raise AnswerError unless the text is the expected one; its message names a text that ends early."""
    if text != expected.text:
        raise AnswerError("text ends early" if expected.text.startswith(text) else "wrong text")


def check_usage(usage: Usage | None, expected: Expected) -> None:
    """Raise AnswerError unless the usage is there and exactly the upstream's."""
    if usage is None:
        raise AnswerError("no usage")
    if usage != Usage(expected.prompt_tokens, expected.tokens, expected.prompt_tokens + expected.tokens):
        raise AnswerError("wrong usage")


def error_code(data: bytes, label: str) -> str:
    """Return `error frame: overloaded` for an OpenAI envelope with that code (or type, or message); empty if
    the data is no error.
    """
    try:
        error = msgspec.json.decode(data, type=dict[str, Any]).get("error")
    except msgspec.DecodeError:
        return ""
    if error is None:
        return ""
    if not isinstance(error, dict):
        return f"{label}: {error}"
    return f"{label}: {error.get('code') or error.get('type') or error.get('message')}"
