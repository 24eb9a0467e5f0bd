"""The body of `POST /v1/chat/completions` (OpenAI's API reference, "Create chat completion")."""

from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta

from chatapi.wire import caps, parameters, request_body
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.invalid_request import Violation
from chatapi.wire.messages import Message
from chatapi.wire.parameters import Named, ToolByName
from chatapi.wire.prompts import Messages

NAME: Final = "chat.completions"


class StreamOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The members of a stream beside its deltas."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class SharedParameters(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="request"):
    """The parameters of chat and text completions. Do not reorder them: the digest hashes them in order."""

    model: parameters.ModelName
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: parameters.OutputTokens | None = None
    n: parameters.ChoicesCount | None = None
    temperature: parameters.Temperature | None = None
    top_p: parameters.Probability | None = None
    frequency_penalty: parameters.Penalty | None = None
    presence_penalty: parameters.Penalty | None = None
    logit_bias: parameters.LogitBias | None = None
    seed: parameters.Seed | None = None
    stop: parameters.Stop | None = None
    user: parameters.User | None = None
    models: parameters.Fallbacks | None = None

    extras: dict[str, Any] = {}
    ignored: tuple[str, ...] = ()

    without_effect: ClassVar = frozenset({"stream_options.include_obfuscation"})

    def members(self, protocol: str, *, is_ticket: bool = False) -> dict[str, Any]:
        """Return the members of a `GenerationRequest` with the same names, about streams, and its digest."""
        asked = msgspec.structs.replace(self, stream=True) if is_ticket else self
        members = request_body.same_members(asked)
        if (options := self.stream_options) is not None:
            members["include_usage"] = options.include_usage is True
            members["idle_parameters"] = () if asked.stream else ("stream_options",)
        return members | {"digest": request_body.digest(protocol, asked)}


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

    rewritten: ClassVar = frozenset({"messages", "stream_options"})

    def __post_init__(self) -> None:
        if self.top_logprobs is not None and not self.logprobs:
            raise Violation("top_logprobs", "it is only allowed when logprobs is true")
        if self.modalities and "audio" in self.modalities and self.audio is None:
            allowed = "it is required because modalities has 'audio'"
            raise Violation("audio", allowed, "missing_required_parameter")
        if self.tool_choice not in (None, "none", "auto"):
            self._check_tool_choice()
        if isinstance(self.function_call, Named):
            functions = {Named(function.name) for function in self.functions or ()}
            _check_known("function_call", self.function_call, functions)

    def _check_tool_choice(self) -> None:
        if self.tools is None:
            raise Violation("tool_choice", "it is only allowed when tools are specified")
        if isinstance(self.tool_choice, ToolByName):
            _check_known("tool_choice", self.tool_choice, {tool.choice for tool in self.tools})

    def generation_request(self, *, is_ticket: bool = False) -> GenerationRequest:
        """Return the request of this body."""
        members = self.members(NAME, is_ticket=is_ticket)
        for name in members.keys() & {"tools", "functions"}:
            members[name] = msgspec.Raw(msgspec.json.encode(members[name]))
        return GenerationRequest(prompt=Messages(self.messages), **members)


def parse(body: bytes, default_model: str | None = None, *, is_ticket: bool = False) -> GenerationRequest:
    """Return the chat request in `body`; see `protocol.Parser`."""
    sent = request_body.read(body, ChatRequest, default_model)
    return sent.generation_request(is_ticket=is_ticket)


def _check_known(param: str, choice: ToolByName | Named, known: Collection[object]) -> None:
    if choice not in known:
        raise Violation(param, f"there is no tool '{choice.name}'")
