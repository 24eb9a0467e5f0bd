"""Request JSON in, a validated `ChatRequest` or `TextRequest` out, or `InvalidRequest` naming the parameter.

Parameters are OpenAI's (API reference, "Create chat completion" and "Create completion"), types are strict ("5" is not 5, true is
not 1, 1.0 is no integer), `null` is the same as absent, caps are in caps.py. What is not OpenAI's goes one of two ways: a known
parameter of an engine is kept in `extras` for deployments that ask for it; anything else is dropped and named in `ignored`.

Rules that belong to a dialect or to a served model are the caller's: `stream_options` without `stream` is accepted here (OpenAI
refuses it, OpenToken's document says that the field is ignored; `has_stream_options` tells), and so is any `max_tokens`.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, TypeVar, cast

import msgspec
from msgspec import Meta

from chatapi.wire import caps, json_guard, parameters
from chatapi.wire.invalid_request import InvalidRequest, Violation, explain
from chatapi.wire.messages import ImagePart, Message, media, texts
from chatapi.wire.parameters import ENGINE_PARAMETERS, CustomChoice, FunctionChoice, FunctionTool, Named

__all__ = ["ENGINE_PARAMETERS", "ChatRequest", "InvalidRequest", "TextRequest"]
__all__ += ["from_bytes", "ignored_parameters", "parse_chat", "parse_text", "to_bytes", "upstream_body"]

TEXT_MAX_TOKENS_DEFAULT: Final = 16

# What a chat template writes around a message, and before the answer: as OpenAI counts it, and the most that we have seen.
_MESSAGE_TOKENS, _ANSWER_TOKENS = 4, 3
_MESSAGE_TOKENS_BOUND, _REQUEST_TOKENS_BOUND, _TOOLS_TOKENS_BOUND = 16, 64, 512

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.\-\[\]]")
_OWN_FIELDS = ("request", "extras", "ignored")  # ours, not the client's

TokenId = Annotated[int, Meta(ge=0, le=caps.MAX_TOKEN_ID)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1)]
Prompts = Annotated[list[str | TokenId | TokenIds], Meta(min_length=1)]


class _Request(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="request"):
    """What both kinds of request have in common."""

    model: parameters.ModelName
    stream: bool = False
    stream_options: parameters.StreamOptions | None = None
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

    extras: dict[str, Any] = {}
    """Parameters of engines (`ENGINE_PARAMETERS`), as the client sent them: for deployments that ask for them, never acted on."""
    ignored: tuple[str, ...] = ()
    """Names of the parameters that no deployment can receive."""

    @property
    def has_stream_options(self) -> bool:
        """The client sent `stream_options`, whatever is in it."""
        return self.stream_options is not None

    @property
    def include_usage(self) -> bool:
        """The client asks for a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage is True

    @property
    def stop_sequences(self) -> tuple[str, ...]:
        """`stop`, however it was written."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class ChatRequest(_Request, frozen=True, tag="chat", kw_only=True):
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
            _check_name("function_call", self.function_call.name, {function.name for function in self.functions or ()})

    def _check_tool_choice(self) -> None:
        if self.tools is None:
            raise Violation("tool_choice", "it is only allowed when tools are specified")
        if isinstance(self.tool_choice, FunctionChoice):
            functions = {tool.function.name for tool in self.tools if isinstance(tool, FunctionTool)}
            _check_name("tool_choice", self.tool_choice.function.name, functions)
        if isinstance(self.tool_choice, CustomChoice):
            customs = {tool.custom.name for tool in self.tools if not isinstance(tool, FunctionTool)}
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
        """There are pictures, sounds or files, of which `prompt_bytes` knows nothing."""
        return next(media(self.messages), None) is not None

    @property
    def has_remote_media(self) -> bool:
        """There are pictures that the upstream would have to fetch."""
        return next(_remote_urls(self), None) is not None

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

        No token is shorter than a byte; to the UTF-8 bytes of `prompt_text` come, for what templates add, 16 for each message, 64
        for the request and 512 when it has tools or functions.
        """
        tools = _TOOLS_TOKENS_BOUND if self.tools or self.functions else 0
        return len(self.prompt_text.encode()) + _MESSAGE_TOKENS_BOUND * len(self.messages) + _REQUEST_TOKENS_BOUND + tools


class TextRequest(_Request, frozen=True, tag="text", kw_only=True):
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
    def max_output_tokens(self) -> int | None:
        """The limit for each choice; may be 0, when a client only wants its prompt's `logprobs`."""
        return TEXT_MAX_TOKENS_DEFAULT if self.max_tokens is None else self.max_tokens

    @property
    def logprobs_count(self) -> int | None:
        """How many alternatives of each token the client wants; None when it wants no log probabilities."""
        return int(self.logprobs) if self.logprobs is not None and self.logprobs is not False else None

    @property
    def has_media(self) -> bool:
        """Never: text has no media."""
        return False

    @property
    def prompt_text(self) -> str:
        """The prompts that are text, and the suffix; one per line."""
        return "\n".join([prompt for prompt in self.prompts if isinstance(prompt, str)] + ([self.suffix] if self.suffix else []))

    @property
    def prompt_overhead_tokens(self) -> int:
        """Tokens beside `prompt_text`: those that were sent as ids."""
        return sum(len(prompt) for prompt in self.prompts if not isinstance(prompt, str))

    @property
    def prompt_bytes(self) -> int:
        """Upper bound of the prompts' tokens: a byte or an id each, and 16 for what begins and ends each prompt."""
        bound = len(self.prompt_text.encode()) + self.prompt_overhead_tokens
        return bound + _MESSAGE_TOKENS_BOUND * len(self.prompts)


