"""The types of a request's parameters (OpenAI's API reference), and the names of engine parameters.

Members that OpenAI's reference does not have are dropped. Where the reference lets a member be absent, `null`
is the same.
"""

from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import Meta

from chatapi.wire import caps
from chatapi.wire.messages import TextParts

# `\Z` and not `$`, which would take a newline at the end
MODEL_NAME_PATTERN = r"^[A-Za-z0-9._:/@+-]{1,128}\Z"
ModelName = Annotated[str, Meta(pattern=MODEL_NAME_PATTERN)]
Fallbacks = Annotated[
    list[ModelName],
    Meta(
        max_length=caps.MAX_FALLBACKS,
        description="Other models to try, in this order, if `model` fails. Not part of OpenAI's API.",
    ),
]
ToolName = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9_-]{{1,{caps.MAX_NAME_CHARS}}}\Z")]
Description = Annotated[str, Meta(max_length=caps.MAX_DESCRIPTION_CHARS)]
User = Annotated[str, Meta(max_length=caps.MAX_USER_CHARS)]
SafetyIdentifier = Annotated[str, Meta(max_length=caps.MAX_SAFETY_IDENTIFIER_CHARS)]
CacheKey = Annotated[str, Meta(max_length=caps.MAX_CACHE_KEY_CHARS)]
ShortText = Annotated[str, Meta(max_length=caps.MAX_NAME_CHARS)]
Suffix = Annotated[str, Meta(max_length=caps.MAX_SUFFIX_CHARS)]

