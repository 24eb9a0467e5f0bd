"""A text request, validated: its parameters (OpenAI's API reference, "Create completion") and what follows
from them.
"""

from typing import Annotated, Final, cast

from msgspec import Meta

from chatapi.wire import caps, parameters
from chatapi.wire.invalid_request import Violation
from chatapi.wire.parameters import SharedParameters

MAX_TOKENS_DEFAULT: Final = 16

_PROMPT_TOKENS_BOUND: Final = 16

TokenId = Annotated[int, Meta(ge=0, le=caps.MAX_TOKEN_ID)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1)]
Prompts = Annotated[list[str | TokenId | TokenIds], Meta(min_length=1)]


class TextRequest(SharedParameters, frozen=True, tag="text", kw_only=True):
    """The body of `POST /v1/completions`.

    `logprobs` also takes a boolean, as the llama dialect documents it; true is 1.
    """

    prompt: str | Prompts | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=caps.MAX_OUTPUT_TOKENS)] | None = None
    logprobs: bool | Annotated[int, Meta(ge=0, le=5)] | None = None
    echo: bool | None = None
    suffix: parameters.Suffix | None = None
    best_of: Annotated[int, Meta(ge=0, le=20)] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.prompt, list):
            _check_prompts(self.prompt)
        if self.best_of and self.best_of < (self.n or 1):
            raise Violation("best_of", "it may not be less than n")
        if self.sampled_count > caps.MAX_CHOICES:
            raise Violation("n", f"prompts times choices may not be more than {caps.MAX_CHOICES}")
        if self.stream and not self.can_stream:
            raise Violation("best_of", "it may not be more than n when stream is true")

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or token ids; one empty text when the client sent none."""
        if self.prompt is None or isinstance(self.prompt, str):
            return [self.prompt or ""]
        if isinstance(self.prompt[0], int):
            return [cast(list[int], self.prompt)]  # all of one kind: `_check_prompts`
        return cast(list[str | list[int]], self.prompt)

    @property
    def choices_count(self) -> int:
        """How many choices the answer has: `n` for each prompt."""
        return len(self.prompts) * (self.n or 1)

    @property
    def sampled_count(self) -> int:
        """How many answers are generated and paid for: `best_of` for each prompt, of which `n` are returned."""
        return len(self.prompts) * max(self.best_of or 1, self.n or 1)

    @property
    def can_stream(self) -> bool:
        """False when only some of the answers are shown: which ones is known at the end."""
        return (self.best_of or 1) <= (self.n or 1)

    @property
    def max_output_tokens(self) -> int | None:
        """The limit for each choice; may be 0, when a client only wants its prompt's `logprobs`."""
        return MAX_TOKENS_DEFAULT if self.max_tokens is None else self.max_tokens

    @property
    def logprobs_count(self) -> int | None:
        """How many alternatives of each token the client wants; None when it wants no log probabilities."""
        return int(self.logprobs) if self.logprobs is not None and self.logprobs is not False else None

    @property
    def has_media(self) -> bool:
        """Never: text has no media."""
        return False

    @property
    def has_remote_media(self) -> bool:
        """Never: text has no media."""
        return False

    def remote_media(self) -> tuple[str, ...]:
        """None: text has no media."""
        return ()

    @property
    def prompt_text(self) -> str:
        """The prompts that are text, and the suffix; one per line."""
        return "\n".join(
            [prompt for prompt in self.prompts if isinstance(prompt, str)]
            + ([self.suffix] if self.suffix else [])
        )

    @property
    def prompt_overhead_tokens(self) -> int:
        """Tokens beside `prompt_text`: those that were sent as ids."""
        return sum(len(prompt) for prompt in self.prompts if not isinstance(prompt, str))

    @property
    def prompt_bytes(self) -> int:
        """Upper bound of the prompts' tokens: a byte or an id each, and 16 for what begins and ends each
        prompt.
        """
        bound = len(self.prompt_text.encode()) + self.prompt_overhead_tokens
        return bound + _PROMPT_TOKENS_BOUND * len(self.prompts)


def _check_prompts(prompts: Prompts) -> None:
    kinds = {type(prompt) for prompt in prompts}
    if len(kinds) > 1:
        raise Violation("prompt", "expected only strings, only token ids, or only arrays of token ids")
    if kinds != {int} and len(prompts) > caps.MAX_PROMPTS:
        raise Violation("prompt", f"expected at most {caps.MAX_PROMPTS} prompts")
