"""The one request that crosses admission, the queue, workers and engines, for all protocols.

A protocol's parser (`protocols/`) makes it from a client's body; its errors name the client's own parameters.
Here parameters have the names and types of OpenAI's API reference ("Create chat completion"), which most
upstreams read. None means that the client did not send the parameter.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from types import UnionType
from typing import Annotated, Any, Final, get_args

import msgspec
from msgspec import Meta

from chatapi.wire import caps, parameters, tokens
from chatapi.wire.messages import CacheControl
from chatapi.wire.prompts import Prompt

# The most that a chat template writes around the tools.
_TOOLS_TOKENS_BOUND: Final = 512


class GenerationRequest(
    msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="request", tag="generation.1"
):
    """A validated request. Its tag gets a new number when the release before could not run its jobs; then
    `requests.from_bytes` reads both tags.
    """

    model: parameters.ModelName
    models: parameters.Fallbacks | None = None
    """Other models that may answer; None: those of the project."""
    stream: bool = False
    include_usage: bool = False
    """Whether the client asks for its usage in the stream."""
    max_tokens: Annotated[int, Meta(ge=0, le=caps.MAX_OUTPUT_TOKENS)] | None = None
    n: parameters.ChoicesCount | None = None
    temperature: parameters.Temperature | None = None
    top_p: parameters.Probability | None = None
    frequency_penalty: parameters.Penalty | None = None
    presence_penalty: parameters.Penalty | None = None
    logit_bias: parameters.LogitBias | None = None
    seed: parameters.Seed | None = None
    stop: str | list[str] | None = None
    """The protocol limits their number."""
    user: parameters.User | None = None
    prompt: Prompt
    max_completion_tokens: parameters.OutputTokens | None = None
    logprobs: bool | Annotated[int, Meta(ge=0, le=20)] | None = None
    """True (then `top_logprobs` counts), or the number of alternatives, as text completions have it."""
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    best_of: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: msgspec.Raw = msgspec.Raw()
    """A list of `parameters.Tool`, or nothing, as JSON: decoded schemas take ten times the memory."""
    tool_choice: parameters.ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    tool_cache_marks: dict[str, CacheControl] = {}
    """By the name of the tool, for Anthropic upstreams."""
    functions: msgspec.Raw = msgspec.Raw()
    """`parameters.Functions`, or nothing, as JSON."""
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

    extras: dict[str, Any] = {}
    """Engine parameters (`ENGINE_PARAMETERS`) as the client sent them, for deployments that ask for them.
    This service does not act on them.
    """
    ignored: tuple[str, ...] = ()
    """Names of the parameters that no deployment can receive."""
    idle_parameters: tuple[str, ...] = ()
    """Names of the parameters that have no effect without a stream, if there is none."""
    media_param: str | None = None
    """The client's name for the first remote picture, if it differs from the path in `messages`."""
    digest: str
    """Equal for equal requests (`request_body.digest`)."""
    is_background: bool = False
    """The client does not wait for the answer, but fetches it later."""
    state: bytes = b""
    """The data that later requests may refer to. It is kept beside the generation's log, and in no job."""
    context: dict[str, Any] = {}
    """The parts of the request that the answer repeats; the first delta brings them (`Started.context`)."""
    announces_prompt_tokens: bool = False
    """The answer begins with an estimate of the prompt's tokens (`Started.prompt_tokens`)."""
    is_effort_estimated: bool = False
    """`reasoning_effort` was derived from a budget for thinking; the client sent no effort."""

    @property
    def end_user(self) -> str | None:
        """Return the client's name for its end user."""
        return self.safety_identifier or self.user

    @property
    def extra_names(self) -> tuple[str, ...]:
        """Names of the parameters that only deployments that ask for them get: engine parameters,
        `cache_control` if the prompt has marks, and `service_tier` if it is a tier above the usual price.
        """
        has_marks = bool(self.tool_cache_marks) or self.prompt.has_cache_marks
        marks = ["cache_control"] if has_marks else []
        tier = [parameters.SERVICE_TIER] if self.has_dear_tier else []
        return tuple(dict.fromkeys((*self.extras, *marks, *tier)))

    @property
    def has_dear_tier(self) -> bool:
        """Whether the request asks for a tier above the usual price."""
        return self.service_tier in parameters.DEAR_TIERS

    @property
    def stop_sequences(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def choices_count(self) -> int:
        """Return how many choices the answer has: `n` for each prompt; embeddings have none."""
        return self.prompt.choices_count * (self.n or 1)

    @property
    def sampled_count(self) -> int:
        """Return how many choices are generated and paid for: `best_of` for each prompt; `n` are returned."""
        return max(self.choices_count, self.prompt.count * (self.best_of or 0))

    @property
    def can_stream(self) -> bool:
        """Whether the answer can be streamed. Embeddings can't, nor can the best `n` of `best_of` choices,
        which are known only at the end.
        """
        return self.choices_count > 0 and (self.best_of or 1) <= (self.n or 1)

    @property
    def counted_texts(self) -> list[str]:
        """Return the texts whose tokens add up to the prompt's: a model reads inputs to embed one by one."""
        return [*self.prompt.texts()] if self.prompt.are_read_apart else [self.prompt_text]

    @property
    def max_output_tokens(self) -> int | None:
        """Return the client's limit for each choice; 0 if nothing is generated."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def logprobs_count(self) -> int | None:
        """The number of alternatives of each token; None if the client wants no log probabilities."""
        if self.logprobs is None or self.logprobs is False:
            return None
        return self.top_logprobs or 0 if self.logprobs is True else self.logprobs

    @property
    def is_measurable(self) -> bool:
        """Return whether `prompt_bytes` bounds the prompt; media and web pages have further tokens."""
        return not self.prompt.has_media and self.web_search_options is None

    @property
    def remote_media_param(self) -> str | None:
        """The client's name for the first picture that the upstream would have to fetch."""
        path = next(self.prompt.remote_media(), None)
        return path and (self.media_param or path)

    @property
    def prompt_text(self) -> str:
        """All text that becomes prompt: the prompt's own, tools and schemas; a part per line."""
        return "\n".join(self._prompt_parts())

    def _prompt_parts(self) -> Iterator[str]:
        yield from self.prompt.texts()
        if self.tools:
            # In the form that most upstreams get, which is longer.
            yield parameters.with_functions_only(msgspec.json.encode(self.tools)).decode()
        for schema in (self.functions, self.response_format, self.prediction):
            if schema:
                yield msgspec.json.encode(schema).decode()

    @property
    def prompt_tokens_estimate(self) -> int:
        """The approximate number of the prompt's tokens, without media; see `tokens.estimate`."""
        return tokens.estimate(self.prompt_text) + self.prompt.overhead_tokens

    @property
    def prompt_bytes(self) -> int:
        """Upper bound of the prompt's tokens, without media: no token is shorter than a byte of UTF-8."""
        tools = _TOOLS_TOKENS_BOUND if self.tools or self.functions else 0
        # Summed, because a large prompt must not be in memory three times.
        text_bytes = sum(
            len(part if part.isascii() else part.encode()) + len("\n") for part in self._prompt_parts()
        )
        return max(0, text_bytes - len("\n")) + self.prompt.overhead_bound(self.extras) + tools


def check_fields(struct: type[msgspec.Struct] | UnionType, *sets: Iterable[str]) -> None:
    """Check that each field of the struct is in exactly one of the sets, and that they have no other names.
    For a union, check the fields of all its structs. Raises `AssertionError`.
    """
    structs = get_args(struct) or (struct,)
    named = Counter(chain(*sets))
    fields = Counter({name for each in structs for name in each.__struct_fields__})
    wrong = (named - fields) + (fields - named)
    names = " | ".join(each.__name__ for each in structs)
    assert not wrong, f"{names}: in no set, in two, or no field: {', '.join(wrong)}"