Penalty = Annotated[float, Meta(ge=-2, le=2)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
ChoicesCount = Annotated[int, Meta(ge=1, le=caps.MAX_CHOICES)]
OutputTokens = Annotated[int, Meta(ge=1, le=caps.MAX_OUTPUT_TOKENS)]

_StopSequence = Annotated[str, Meta(min_length=1, max_length=caps.MAX_STOP_CHARS)]
Stop = _StopSequence | Annotated[list[_StopSequence], Meta(min_length=1, max_length=caps.MAX_STOP_SEQUENCES)]
_TokenIdKey = Annotated[str, Meta(pattern=r"^[0-9]{1,10}\Z")]
LogitBias = Annotated[
    dict[_TokenIdKey, Annotated[int, Meta(ge=-100, le=100)]], Meta(max_length=caps.MAX_LOGIT_BIASES)
]
_MetadataKey = Annotated[str, Meta(max_length=caps.MAX_METADATA_KEY_CHARS)]
_MetadataValue = Annotated[str, Meta(max_length=caps.MAX_METADATA_VALUE_CHARS)]
Metadata = Annotated[dict[_MetadataKey, _MetadataValue], Meta(max_length=caps.MAX_METADATA_PAIRS)]
Modalities = Annotated[list[Literal["text", "audio"]], Meta(min_length=1, max_length=2)]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
Level = Literal["low", "medium", "high"]
PromptCacheRetention = Literal["in_memory", "24h"]

# Parameters of vLLM, llama.cpp, SGLang and Ollama that a deployment may ask for. All others that are not
# OpenAI's are dropped, so a key or a URL in a client's body (`api_key`, `api_base`, `headers`) reaches no
# queue and no upstream. Left out on purpose: parameters that run code or templates (`chat_template`,
# `logits_processors`), or cost more than is reserved (`n_predict`, `use_beam_search`).
TEMPLATE_PARAMETERS: Final = frozenset({"chat_template_kwargs", "documents"})
"""The engine parameters that chat templates write into the prompt, so that holds count them."""
ENGINE_PARAMETERS: Final = TEMPLATE_PARAMETERS | frozenset(
    """
    add_generation_prompt allowed_token_ids bad_words cache_control cache_prompt cache_salt
    continue_final_message dry_allowed_length dry_base dry_multiplier dry_penalty_last_n
    dry_sequence_breakers dynatemp_exponent dynatemp_range ebnf enable_thinking extra_content
    grammar guided_choice
    guided_decoding_backend guided_grammar guided_json guided_regex guided_whitespace_pattern ignore_eos
    include_reasoning include_stop_str_in_output json_schema length_penalty min_keep min_p min_tokens
    mirostat mirostat_eta mirostat_tau mm_processor_kwargs n_keep priority prompt_logprobs reasoning
    reasoning_content reasoning_format regex repeat_last_n repeat_penalty repetition_penalty
    return_tokens_as_token_ids samplers separate_reasoning skip_special_tokens
    spaces_between_special_tokens stop_token_ids structured_outputs think thinking thinking_budget top_a
    top_k top_n_sigma truncate_prompt_tokens typical_p xtc_probability xtc_threshold
    """.split()  # noqa: SIM905  # sixty quoted lines are harder to read
)
# The next three are no engine parameters. In a deployment's `extra_parameters` they say:
# its upstream takes custom tools;
CUSTOM_TOOLS: Final = "custom_tools"
# its upstream gets the output limit of chats under this name, because OpenAI's reasoning models refuse
# `max_tokens`;
COMPLETION_LIMIT: Final = "max_completion_tokens"
# it gets tiers above the usual price, though a model has one price for all tiers.
SERVICE_TIER: Final = "service_tier"
DEAR_TIERS: Final[frozenset[ServiceTier]] = frozenset({"scale", "priority", "fast", "ultrafast"})


class _Tagged(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """The base of objects whose `type` says which one it is."""


class _Plain(msgspec.Struct, frozen=True, omit_defaults=True):
    """The base of the other objects."""


class FunctionDefinition(_Plain, frozen=True):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: ToolName
    description: Description | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(_Tagged, frozen=True, tag="function"):
    """A function as a tool."""

    function: FunctionDefinition

    @property
    def choice(self) -> "FunctionChoice":
        """The choice of this tool."""
        return FunctionChoice(Named(self.function.name))


class GrammarDefinition(_Plain, frozen=True):
    """A grammar."""

    definition: str
    syntax: Literal["lark", "regex"]


class TextInput(_Tagged, frozen=True, tag="text"):
    """A custom tool that takes any text."""


class GrammarInput(_Tagged, frozen=True, tag="grammar"):
    """A custom tool that takes text of a grammar."""

    grammar: GrammarDefinition


class CustomDefinition(_Plain, frozen=True):
    """A custom tool."""

    name: ToolName
    description: Description | None = None
    format: TextInput | GrammarInput | None = None


class CustomTool(_Tagged, frozen=True, tag="custom"):
    """A tool that takes text."""

    custom: CustomDefinition

    @property
    def choice(self) -> "CustomChoice":
        """The choice of this tool."""
        return CustomChoice(Named(self.custom.name))

    @property
    def as_function(self) -> FunctionTool:
        """The tool as a function with one string, for upstreams that know only functions. A grammar becomes
        the string's description, which the model may ignore.
        """
        text = {"type": "string"}
        if isinstance(self.custom.format, GrammarInput):
            grammar = self.custom.format.grammar
            text["description"] = f"Must follow this grammar ({grammar.syntax}):\n{grammar.definition}"
        schema = {"type": "object", "properties": {"input": text}, "required": ["input"]}
        definition = FunctionDefinition(
            self.custom.name, self.custom.description, schema | {"additionalProperties": False}
        )
        return FunctionTool(definition)


Tool = FunctionTool | CustomTool
_CUSTOM: Final = b'{"type":"custom"'
assert {*get_args(Tool)} == {FunctionTool, CustomTool}, (
    "`custom_tools` and `with_functions_only` convert them"
)


def custom_tools(tools: bytes) -> list[CustomTool]:
    """Return the custom tools of `Tools` as JSON."""
    if _CUSTOM not in tools:  # functions are not decoded: their schemas would take ten times the memory
        return []
    found = msgspec.json.decode(tools, type=list[msgspec.Raw])
    return [msgspec.json.decode(each, type=CustomTool) for each in found if bytes(each).startswith(_CUSTOM)]


def with_functions_only(tools: bytes) -> bytes:
    """Return `Tools` as JSON with functions instead of the custom tools."""
    if _CUSTOM not in tools:
        return tools
    found = msgspec.json.decode(tools, type=list[msgspec.Raw])
    return msgspec.json.encode(
        [
            msgspec.json.decode(each, type=CustomTool).as_function
            if bytes(each).startswith(_CUSTOM)
            else each
            for each in found
        ]
    )


class Named(_Plain, frozen=True):
    """A tool by its name."""

    name: ToolName


class FunctionChoice(_Tagged, frozen=True, tag="function"):
    """This function must be called."""

    function: Named

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.function.name


class CustomChoice(_Tagged, frozen=True, tag="custom"):
    """This custom tool must be called."""

    custom: Named

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.custom.name


ToolByName = FunctionChoice | CustomChoice


class AllowedTools(_Plain, frozen=True):
    """Some of the tools. The reference does not say which members an entry has."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=caps.MAX_AGENT_TOOLS)]


class AllowedToolsChoice(_Tagged, frozen=True, tag="allowed_tools"):
    """Only these tools may be called."""

    allowed_tools: AllowedTools


FunctionCallChoice = Literal["none", "auto"] | Named
ToolChoice = Literal["none", "auto", "required"] | ToolByName | AllowedToolsChoice
Tools = Annotated[list[Tool], Meta(min_length=1, max_length=caps.MAX_TOOLS)]
Functions = Annotated[list[FunctionDefinition], Meta(min_length=1, max_length=caps.MAX_TOOLS)]


class TextFormat(_Tagged, frozen=True, tag="text"):
    """Answers are text."""


class JsonObjectFormat(_Tagged, frozen=True, tag="json_object"):
    """Answers are some JSON object."""


class JsonSchema(_Plain, frozen=True):
    """A named JSON schema."""

    name: ToolName
    description: Description | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class JsonSchemaFormat(_Tagged, frozen=True, tag="json_schema"):
    """Answers follow a JSON schema."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class Voice(_Plain, frozen=True):
    """A custom voice."""

    id: ShortText


class Audio(_Plain, frozen=True):
    """The format and the voice of spoken answers."""

    format: Literal["wav", "aac", "mp3", "flac", "opus", "pcm16"]
    voice: ShortText | Voice


class Prediction(_Plain, frozen=True):
    """A text that the answer will mostly repeat."""

    type: Literal["content"]
    content: str | TextParts


class ApproximateLocation(_Plain, frozen=True):
    """Where the user is, roughly."""

    city: ShortText | None = None
    country: ShortText | None = None
    region: ShortText | None = None
    timezone: ShortText | None = None


class UserLocation(_Plain, frozen=True):
    """Where the user is."""

    type: Literal["approximate"]
    approximate: ApproximateLocation


class WebSearchOptions(_Plain, frozen=True):
    """How the model may search the web."""

    search_context_size: Level | None = None
    user_location: UserLocation | None = None


class ModerationMode(_Plain, frozen=True):
    """Whether moderation only scores a text, or blocks it."""

    mode: Literal["score", "block"]


class ModerationPolicy(_Plain, frozen=True):
    """What moderation does with the input and with the output."""

    input: ModerationMode | None = None
    output: ModerationMode | None = None


class Moderation(_Plain, frozen=True):
    """The model that moderates, and its policy."""

    model: ModelName
    policy: ModerationPolicy | None = None


class PromptCacheOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """How prompts are cached."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] | None = None
