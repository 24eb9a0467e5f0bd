"""Reads an upstream's usage, which may come anywhere in its stream and in several pieces, into one `Usage`.

    OpenAI, vLLM                       once, in a chunk without choices, when every choice has ended
    vLLM with continuous_usage_stats   in every chunk, of that chunk's choice; the whole at the end as above
    others                             with the last finish_reason, or as a running total with every chunk, or
                                       twice
    llama-server with n > 1            for each choice by itself: chats in a chunk without choices after the
                                       one that ends the choice, text completions in the chunk that ends it;
                                       never the whole

llama-server reads the prompt once and copies its state for each choice, but counts the prompt's tokens with
each. So when usages are added up, each prompt of a request counts once, as with OpenAI.

The kinds of input have several names; the first one that is present counts:

    read from the cache      cached_tokens (OpenAI and vLLM in prompt_tokens_details, Kimi beside them),
                             prompt_cache_hit_tokens (DeepSeek), cache_read_input_tokens (Anthropic)
    written to it            cache_write_tokens (OpenAI), created_cache_tokens (vLLM), cache_creation_tokens
                             (LiteLLM), cache_creation_input_tokens (Anthropic), or the sum of the next two
    written for 5 min, 1 h   ephemeral_5m_input_tokens, ephemeral_1h_input_tokens (Anthropic, LiteLLM)

`completion_tokens` includes reasoning, except from xAI, Gemini and some gateways of Gemini. There,
`total_tokens` exceeds prompt plus completion by the reasoning; Gemini's own API reports reasoning in no other
way.

`prompt_tokens` includes all kinds. Anthropic's `input_tokens`, which some gateways pass on in its place, is
the uncached input only.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, get_args

import msgspec

from chatapi.wire.deltas import (
    Annotations,
    AnyDelta,
    Audio,
    Failed,
    Finished,
    Reasoning,
    Refusal,
    Started,
    Text,
    ToolCall,
    Usage,
    Vector,
)

# Tokens of a choice that no chunk shows: the one that ends the text.
HIDDEN_TOKENS = 1
# No context window is larger.
_MAX_TOKENS = 2**31 - 1
_WITH_TOKENS = (Text, Refusal, Reasoning, ToolCall, Audio, Vector)
_WITHOUT_TOKENS = (Started, Annotations, Finished, Usage, Failed)
assert {*_WITH_TOKENS, *_WITHOUT_TOKENS} == set(get_args(AnyDelta)), "a delta has tokens or has none"


class _CacheWrites(msgspec.Struct, gc=False):
    ephemeral_5m_input_tokens: int | None = None
    ephemeral_1h_input_tokens: int | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    created_cache_tokens: int | None = None
    cache_creation_tokens: int | None = None
    cache_creation_token_details: _CacheWrites | None = None


class _CompletionDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class SentUsage(msgspec.Struct, gc=False):
    """A usage object of an upstream, as far as it counts here."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: Any = None
    """Of any type: a wrong one must not spoil the other numbers."""
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    cached_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation: _CacheWrites | None = None

    def value(self) -> Usage | None:
        """Return the usage; None if a number is missing or negative. Zeros are kept; large numbers, too: the
        settlement checks them.
        """
        details = self.prompt_tokens_details or _PromptDetails()
        cached = _first(
            details.cached_tokens,
            self.cached_tokens,
            self.prompt_cache_hit_tokens,
            self.cache_read_input_tokens,
        )
        written, for_1h = self._written(details)
        prompt, completion = self.prompt_tokens, _first(self.completion_tokens, self.output_tokens)
        if prompt is None and self.input_tokens is not None and self.input_tokens >= 0:
            prompt = self.input_tokens + max(0, cached or 0) + max(0, written or 0)
        if prompt is None or completion is None or prompt < 0 or completion < 0:
            return None
        # If not, `prompt_tokens` excludes the cached part, which `total_tokens` includes.
        is_whole_prompt = max(0, cached or 0) + max(0, written or 0) <= prompt
        cached = _at_most(prompt, cached)
        written = _at_most(prompt - (cached or 0), written)
        reasoning = (
            self.completion_tokens_details.reasoning_tokens if self.completion_tokens_details else None
        )
        apart = self.total_tokens - prompt - completion if isinstance(self.total_tokens, int) else 0
        if apart > 0 and (reasoning == apart or (reasoning is None and is_whole_prompt)):
            completion, reasoning = completion + apart, apart
        return Usage(
            prompt,
            completion,
            cached,
            _at_most(completion, reasoning),
            cache_write_tokens=written,
            cache_write_1h_tokens=None if written is None else _at_most(written, for_1h),
        )

    def of_prompt(self) -> Usage | None:
        """Return the prompt's figures; None if they are missing, zero (the prompt has not been read yet), or
        too large for any context window.
        """
        of_answer = {"completion_tokens": 0, "completion_tokens_details": None, "total_tokens": None}
        found = msgspec.structs.replace(self, **of_answer).value()
        return found if found is not None and 0 < found.prompt_tokens <= _MAX_TOKENS else None

    def _written(self, details: _PromptDetails) -> tuple[int | None, int | None]:
        """Return the tokens written to the cache, and the part of them that it keeps for an hour."""
        by_time = self.cache_creation or details.cache_creation_token_details or _CacheWrites()
        for_1h = by_time.ephemeral_1h_input_tokens
        written = _first(
            details.cache_write_tokens,
            details.created_cache_tokens,
            details.cache_creation_tokens,
            self.cache_creation_input_tokens,
            _sum([by_time.ephemeral_5m_input_tokens, for_1h]),
        )
        return written, for_1h