_R = TypeVar("_R", ChatRequest, TextRequest)


def parse_chat(body: bytes, *, remote_media_allowed: bool = False) -> ChatRequest:
    """The chat request that `body` holds; raises `InvalidRequest`.

    Remote pictures are never fetched by us; `remote_media_allowed` says that an upstream may, see `has_remote_media`.
    """
    request = _parse(body, ChatRequest)
    if not remote_media_allowed:
        for param in _remote_urls(request):
            message = f"Invalid value for '{param}': remote pictures are not allowed here, send a data: URL."
            raise InvalidRequest(message, param, "unsupported_media")
    return request


def parse_text(body: bytes) -> TextRequest:
    """The text request that `body` holds; raises `InvalidRequest`."""
    return _parse(body, TextRequest)


def to_bytes(request: ChatRequest | TextRequest) -> bytes:
    """The request as JSON, for Redis (MessagePack has no integers beyond 64 bits, which JSON schemas may)."""
    return _encoder.encode(request)


def from_bytes(data: bytes) -> ChatRequest | TextRequest:
    """The request that `to_bytes` wrote; raises `msgspec.DecodeError` on anything else."""
    return _decoder.decode(data)


def ignored_parameters(request: ChatRequest | TextRequest, extra_parameters: frozenset[str]) -> tuple[str, ...]:
    """What is not forwarded to a deployment that may receive `extra_parameters`."""
    return request.ignored + tuple(name for name in request.extras if name not in extra_parameters)


def upstream_body(
    request: ChatRequest | TextRequest, *, model: str, max_output_tokens: int, extra_parameters: frozenset[str]
) -> dict[str, Any]:
    """The JSON-able body for an OpenAI-compatible upstream: what the client sent, but always streamed, counted and capped.

    `model` is the upstream's name of the model, `extra_parameters` what the deployment may receive beyond OpenAI's parameters.
    """
    body: dict[str, Any] = msgspec.to_builtins(request)
    for field in _OWN_FIELDS:
        body.pop(field, None)
    body |= {name: value for name, value in request.extras.items() if name in extra_parameters}
    if isinstance(request, TextRequest):
        body |= {"prompt": "" if request.prompt is None else request.prompt, "logprobs": request.logprobs_count}
        if request.logprobs_count is None:
            del body["logprobs"]
    limit = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    body.pop("max_tokens", None)
    return body | {"model": model, "stream": True, "stream_options": {"include_usage": True}, limit: max_output_tokens}


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[ChatRequest | TextRequest] = msgspec.json.Decoder(ChatRequest | TextRequest)
_PARAMETERS = {type_: frozenset(type_.__struct_fields__) - frozenset(_OWN_FIELDS) for type_ in (ChatRequest, TextRequest)}


def _parse(body: bytes, request_type: type[_R]) -> _R:
    try:
        sent = json_guard.decode(body)
    except msgspec.ValidationError:
        raise _out_of_range(body, request_type) from None
    try:
        return msgspec.convert(_sorted(sent, _PARAMETERS[request_type]), request_type)
    except msgspec.ValidationError as error:
        raise explain(error, request_type, sent) from None


def _sorted(sent: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """The known parameters by name, the others in `extras` and `ignored`, null nowhere."""
    found: dict[str, Any] = {}
    extras: dict[str, Any] = {}
    ignored: list[str] = []
    for name, value in sent.items():
        if value is None:
            continue
        if name in known:
            found[name] = value
        elif name in ENGINE_PARAMETERS:
            extras[name] = value
        else:
            ignored.append(name)
    _check_extras(extras)
    return found | {"extras": extras, "ignored": _printable(ignored)}


def _check_extras(extras: dict[str, Any]) -> None:
    for name, value in extras.items():
        if len(_encoder.encode(value)) > caps.MAX_EXTRA_BYTES:
            raise InvalidRequest(f"Invalid value for '{name}': expected at most {caps.MAX_EXTRA_BYTES} bytes.", name)


def _printable(names: list[str]) -> tuple[str, ...]:
    """The names as they may stand in a header or a log line."""
    if len(names) > caps.MAX_IGNORED:
        raise InvalidRequest(f"The body has more than {caps.MAX_IGNORED} unknown parameters.", code="unknown_parameter")
    return tuple(_NOT_IN_A_NAME.sub("?", name[: caps.MAX_NAME_CHARS]) for name in names)


def _out_of_range(body: bytes, request_type: type[_R]) -> InvalidRequest:
    """Which parameter has a number that no float and no integer of 4300 digits holds: typed decoding tells the path."""
    try:
        msgspec.json.decode(body, type=request_type)
    except msgspec.ValidationError as error:
        return explain(error, request_type)
    return InvalidRequest("A number in the body is out of range.")


def _remote_urls(request: ChatRequest) -> Iterator[str]:
    """The path of each remote picture's address."""
    for path, part in media(request.messages):
        if isinstance(part, ImagePart) and part.image_url.is_remote:
            yield f"{path}.image_url.url"


def _check_name(param: str, name: str, names: set[str]) -> None:
    if name not in names:
        raise Violation(param, f"there is no tool '{name}'")


def _check_prompts(prompts: Prompts) -> None:
    kinds = {type(prompt) for prompt in prompts}
    if len(kinds) > 1:
        raise Violation("prompt", "expected only strings, only token ids, or only arrays of token ids")
    if kinds != {int} and len(prompts) > caps.MAX_PROMPTS:
        raise Violation("prompt", f"expected at most {caps.MAX_PROMPTS} prompts")
