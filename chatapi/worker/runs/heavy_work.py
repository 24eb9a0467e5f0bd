"""Runs work that would block the event loop in one thread, one piece at a time.

Large requests wait here, so that they do not take processor and interpreter from running streams. Long work
is done in pieces, so that organizations take turns. tiktoken releases the interpreter's lock while it works.
msgspec does not, so no two of its calls run at once.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from itertools import chain
from typing import ParamSpec, TypeVar

from chatapi.fair_room import FairRoom
from chatapi.wire import tokens
from chatapi.wire.deltas import AnyDelta, Text
from chatapi.wire.generation_request import GenerationRequest
from chatapi.worker.runs.run_usage import RunUsage

# JSON up to this length is read or written on the event loop: 1 ms at most.
LIGHT_BYTES = 16 << 10
# Text up to this length is counted on the event loop: 2 ms at most.
LIGHT_CHARS = 2 << 10
LIGHT_DELTAS = 128
MAX_DELTA_CHARS = 16 << 10
# The most text of an answer that is not counted yet.
MAX_UNENCODED_CHARS = 32 << 10
# The text counted in one piece: 10 to 60 ms, while the event loop runs.
PIECE_CHARS = 64 << 10

_thread = ThreadPoolExecutor(1, thread_name_prefix="heavy-work")
_turns = FairRoom(1, 1)
# The organization for which this task works.
party: ContextVar[int] = ContextVar("party", default=0)

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `work` in the thread when this task's organization has its turn; return its result.

    A cancelled caller still waits for a call that has begun: the call may change the caller's objects.
    """
    turn = await _turns.acquire(party.get())
    awaited = None
    try:
        awaited = asyncio.wrap_future(_thread.submit(work, *args, **kwargs))
        try:
            return await asyncio.shield(awaited)
        except asyncio.CancelledError:
            await asyncio.wait([awaited])
            awaited.exception()  # mark it as seen: the cancellation is raised
            raise
    finally:
        turn.release()
        # The call's exception refers to this frame. If the frame kept the future, which holds the exception,
        # the three would be a reference cycle, and a large request would stay in memory until the garbage
        # collector runs.
        del awaited


async def count(texts: Sequence[str], enough_tokens: float = math.inf) -> int:
    """Return the number of tokens; beyond `enough_tokens` the rest is not counted."""
    if sum(map(len, texts)) <= LIGHT_CHARS:
        return _tokens(texts)
    counted = 0
    for piece in _pieces(texts):
        counted += await in_thread(_tokens, piece)
        if counted > enough_tokens:
            break
    return counted


def _tokens(texts: Sequence[str]) -> int:
    return sum(map(tokens.count, texts))


def _pieces(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield the texts in groups of about `PIECE_CHARS`; a long text is cut."""
    piece: list[str] = []
    chars = 0
    for part in chain.from_iterable(tokens.parts(text, PIECE_CHARS) for text in texts):
        piece.append(part)
        chars += len(part)
        if chars >= PIECE_CHARS:
            yield piece
            piece, chars = [], 0
    yield piece


async def count_prompt(
    request: GenerationRequest, request_bytes: int, enough_tokens: float = math.inf
) -> int:
    """Return our own count of the prompt's tokens; beyond `enough_tokens` the rest is not counted.

    `request_bytes` is the length of the request's JSON.
    """
    is_light = request_bytes <= LIGHT_BYTES
    texts = request.counted_texts if is_light else await in_thread(lambda: request.counted_texts)
    return await count(texts, enough_tokens) + request.prompt.overhead_tokens


async def estimate_prompt(request: GenerationRequest, request_bytes: int) -> int:
    """Return an estimate of the prompt's tokens, in bounded time; see `tokens.estimate`."""
    if request_bytes <= LIGHT_CHARS:
        return request.prompt_tokens_estimate
    return await in_thread(lambda: request.prompt_tokens_estimate)


async def add(
    usage: RunUsage, batch: Sequence[AnyDelta], publish: Callable[[list[AnyDelta]], object]
) -> None:
    """Count a batch that is not light, and publish it.

    Large deltas are cut, because a reader decodes each in one step. What is counted is published even if the
    caller is cancelled meanwhile.
    """
    passing: list[AnyDelta] = []
    try:
        await in_thread(
            lambda: passing.extend(
                usage.add([part for delta in batch for part in delta.cut(MAX_DELTA_CHARS)])
            )
        )
        if usage.unencoded_chars > MAX_UNENCODED_CHARS:
            usage.unencoded_chars = 0
            for counter in usage.counters:
                if counter.uncounted_chars > LIGHT_CHARS:
                    await in_thread(counter.encode_pieces)
    finally:
        publish(passing)


async def count_all(usage: RunUsage) -> None:
    """Count all text that is not counted yet, so that reading the tokens is quick."""
    counters = usage.counters
    if sum(counter.uncounted_chars for counter in counters) > LIGHT_CHARS:
        for counter in counters:
            await in_thread(getattr, counter, "tokens")


def is_light(usage: RunUsage, batch: Sequence[AnyDelta]) -> bool:
    """Return whether these deltas can be added on the event loop: they and the uncounted text are short."""
    if len(batch) > LIGHT_DELTAS or usage.unencoded_chars > MAX_UNENCODED_CHARS:
        return False
    # Nearly every delta is text, whose attribute is cheaper than the property of all.
    texts = [delta.text if type(delta) is Text else delta.counted_text or "" for delta in batch]
    return sum(map(len, texts)) <= LIGHT_CHARS