class UsageReader:
    """Reads the usages of one stream into one."""

    def __init__(self, *, choices_per_prompt: int) -> None:
        self._choices_per_prompt = choices_per_prompt
        self._latest: Usage | None = None
        # Usages by the choice that had just ended when they came.
        self._pieces: dict[int, Usage] = {}
        # The choice that the last chunk ended, until a usage has come for it.
        self._just_ended: int | None = None
        # Whether the latest usage counts all choices: it came without choices, and not right after one ended.
        self._is_whole = False
        self.said = 0
        """The number of chunks with content; each has at least one token. For a chunk that is only text, the
        caller adds 1 here instead of calling `read`, which would cost as much as the text itself.
        """
        self._seen = 0
        # Whether every usage so far could be a running total of all choices: its completion tokens match the
        # number of chunks.
        self._fits_sum_so_far = True

    def read(self, sent: SentUsage | None, said: Sequence[AnyDelta], *, has_choices: bool) -> None:
        """Read a chunk: its usage, and the deltas that were made of it."""
        self._forget_early()
        ended = [delta.index for delta in said if isinstance(delta, Finished)]
        has_content = len(ended) < len(said) and any(isinstance(delta, _WITH_TOKENS) for delta in said)
        self.said += has_content
        self._seen = self.said
        usage = sent.value() if sent is not None else None
        if usage is not None:
            self._take(usage, ended, has_choices=has_choices)
        else:
            if has_choices:
                self._just_ended = ended[0] if len(ended) == 1 else None
            if has_content:
                self._latest = None  # it does not count the content that came after it

    def whole(self, choices: int) -> Usage | None:
        """Return the usage of all choices, once all have ended; None if it is not known."""
        self._forget_early()
        is_in_pieces = choices > 1 and len(self._pieces) == choices and not self._is_whole
        return self._added() if is_in_pieces and not self._fits_sum_so_far else self._latest

    def _forget_early(self) -> None:
        """Forget a usage that came before further text: it does not count that text."""
        if self.said > self._seen:
            self._just_ended = self._latest = None

    def _take(self, usage: Usage, ended: list[int], *, has_choices: bool) -> None:
        index = (ended[0] if len(ended) == 1 else None) if has_choices else self._just_ended
        previous, self._latest = self._latest, usage
        self._just_ended = None
        self._is_whole = index is None and not has_choices
        if index is None:
            return
        self._pieces[index] = usage
        most = self.said + HIDDEN_TOKENS * len(self._pieces)
        grows = previous is None or usage.completion_tokens >= previous.completion_tokens
        self._fits_sum_so_far &= grows and self.said <= usage.completion_tokens <= most

    def _added(self) -> Usage:
        by_prompt: defaultdict[int, list[Usage]] = defaultdict(list)
        for index, piece in self._pieces.items():
            by_prompt[index // self._choices_per_prompt].append(piece)
        # All choices of a prompt began with the same state, so the largest figures hold for each.
        prompts = [
            max(pieces, key=lambda piece: (piece.prompt_tokens, piece.cached_tokens or 0))
            for pieces in by_prompt.values()
        ]
        return Usage(
            sum(prompt.prompt_tokens for prompt in prompts),
            sum(piece.completion_tokens for piece in self._pieces.values()),
            _sum([prompt.cached_tokens for prompt in prompts]),
            _sum([piece.reasoning_tokens for piece in self._pieces.values()]),
            is_added=True,
            cache_write_tokens=_sum([prompt.cache_write_tokens for prompt in prompts]),
            cache_write_1h_tokens=_sum([prompt.cache_write_1h_tokens for prompt in prompts]),
        )


def _first(*counts: int | None) -> int | None:
    """Return the first count that is not None."""
    return next((count for count in counts if count is not None), None)


def _sum(parts: list[int | None]) -> int | None:
    """Return None if no part is known; an unknown part counts as 0."""
    return None if all(part is None for part in parts) else sum(part or 0 for part in parts)


def _at_most(whole: int, part: int | None) -> int | None:
    """Return the part, or None if it can't be a part of the whole."""
    return part if part is not None and 0 <= part <= whole else None
