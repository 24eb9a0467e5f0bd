"""Text completions: OpenAI's `text_completion` objects (OpenAI's API reference, "Completions").

A chunk holds a piece of a choice's text; the last one of a choice has an empty text and the finish_reason.
Chunks have only text: no role, no tool calls, no reasoning (wire/README.md says what becomes of them). The
dialect's style decides how a stream ends.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from chatapi.wire.completion import Choice, Completion, Logprobs
from chatapi.wire.deltas import (
    AnyDelta,
    Failed,
    Finished,
    FinishReason,
    Refusal,
    Started,
    Text,
    TokenLogprob,
    Usage,
)
from chatapi.wire.protocols.chat.encoder import ChatEncoder
from chatapi.wire.protocols.chat.style import OPENAI, Style, to_json
from chatapi.wire.protocols.protocol import Answer
from chatapi.wire.upstream.logprobs import UNKNOWN_LOGPROB

# How many tokens in a row may be parts of one character.
_CHARACTER_TOKENS = 8


class LogprobLists:
    """Log probabilities as JSON, in the four lists of text completions: decoded, they would take ten times
    the memory.
    """

    def __init__(self) -> None:
        self._lists: defaultdict[str, bytearray] = defaultdict(bytearray)

    def add(self, logprobs: Sequence[TokenLogprob], text: str, start: int) -> None:
        """Add the log probabilities of a piece of the choice; see `completion.Logprobs`."""
        if logprobs:
            for name, values in _legacy_logprobs(text, logprobs, start).items():
                self._lists[name] += to_json(values)[1:-1] + b","

    @staticmethod
    def body(*parts: "LogprobLists | None") -> dict[str, msgspec.Raw] | None:
        """Return the lists of all parts together; None if there is no token."""
        joined: defaultdict[str, bytearray] = defaultdict(bytearray)
        for part in filter(None, parts):
            for name, values in part._lists.items():
                joined[name] += values
        return {name: msgspec.Raw(b"[" + values[:-1] + b"]") for name, values in joined.items()} or None


class TextEncoder(ChatEncoder):
    """One text completion. Bitseek's documents have none: in its dialect, ids, ends and failures are those of
    chats.
    """

    id_prefix: ClassVar[str] = "cmpl-"
    chunk_object: ClassVar[str] = "text_completion"
    body_object: ClassVar[str] = "text_completion"
    new_logprobs: ClassVar[type[Logprobs]] = LogprobLists
    # All other content is left out.
    writers: ClassVar[Mapping[type[AnyDelta], str]] = {
        **dict.fromkeys(ChatEncoder.writers, "_nothing"),
        **{kind: ChatEncoder.writers[kind] for kind in (Started, Text, Finished, Usage, Failed)},
        Refusal: "_text",
    }

    def __init__(self, answer: Answer, style: Style = OPENAI) -> None:
        super().__init__(answer, style)
        self._text_lengths = [0] * answer.choices_count
        # The `logprobs` of a piece or of a choice without a token.
        self._no_logprobs = b"null"

    def _started(self, delta: Started) -> bytes:
        self._read_context(delta.context)
        return super()._started(delta)

    def body(self, completion: Completion) -> bytes:
        """Return the whole answer as one JSON object; `completion.usage` must be set."""
        self._read_context(completion.context)
        return super().body(completion)

    def _read_context(self, context: Mapping[str, Any]) -> None:
        # The llama server's document: if log probabilities are requested, each chunk has the lists.
        if "logprobs" in context:
            self._no_logprobs = to_json(_legacy_logprobs("", (), 0))

    def _announcement(self, index: int) -> bytes:
        """Return a choice's first chunk; without a role, a single choice needs none."""
        return self._empty_piece(index, self._tail) if self.answer.choices_count > 1 else b""

    def _text(self, delta: Text | Refusal) -> bytes:
        index = delta.index
        start = self._text_lengths[index]
        self._text_lengths[index] = start + len(delta.text)
        logprobs = self._no_logprobs
        if delta.logprobs is not None:
            logprobs = to_json(_legacy_logprobs(delta.text, delta.logprobs, start))
        return b'%s{"text":%s,"index":%d,"logprobs":%s,%s' % (
            self._head,
            to_json(delta.text),
            index,
            logprobs,
            self._tail,
        )

    def _nothing(self, delta: AnyDelta) -> bytes:
        return b""

    def _finish_chunk(self, delta: Finished) -> bytes:
        return self._empty_piece(delta.index, self._finish_tail(self._word_for(delta.finish_reason)))

    def _empty_piece(self, index: int, tail: bytes) -> bytes:
        return b'%s{"text":"","index":%d,"logprobs":%s,%s' % (self._head, index, self._no_logprobs, tail)

    def _word_for(self, finish_reason: FinishReason) -> FinishReason:
        word = super()._word_for(finish_reason)
        return "stop" if word in ("tool_calls", "function_call") else word

    def _choice_body(self, choice: Choice) -> dict[str, Any]:
        text = (choice.text or "") + (choice.refusal or "")
        logprobs = LogprobLists.body(choice.logprobs, choice.refusal_logprobs)
        shown = logprobs or msgspec.Raw(self._no_logprobs)
        finish_reason = choice.finish_reason and self._word_for(choice.finish_reason)
        return {"text": text, "index": choice.index, "logprobs": shown, "finish_reason": finish_reason}


def _legacy_logprobs(text: str, tokens: Sequence[TokenLogprob], start: int) -> dict[str, Any]:
    """Return the tokens of a text that begins at character `start` of its choice, as four lists of equal
    length.
    """
    return {
        "tokens": [token.token for token in tokens],
        "text_offset": [start + offset for offset in _offsets(text, tokens)],
        "token_logprobs": [None if _is_unknown(token) else token.logprob for token in tokens],
        "top_logprobs": [None if _is_unknown(token) else _alternatives(token) for token in tokens],
    }


def _is_unknown(token: TokenLogprob) -> bool:
    """Return whether the token has no probability: it is the first one of an echoed prompt."""
    return token.logprob == UNKNOWN_LOGPROB and not token.top_logprobs


def _offsets(text: str, tokens: Sequence[TokenLogprob]) -> Iterator[int]:
    r"""Yield where in the text each token begins, in characters.

    Tokens may be parts of a character, shown as U+FFFD or `bytes:\xf0`. They have the place of their
    character, and the search for the next token that is text begins there.
    """
    position = 0
    for token in tokens:
        found = text.find(token.token, position, position + len(token.token) + _CHARACTER_TOKENS)
        yield found if found >= 0 else position
        if found >= 0:
            position = found + len(token.token)


def _alternatives(token: TokenLogprob) -> dict[str, float]:
    """Return the alternatives by text. Of those with equal texts (parts of characters), return the likeliest,
    which comes first.
    """
    alternatives: dict[str, float] = {}
    for other in token.top_logprobs:
        alternatives.setdefault(other.token, other.logprob)
    return alternatives
