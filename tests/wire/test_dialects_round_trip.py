"""What a dialect writes, an upstream's reader reads back: any sequence of deltas, each dialect, any split of
the bytes.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatapi.wire.completion import Choice, Completion
from chatapi.wire.deltas import (
    Annotations,
    AnyDelta,
    Audio,
    Failed,
    Finished,
    FinishReason,
    Reasoning,
    Refusal,
    Started,
    Text,
    TokenLogprob,
    ToolCall,
    ToolKind,
    TopLogprob,
    Usage,
)
from chatapi.wire.protocols.chat import STYLES as DIALECTS
from chatapi.wire.protocols.chat.encoder import ChatEncoder
from chatapi.wire.protocols.protocol import Answer
from chatapi.wire.protocols.text_completions.encoder import TextEncoder
from chatapi.wire.sse import Parser
from chatapi.wire.upstream.chunks import ChunkReader
from chatapi.wire.upstream.upstream_errors import UpstreamError
from tests.choice_content import content_of
from tests.wire.dialect_cases import folded
from tests.wire.folding import collect

ID = "0193ba5e0a7c7d1e8c3b5f2a9d4e6c80"
EVENTS = re.compile(r"(?:(?:event: error\n)?data: [^\r\n]+\n\n)*")

CHAT_REASONS: dict[str, dict[FinishReason, FinishReason]] = {
    "openai": {},
    "opentoken": {},
    "bitseek": {"length": "stop", "content_filter": "stop", "function_call": "tool_calls"},
    "llama": {"content_filter": "stop", "function_call": "tool_calls"},
}

texts = st.text(max_size=8) | st.sampled_from(
    ["\u2028", "\u2029\x85", "\0", "\r\n\n", "data: [DONE]\n\n", "👩‍👩‍👧", '"}\\', "\ufeff", "\x1b"]
)
words = st.text("abcdefgh_-0123456789", min_size=1, max_size=6)
numbers = st.integers(0, 2**31 - 1)
logprobs = st.floats(-100, 0)


@st.composite
def token_logprobs(draw: st.DrawFn, text: str) -> list[TokenLogprob] | None:
    """Draw the logprobs of a text whose characters are its tokens; None if the text is empty."""
    if not text or not draw(st.booleans()):
        return None
    return [TokenLogprob(token, draw(logprobs), None, [TopLogprob(token, draw(logprobs))]) for token in text]


@st.composite
def calls(draw: st.DrawFn, index: int) -> list[ToolCall]:
    """Generate no call, a deprecated one, or up to three, one of which may continue after the next
    has begun.

    All have arguments: a reader completes those without any.
    """
    if draw(st.integers(0, 4)) == 4:
        first, rest = "{" + draw(texts), draw(texts)
        return [
            ToolCall(0, first, None, draw(words), index, "function_call"),
            ToolCall(0, rest, None, None, index, "function_call"),
        ]
    pieces: list[ToolCall] = []
    for number in range(draw(st.integers(0, 3))):
        kind: ToolKind = draw(st.sampled_from(["function", "custom"]))
        extra = draw(st.none() | st.dictionaries(words, texts, min_size=1, max_size=1))
        first = "{" + draw(texts)
        pieces.append(ToolCall(number, first, f"call_{number}", draw(words), index, kind, extra))
        for called in pieces[-2:]:
            pieces.append(ToolCall(called.call_index, draw(texts), index=index, kind=called.kind))
    return pieces


def attachments(index: int) -> st.SearchStrategy[AnyDelta]:
    """Generate a piece of speech, or citations."""
    sounds = st.binary(max_size=5).map(lambda sound: b64encode(sound).decode())
    speech = st.builds(
        Audio, sounds, texts, st.just(index), st.none() | words, st.none() | st.integers(1, 2**40)
    )
    citations = st.lists(st.dictionaries(words, texts, max_size=2), min_size=1, max_size=2)
    return speech | st.builds(Annotations, citations, st.just(index))


@st.composite
def choices(draw: st.DrawFn, index: int) -> list[AnyDelta]:
    """Generate the deltas of one choice, in order."""
    said: list[AnyDelta] = []
    for kind in draw(st.lists(st.sampled_from([Text, Reasoning, Refusal]), max_size=4)):
        text = draw(texts)
        said.append(
            Reasoning(text, index) if kind is Reasoning else kind(text, index, draw(token_logprobs(text)))
        )
    said += draw(st.lists(attachments(index), max_size=3))
    called = draw(calls(index))
    reasons = ["stop", "length", "content_filter"]
    if called:
        reasons = ["function_call" if called[0].kind == "function_call" else "tool_calls"]
    return [*said, *called, Finished(draw(st.sampled_from(reasons)), index)]


@st.composite
def generations(draw: st.DrawFn) -> list[AnyDelta]:
    """Generate a whole generation of up to three interleaved choices."""
    shown = [draw(choices(index)) for index in range(draw(st.integers(1, 3)))]
    turns = draw(st.permutations([index for index, deltas in enumerate(shown) for _ in deltas]))
    queues = [iter(deltas) for deltas in shown]
    prompt, completion = draw(numbers), draw(numbers)
    cached = draw(st.none() | st.integers(0, prompt))
    usage = Usage(
        prompt,
        completion,
        cached,
        draw(st.none() | st.integers(0, completion)),
        cache_write_tokens=draw(st.none() | st.integers(0, prompt - (cached or 0))),
    )
    return [
        Started(draw(st.none() | words), draw(st.sampled_from([None, "flex"]))),
        *(next(queues[index]) for index in turns),
        usage,
    ]


def choices_count(deltas: Sequence[AnyDelta]) -> int:
    return 1 + max(getattr(delta, "index", 0) for delta in deltas)


def new_reader(choices: int) -> ChunkReader:
    return ChunkReader(choices=choices, max_chunks=1000)


def read_back(stream: bytes, reader: ChunkReader, size: int) -> list[AnyDelta]:
    """Return the deltas of a stream that arrives in reads of `size` bytes."""
    parser = Parser()
    parts = [parser.feed(stream[start : start + size]) for start in range(0, len(stream), size)]
    return [delta for events in [*parts, parser.close()] for delta in reader.read(events)]


def documents(stream: bytes) -> Iterator[Any]:
    """Return the JSON of each event, which is one line even if its texts contain line breaks."""
    text = stream.decode()
    assert EVENTS.fullmatch(text)
    return (json.loads(data) for data in re.findall(r"^data: (?!\[DONE])(.*)\n$", text, re.MULTILINE))


def summary(choice: Choice) -> dict[str, Any]:
    """Return the parts of a choice that must come back; a missing text equals an empty one."""
    found = content_of(choice)
    return found | {name: found[name] or "" for name in ("text", "reasoning", "refusal")}


def summaries(completion: Completion, count: int) -> list[dict[str, Any]]:
    return [summary(completion.choice(index)) for index in range(count)]


def as_chat(deltas: Sequence[AnyDelta], dialect: str) -> Completion:
    """Return the part of these deltas that a chat dialect can express."""
    reasons = CHAT_REASONS[dialect]
    return collect(
        Finished(reasons.get(delta.finish_reason, delta.finish_reason), delta.index)
        if isinstance(delta, Finished)
        else delta
        for delta in deltas
    )


def as_text(deltas: Sequence[AnyDelta], dialect: str) -> Completion:
    """Return the part of these deltas that a text completion can express: a refusal is text, all else is left
    out.
    """
    shown: list[AnyDelta] = []
    for delta in deltas:
        match delta:
            case Refusal():
                shown.append(Text(delta.text, delta.index, delta.logprobs))
            case Finished(finish_reason="tool_calls" | "function_call"):
                shown.append(Finished("stop", delta.index))
            case ToolCall() | Reasoning() | Audio() | Annotations():
                pass
            case _:
                shown.append(delta)
    return as_chat(shown, dialect)


ENCODERS: list[
    tuple[str, Callable[[Answer], ChatEncoder], Callable[[Sequence[AnyDelta], str], Completion]]
] = [
    (dialect, encoder, expected)
    for dialect, style in DIALECTS.items()
    for encoder, expected in (
        (partial(ChatEncoder, style=style), as_chat),
        (partial(TextEncoder, style=style), as_text),
    )
]
thoroughly = settings(max_examples=25)


@given(generations(), st.booleans(), st.integers(5, 500))
@thoroughly
def test_a_stream_reads_back_as_its_deltas(deltas: list[AnyDelta], include_usage: bool, size: int) -> None:
    count = choices_count(deltas)
    for dialect, encoder, expectation in ENCODERS:
        stream = encoder(Answer(ID, 1, "m", count, include_usage)).encode(deltas)
        reader = new_reader(count)
        found, expected = (
            collect(read_back(stream, reader, size) + reader.end()),
            expectation(deltas, dialect),
        )
        assert summaries(found, count) == summaries(expected, count)
        assert found.usage == (
            expected.usage if include_usage or dialect in ("opentoken", "bitseek") else None
        )
        assert (found.system_fingerprint, found.service_tier) == (
            expected.system_fingerprint,
            expected.service_tier,
        )
        assert (
            len({(document["id"], document["created"], document["model"]) for document in documents(stream)})
            == 1
        )


@given(generations())
@thoroughly
def test_a_body_reads_back_as_its_deltas(deltas: list[AnyDelta]) -> None:
    count = choices_count(deltas)
    # A text completion's body has one text: what was refused comes after what was said.
    deltas = sorted(deltas, key=lambda delta: isinstance(delta, Refusal))
    for dialect, encoder, expectation in ENCODERS:
        body = folded(encoder(Answer(ID, 1, "m", count)), deltas)
        reader = new_reader(count)
        found, expected = collect(reader.read_answer(body) + reader.end()), expectation(deltas, dialect)
        assert summaries(found, count) == summaries(expected, count)
        assert found.usage == expected.usage


@given(generations(), st.integers(5, 500))
@thoroughly
def test_a_stream_that_breaks_off_reads_back_as_broken(deltas: list[AnyDelta], size: int) -> None:
    count = choices_count(deltas)
    begun = [delta for delta in deltas if not isinstance(delta, Finished | Usage)]
    for dialect, encoder, expectation in ENCODERS:
        stream = encoder(Answer(ID, 1, "m", count)).encode(
            [*begun, Failed("It broke.", code="upstream_disconnected")]
        )
        reader = new_reader(count)
        found, expected = collect(read_back(stream, reader, size)), expectation(begun, dialect)
        for name in ("text", "reasoning", "refusal"):
            assert [choice[name] for choice in summaries(found, count)] == [
                choice[name] for choice in summaries(expected, count)
            ]
        assert list(documents(stream))[-1]["error"]["message"] == "It broke."
        with pytest.raises(UpstreamError):
            reader.end()
