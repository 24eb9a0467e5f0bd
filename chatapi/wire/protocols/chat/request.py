"""A chat request, validated: its parameters (OpenAI's API reference, "Create chat completion") and what
follows from them.
"""

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from chatapi.wire import caps, parameters
from chatapi.wire.invalid_request import Violation
from chatapi.wire.messages import AssistantMessage, ImagePart, Message, media, texts
from chatapi.wire.parameters import (
    CustomChoice,
    CustomTool,
    FunctionChoice,
    FunctionTool,
    Named,
    SharedParameters,
)

# What a chat template writes around a message, and before the answer: as OpenAI counts it, and the most that
# we have seen.
_MESSAGE_TOKENS: Final = 4
_ANSWER_TOKENS: Final = 3
_MESSAGE_TOKENS_BOUND: Final = 16
_REQUEST_TOKENS_BOUND: Final = 64
_TOOLS_TOKENS_BOUND: Final = 512
_TEMPLATE_PARAMETERS: Final = ("documents", "chat_template_kwargs")
"""Engine parameters that chat templates write into the prompt."""


class ChatRequest(SharedParameters, frozen=True, tag="chat", kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=caps.MAX_MESSAGES)]
    max_completion_tokens: parameters.OutputTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: parameters.Tools | None = None
    tool_choice: parameters.ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: parameters.Functions | None = None
    function_call: parameters.FunctionCallChoice | None = None
    response_format: parameters.ResponseFormat | None = None
    reasoning_effort: parameters.ReasoningEffort | None = None
    verbosity: parameters.Level | None = None
    modalities: parameters.Modalities | None = None
    audio: parameters.Audio | None = None
    prediction: parameters.Prediction | None = None
    metadata: parameters.Metadata | None = None
    store: bool | None = None
    service_tier: parameters.ServiceTier | None = None
    safety_identifier: parameters.SafetyIdentifier | None = None
    web_search_options: parameters.WebSearchOptions | None = None
    moderation: parameters.Moderation | None = None
    prompt_cache_key: parameters.CacheKey | None = None
    prompt_cache_options: parameters.PromptCacheOptions | None = None
    prompt_cache_retention: parameters.PromptCacheRetention | None = None

    def __post_init__(self) -> None:
        if self.top_logprobs is not None and not self.logprobs:
            raise Violation("top_logprobs", "it is only allowed when logprobs is true")
        if self.modalities and "audio" in self.modalities and self.audio is None:
            raise Violation("audio", "modalities has 'audio'", "missing_required_parameter")
        if self.tool_choice not in (None, "none", "auto"):
            self._check_tool_choice()
        if isinstance(self.function_call, Named):
            _check_name(
                "function_call", self.function_call.name, {function.name for function in self.functions or ()}
            )

    def _check_tool_choice(self) -> None:
        if self.tools is None:
            raise Violation("tool_choice", "it is only allowed when tools are specified")
        if isinstance(self.tool_choice, FunctionChoice):
            functions = {tool.function.name for tool in self.tools if isinstance(tool, FunctionTool)}
            _check_name("tool_choice", self.tool_choice.function.name, functions)
        if isinstance(self.tool_choice, CustomChoice):
            customs = {tool.custom.name for tool in self.tools if isinstance(tool, CustomTool)}
            _check_name("tool_choice", self.tool_choice.custom.name, customs)

    @property
    def choices_count(self) -> int:
        """How many choices the answer has."""
        return self.n or 1

    @property
    def sampled_count(self) -> int:
        """How many answers are generated and paid for."""
        return self.choices_count

    @property
    def max_output_tokens(self) -> int | None:
        """The client's limit for each choice."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def has_media(self) -> bool:
        """There are pictures, sounds or files, of whose tokens `prompt_bytes` knows nothing."""
        has_sound = any(isinstance(message, AssistantMessage) and message.audio for message in self.messages)
        return has_sound or next(media(self.messages), None) is not None

    @property
    def has_remote_media(self) -> bool:
        """There are pictures that the upstream would have to fetch."""
        return next(self.remote_media(), None) is not None

    def remote_media(self) -> Iterator[str]:
        """The path of each remote picture's address."""
        for path, part in media(self.messages):
            if isinstance(part, ImagePart) and part.image_url.is_remote:
                yield f"{path}.image_url.url"

    @property
    def prompt_text(self) -> str:
        """All text that becomes prompt: messages, tools and schemas, names; a part per line."""
        schemas = (self.tools, self.functions, self.response_format, self.prediction)
        parts = [text for message in self.messages for text in texts(message)]
        parts += [msgspec.json.encode(schema).decode() for schema in schemas if schema is not None]
        return "\n".join(parts)

    @property
    def prompt_overhead_tokens(self) -> int:
        """Tokens that a chat template usually adds to `prompt_text`."""
        return _MESSAGE_TOKENS * len(self.messages) + _ANSWER_TOKENS

    @property
    def prompt_bytes(self) -> int:
        """Upper bound of the prompt's tokens, media left out.

        No token is shorter than a byte; to the UTF-8 bytes of `prompt_text` come, for what templates add, 16
        for each message, 64 for the request, 512 when it has tools or functions, and what engines are told to
        write.
        """
        tools = _TOOLS_TOKENS_BOUND if self.tools or self.functions else 0
        written = sum(
            len(msgspec.json.encode(self.extras[name]))
            for name in _TEMPLATE_PARAMETERS
            if name in self.extras
        )
        return (
            len(self.prompt_text.encode())
            + _MESSAGE_TOKENS_BOUND * len(self.messages)
            + _REQUEST_TOKENS_BOUND
            + tools
            + written
        )


def _check_name(param: str, name: str, names: set[str]) -> None:
    if name not in names:
        raise Violation(param, f"there is no tool '{name}'")
