"""The prompts of a `GenerationRequest`: a conversation, texts to continue, or texts to embed."""

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, ClassVar, Final, Protocol, cast, get_args

import msgspec
from msgspec import Meta

from chatapi.wire import caps, parameters
from chatapi.wire.invalid_request import Violation
from chatapi.wire.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    has_cache_mark,
    media,
    optional_texts,
    texts,
)

# Tokens that a chat template adds to each message, and before the answer, as OpenAI counts them.
_MESSAGE_TOKENS: Final = 4
_ANSWER_TOKENS: Final = 3
# The most added tokens that we have seen: for a message or a tool call, for a request, for a text.
_MESSAGE_TOKENS_BOUND: Final = 16
_REQUEST_TOKENS_BOUND: Final = 64
_TEXT_TOKENS_BOUND: Final = 16

TokenId = Annotated[int, Meta(ge=0, le=caps.MAX_TOKEN_ID)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1)]
Prompts = Annotated[list[str | TokenId | TokenIds], Meta(min_length=1)]


class PromptKind(Protocol):
    """What admission, counting and upstreams need to know about a prompt of any kind."""

    __struct_encode_fields__: ClassVar[tuple[str, ...]]
    """The names of its parameters (msgspec's)."""
    openai_path: ClassVar[str]
    """The path in OpenAI's API, below an upstream's base URL."""
    operation: ClassVar[str]
    """OpenTelemetry's `gen_ai.operation.name`."""
    param: ClassVar[str]
    """The name of the parameter, for errors."""
    are_read_apart: ClassVar[bool]
    """Whether the model reads each text by itself, so that its tokens are counted by themselves."""

    @property
    def count(self) -> int:
        """The number of prompts."""

    @property
    def choices_count(self) -> int:
        """The number of choices of the answer if `n` is 1."""

    @property
    def answer_bytes(self) -> int:
        """The approximate size of the part of the answer that is collected before it is sent."""

    def texts(self) -> Iterator[str]:
        """Yield all text that the model reads."""

    @property
    def overhead_tokens(self) -> int:
        """The usual number of tokens beside those of the texts."""

    def overhead_bound(self, extras: dict[str, Any]) -> int:
        """Return the most tokens beside those of the texts, with those of the engine parameters `extras`."""

    @property
    def has_media(self) -> bool:
        """Whether there are pictures, sounds or files, whose tokens can't be counted here."""

    @property
    def has_cache_marks(self) -> bool:
        """Whether any part has a mark for Anthropic's prompt cache."""

    def remote_media(self) -> Iterator[str]:
        """Yield the path of the URL of each picture that the upstream would have to fetch."""


class Messages(msgspec.Struct, frozen=True, tag_field="kind", tag="messages"):
    """A prompt that is a conversation, which a chat template turns into tokens."""

    messages: list[Message]

    openai_path: ClassVar[str] = "/chat/completions"
    operation: ClassVar[str] = "chat"
    param: ClassVar[str] = "messages"
    count: ClassVar[int] = 1
    choices_count: ClassVar[int] = 1
    answer_bytes: ClassVar[int] = 0
    are_read_apart: ClassVar[bool] = False

    def texts(self) -> Iterator[str]:
        return (text for message in self.messages for text in texts(message))

    @property
    def overhead_tokens(self) -> int:
        return _MESSAGE_TOKENS * len(self.messages) + _ANSWER_TOKENS

    def overhead_bound(self, extras: dict[str, Any]) -> int:
        """Return the most tokens that a chat template adds, with those of the engine parameters that it reads
        and of the texts that only some deployments get or read.
        """
        read = parameters.TEMPLATE_PARAMETERS & extras.keys()
        written = (msgspec.json.encode(extras[name]) for name in read)
        optional = ("\n\n".join(optional_texts(message)).encode() for message in self.messages)
        added = sum(map(len, chain(written, optional)))
        answers = (message for message in self.messages if isinstance(message, AssistantMessage))
        count = len(self.messages) + sum(len(message.tool_calls or ()) for message in answers)
        return _MESSAGE_TOKENS_BOUND * count + _REQUEST_TOKENS_BOUND + added

    @property
    def has_media(self) -> bool:
        has_sound = any(isinstance(message, AssistantMessage) and message.audio for message in self.messages)
        return has_sound or next(media(self.messages), None) is not None

    @property
    def has_cache_marks(self) -> bool:
        return any(map(has_cache_mark, self.messages))

    def remote_media(self) -> Iterator[str]:
        for path, part in media(self.messages):
            if isinstance(part, ImagePart) and part.image_url.is_remote:
                yield f"{path}.image_url.url"


class _Prompts(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind"):
    """One text or several, or their token ids."""

    prompt: str | Prompts

    has_media: ClassVar[bool] = False
    has_cache_marks: ClassVar[bool] = False

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [cast(list[int], self.prompt)]  # parsers have checked that all are of one kind
        return cast(list[str | list[int]], self.prompt)

    @property
    def count(self) -> int:
        return len(self.prompts)

    def texts(self) -> Iterator[str]:
        return (prompt for prompt in self.prompts if isinstance(prompt, str))

    @property
    def overhead_tokens(self) -> int:
        """The number of tokens that were sent as ids."""
        return sum(len(prompt) for prompt in self.prompts if not isinstance(prompt, str))

    def overhead_bound(self, extras: dict[str, Any]) -> int:
        """Return the most tokens beside those of the texts: the ids, and those around each prompt."""
        return self.overhead_tokens + _TEXT_TOKENS_BOUND * self.count

    def remote_media(self) -> Iterator[str]:
        return iter(())


class Texts(_Prompts, frozen=True, tag="texts"):
    """Texts to continue; each gets its own choices."""

    echo: bool | None = None
    """Each choice begins with its prompt."""
    suffix: parameters.Suffix | None = None

    openai_path: ClassVar[str] = "/completions"
    operation: ClassVar[str] = "text_completion"
    param: ClassVar[str] = "prompt"
    answer_bytes: ClassVar[int] = 0
    are_read_apart: ClassVar[bool] = False

    @property
    def choices_count(self) -> int:
        """The number of choices of the answer if `n` is 1: one for each prompt."""
        return self.count

    def texts(self) -> Iterator[str]:
        yield from super().texts()
        if self.suffix:
            yield self.suffix


class Inputs(_Prompts, frozen=True, tag="inputs"):
    """Texts to embed; the answer has a vector for each, and no choices."""

    prompt: str | Prompts = msgspec.field(name="input")
    dimensions: Annotated[int, Meta(ge=1, le=caps.MAX_DIMENSIONS)] | None = None
    """The length of the vectors; None: the model's own."""

    openai_path: ClassVar[str] = "/embeddings"
    operation: ClassVar[str] = "embeddings"
    param: ClassVar[str] = "input"
    choices_count: ClassVar[int] = 0
    are_read_apart: ClassVar[bool] = True

    @property
    def answer_bytes(self) -> int:
        """The approximate size of the vectors."""
        return self.count * (self.dimensions or caps.USUAL_DIMENSIONS) * 4


Prompt = Messages | Texts | Inputs
PROMPTS: Final[tuple[type[PromptKind], ...]] = get_args(Prompt)


def check_prompts(param: str, prompts: Prompts, most: int) -> None:
    """Raise `Violation` for prompts of several kinds, or for more than `most` of them."""
    kinds = {type(prompt) for prompt in prompts}
    if len(kinds) > 1:
        raise Violation(param, "expected only strings, only token ids, or only arrays of token ids")
    if kinds != {int} and len(prompts) > most:
        raise Violation(param, f"expected at most {most} {param}s")
