"""The body of `POST /v1/completions` (OpenAI's API reference, "Create completion")."""

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from chatapi.wire import caps, parameters, request_body
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.invalid_request import Violation
from chatapi.wire.prompts import Prompts, Texts, check_prompts
from chatapi.wire.protocols.chat.request import SharedParameters

NAME: Final = "completions"
MAX_TOKENS_DEFAULT: Final = 16


class TextRequest(SharedParameters, frozen=True, tag="text", kw_only=True):
    """The body of `POST /v1/completions`.

    `logprobs` may also be a boolean, as the llama dialect documents it; true is 1.
    """

    prompt: str | Prompts
    max_tokens: Annotated[int, Meta(ge=0, le=caps.MAX_OUTPUT_TOKENS)] | None = None
    logprobs: bool | Annotated[int, Meta(ge=0, le=5)] | None = None
    echo: bool | None = None
    suffix: parameters.Suffix | None = None
    best_of: Annotated[int, Meta(ge=0, le=20)] | None = None

    rewritten: ClassVar = frozenset({"prompt", "max_tokens", "logprobs", "echo", "suffix", "stream_options"})

    def __post_init__(self) -> None:
        if isinstance(self.prompt, list):
            check_prompts("prompt", self.prompt, caps.MAX_PROMPTS)
        n, best_of = self.n or 1, self.best_of or 0
        if 0 < best_of < n:
            raise Violation("best_of", "it may not be less than n")
        if Texts(self.prompt).count * max(best_of, n) > caps.MAX_CHOICES:
            raise Violation("n", f"prompts times choices may not be more than {caps.MAX_CHOICES}")
        if self.stream and best_of > n:
            raise Violation("best_of", "it may not be more than n when stream is true")

    def generation_request(self, *, is_ticket: bool = False) -> GenerationRequest:
        """Return the request of this body. The default of `max_tokens` is 16."""
        logprobs = None if self.logprobs is None or self.logprobs is False else int(self.logprobs)
        members = self.members(NAME, is_ticket=is_ticket) | {
            "prompt": Texts(self.prompt, self.echo, self.suffix),
            "max_tokens": MAX_TOKENS_DEFAULT if self.max_tokens is None else self.max_tokens,
            "logprobs": logprobs,
            "context": {} if logprobs is None else {"logprobs": True},
        }
        return GenerationRequest(**members)


def parse(body: bytes, default_model: str | None = None, *, is_ticket: bool = False) -> GenerationRequest:
    """Return the text request in `body`; see `protocol.Parser`."""
    sent = request_body.read(body, TextRequest, default_model)
    return sent.generation_request(is_ticket=is_ticket)
