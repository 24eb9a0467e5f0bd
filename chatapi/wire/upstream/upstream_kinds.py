"""For each type of prompt: the request to an OpenAI-compatible upstream, and the reader of its answer."""

import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from chatapi.wire.deltas import AnyDelta, Failed
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.prompts import PROMPTS, Inputs, Messages, PromptKind, Texts
from chatapi.wire.sse import Event
from chatapi.wire.upstream.chunks import ChunkReader
from chatapi.wire.upstream.openai_request import embeddings_body, upstream_body
from chatapi.wire.upstream.vectors import VectorReader


class Reader(typing.Protocol):
    """Turns one answer of an upstream into deltas, and knows when it is whole; see `ChunkReader`."""

    max_answer_bytes: int
    """The maximum size of an answer that is one document."""
    too_large: Failed
    """The failure for a larger one."""
    is_cut: bool
    has_started: bool
    is_done: bool
    failure: Failed | None

    @property
    def is_complete(self) -> bool: ...
    def read(self, events: Iterable[Event]) -> list[AnyDelta]: ...
    def read_rest(self, events: Iterable[Event]) -> list[AnyDelta]: ...
    def read_answer(self, body: bytes) -> list[AnyDelta]: ...
    def end(self) -> list[AnyDelta]: ...


def _as_json(body: Any) -> tuple[str, bytes]:
    return "application/json", msgspec.json.encode(body)


class UpstreamKind(NamedTuple):
    """How requests with one type of prompt are sent, and their answers read."""

    path: str
    """Below the upstream's base URL."""
    body: Callable[..., dict[str, Any]]
    """Returns the JSON-able body; see `upstream_body`."""
    reader: Callable[[GenerationRequest, int], Reader]
    """Returns the reader of an answer; takes the most tokens of each choice."""
    encode: Callable[[Any], tuple[str, bytes]] = _as_json
    """Returns the media type and the bytes of the body."""


def _chat_reader(request: GenerationRequest, max_output_tokens: int) -> Reader:
    return ChunkReader(
        choices=request.choices_count,
        max_chunks=max_output_tokens,
        stop_sequences=request.stop_sequences,
    )


def _text_reader(request: GenerationRequest, max_output_tokens: int) -> Reader:
    """Return a reader that cuts each choice after as many chunks as it may have tokens: a chunk has at least
    one.

    An echoed prompt comes first, in one chunk or in one for each token: in no more chunks than it has bytes.
    """
    prompt = request.prompt
    echoed = request.prompt_bytes if isinstance(prompt, Texts) and prompt.echo else 0
    return ChunkReader(
        choices=request.choices_count,
        max_chunks=max_output_tokens + echoed,
        is_text=True,
        prompts=prompt.count,
    )


# By the type of the prompt.
UPSTREAM_KINDS: Final[Mapping[type[PromptKind], UpstreamKind]] = {
    Messages: UpstreamKind(Messages.openai_path, upstream_body, _chat_reader),
    Texts: UpstreamKind(Texts.openai_path, upstream_body, _text_reader),
    Inputs: UpstreamKind(
        Inputs.openai_path, embeddings_body, lambda request, _: VectorReader(request.prompt.count)
    ),
}
assert set(UPSTREAM_KINDS) == set(PROMPTS), "a type of prompt has no row"
