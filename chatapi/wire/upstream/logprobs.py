"""Reads the log probabilities in an upstream's chunks, of chats and of text completions, into one form."""

from itertools import islice
from typing import Annotated

import msgspec

from chatapi.wire.deltas import TokenLogprob, TopLogprob

# OpenAI's limit of `top_logprobs`; alternatives beyond it were not requested and are left out.
MAX_ALTERNATIVES = 20
# OpenAI's own value for a very unlikely token. It also stands for the null of an echoed prompt's first token.
UNKNOWN_LOGPROB = -9999.0


class Token(msgspec.Struct, gc=False):
    """A token in the format of chats."""

    token: str
    logprob: float | None = None
    bytes: list[Annotated[int, msgspec.Meta(ge=0, le=255)]] | None = None
    top_logprobs: list["Token"] | None = None


class Logprobs(msgspec.Struct, gc=False):
    """Both formats in one: that of chats (`content`, `refusal`), and that of text completions."""

    content: list[Token] | None = None
    refusal: list[Token] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None

    def of_content(self) -> list[TokenLogprob] | None:
        """Return the log probabilities of the text."""
        return _tokens(self.content) if self.tokens is None else self._legacy(self.tokens)

    def of_refusal(self) -> list[TokenLogprob] | None:
        """Return the log probabilities of the refusal."""
        return _tokens(self.refusal)

    def _legacy(self, tokens: list[str]) -> list[TokenLogprob] | None:
        """Return a text completion's parallel lists; `text_offset` follows from the texts and is not kept."""
        missing: list[None] = [None] * len(tokens)
        values = zip(tokens, self.token_logprobs or missing, self.top_logprobs or missing, strict=False)
        return [
            TokenLogprob(
                token,
                _known(value),
                None,
                [TopLogprob(*other) for other in islice((others or {}).items(), MAX_ALTERNATIVES)],
            )
            for token, value, others in values
        ] or None


def _tokens(tokens: list[Token] | None) -> list[TokenLogprob] | None:
    if not tokens:
        return None
    return [
        TokenLogprob(token.token, _known(token.logprob), token.bytes, _alternatives(token))
        for token in tokens
    ]


def _alternatives(token: Token) -> list[TopLogprob]:
    alternatives = islice(token.top_logprobs or (), MAX_ALTERNATIVES)
    return [TopLogprob(other.token, _known(other.logprob), other.bytes) for other in alternatives]


def _known(logprob: float | None) -> float:
    return UNKNOWN_LOGPROB if logprob is None else logprob
