"""The names of benchmark models, which set the scripted upstream's behaviour, and the text of its answers.

A name is a row of labelled numbers joined by hyphens, in any order; only `tok` is required:

    tok64       64 tokens                         -b16    16 tokens per write (default 1)
    -d20        20 ms between two tokens (0)      -x10    drop the connection after 10 tokens
    -f300       first token after 300 ms (d)      -e429   answer with this HTTP status instead
    -p9000      report a prompt of 9,000 tokens (7)
"""

import re
import string
from dataclasses import dataclass
from functools import cached_property

PROMPT_TOKENS = 7
"""The prompt's tokens that the upstream reports unless the model's name says otherwise."""

LETTERS = string.ascii_lowercase
"""Every token of an answer starts with the letter that its prompt ends with, so text that reached another
client is noticed.
"""

LABELS = {
    "tok": "tokens",
    "d": "delay_ms",
    "f": "first_token_ms",
    "b": "tokens_per_write",
    "x": "drop_after_tokens",
    "e": "error_status",
    "p": "prompt_tokens",
}


@dataclass(frozen=True)
class Behaviour:
    """A parsed model name."""

    tokens: int
    delay_ms: int = 0
    first_token_ms: int | None = None
    tokens_per_write: int = 1
    drop_after_tokens: int | None = None
    error_status: int | None = None
    prompt_tokens: int = PROMPT_TOKENS

    @classmethod
    def parse(cls, model: str) -> "Behaviour":
        """Parse a model name; raises ValueError for any other name."""
        numbers = {}
        for part in model.split("-"):
            match = re.fullmatch(r"([a-z]+)(\d{1,6})", part)
            if match is None or match[1] not in LABELS:
                raise ValueError(f"{model!r} is not a benchmark model: {part!r} is not understood")
            numbers[LABELS[match[1]]] = int(match[2])
        if not numbers.get("tokens") or numbers.get("tokens_per_write") == 0:
            raise ValueError(f"{model!r} is not a benchmark model: it needs tokens to write")
        return cls(**numbers)

    @cached_property
    def first_ms(self) -> int:
        """The milliseconds from the request to the first token."""
        return self.delay_ms if self.first_token_ms is None else self.first_token_ms


def answer_tokens(letter: str, count: int) -> list[str]:
    """Return the tokens of an answer, of about a real token's length: `w0`, ` w1`, ` w2`, ..."""
    return [f"{' ' if position else ''}{letter}{position}" for position in range(count)]
