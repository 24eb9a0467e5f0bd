"""The bodies of `POST /v1/messages` and `/v1/messages/count_tokens` (Anthropic's API reference).

docs/messages.md says how each member is used. Members that are not here are ignored, and named in the header
`x-chatapi-ignored`.
"""

import hashlib
from typing import Annotated, Any, ClassVar, Final, Literal, assert_never

import msgspec
from msgspec import Meta

from chatapi.wire import caps, parameters, request_body
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.invalid_request import Violation
from chatapi.wire.messages import CacheControl
from chatapi.wire.parameters import FunctionChoice, FunctionDefinition, FunctionTool, Named
from chatapi.wire.prompts import Messages
from chatapi.wire.protocols.messages.blocks import AssistantTurn, Tagged, TextBlock, Turn, said
from chatapi.wire.protocols.messages.conversation import remote_pictures, to_messages

NAME: Final = "messages"
COUNT_NAME: Final = "messages.count_tokens"

MIN_THINKING_TOKENS: Final = 1_024
# The least `budget_tokens` of each `reasoning_effort`; without `minimal`, which many models refuse.
_EFFORTS: Final[tuple[tuple[int, parameters.ReasoningEffort], ...]] = (
    (10_000, "high"),
    (5_000, "medium"),
    (0, "low"),
)
# Prefixes of the types of tools that Anthropic's servers run.
_SERVER_TOOLS: Final = (
    *("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "advisor_", "mcp_toolset"),
)
# OpenAI's limit for the name of a tool, and for `user`.
MAX_UPSTREAM_NAME_CHARS: Final = 64
MAX_TOOL_NAME_CHARS: Final = 128

_ToolName = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9_-]{{1,{MAX_TOOL_NAME_CHARS}}}\Z")]
_StopSequence = Annotated[str, Meta(min_length=1, max_length=caps.MAX_STOP_CHARS)]


class _Plain(msgspec.Struct, frozen=True, omit_defaults=True):
    """The base of objects without a `type`."""


class ToolDefinition(_Plain, frozen=True):
    """A tool: the client's own, or one that Anthropic's servers run, which is left out."""

    # Sets of tools (`mcp_toolset`) have no name.
    name: _ToolName = ""
    type: str | None = "custom"
    description: parameters.Description | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None

    def __post_init__(self) -> None:
        # Anthropic's reference: a tool with no type, or null, is the client's own and needs a schema.
        is_own = self.type in ("custom", None)
        if is_own and not self.name:
            raise Violation("name", "it is required for a tool of your own", "missing_required_parameter")
        if is_own and self.input_schema is None:
            allowed = "it is required for a tool of your own"
            raise Violation("input_schema", allowed, "missing_required_parameter")
        if not is_own and not self.is_servers:
            allowed = "only 'custom' tools are supported; send this tool with a name and an input_schema"
            raise Violation("type", allowed)

    @property
    def is_servers(self) -> bool:
        """Whether Anthropic's servers run it."""
        return self.type is not None and self.type.startswith(_SERVER_TOOLS)


class AutoChoice(Tagged, frozen=True, tag="auto"):
    """The model decides."""

    disable_parallel_tool_use: bool = False


class AnyChoice(Tagged, frozen=True, tag="any"):
    """Some tool must be called."""

    disable_parallel_tool_use: bool = False


class NoChoice(Tagged, frozen=True, tag="none"):
    """No tool may be called."""


class ToolNameChoice(Tagged, frozen=True, tag="tool"):
    """This tool must be called."""

    name: _ToolName
    disable_parallel_tool_use: bool = False


# Strings, not literals, here and below: Anthropic adds values, and only its deployments read them.
class BlockBinding(_Plain, frozen=True):
    """How a `thinking` block of another conversation is treated."""

    prefix_mismatch_behavior: parameters.ShortText | None = None


class EnabledThinking(Tagged, frozen=True, tag="enabled"):
    """Think, with a budget."""

    # Anthropic's least budget; a smaller one would be an error there, too.
    budget_tokens: Annotated[int, Meta(ge=MIN_THINKING_TOKENS, le=caps.MAX_OUTPUT_TOKENS)]
    display: parameters.ShortText | None = None
    block_binding: BlockBinding | None = None


class AdaptiveThinking(Tagged, frozen=True, tag="adaptive"):
    """Think as much as the task needs."""

    display: parameters.ShortText | None = None
    block_binding: BlockBinding | None = None


class ThinkingBetweenTools(Tagged, frozen=True, tag="between_tools"):
    """Think between calls of tools."""


class DisabledThinking(Tagged, frozen=True, tag="disabled"):
    """Do not think."""


class JSONSchemaOutput(Tagged, frozen=True, tag="json_schema"):
    """Answers follow a JSON schema."""

    schema: dict[str, Any]


class OutputConfig(_Plain, frozen=True):
    """The effort and the format of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JSONSchemaOutput | None = None


class Metadata(_Plain, frozen=True):
    """The client's data about the request."""

    user_id: parameters.User | None = None


class PromptRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The fields of both bodies. Do not reorder them: the digest hashes them in this order."""

    model: parameters.ModelName
    messages: Annotated[list[Turn], Meta(min_length=1, max_length=caps.MAX_MESSAGES)]
    system: str | Annotated[list[TextBlock], Meta(max_length=caps.MAX_CONTENT_PARTS)] = ""
    tools: Annotated[list[ToolDefinition], Meta(max_length=caps.MAX_AGENT_TOOLS)] = []
    tool_choice: AutoChoice | AnyChoice | NoChoice | ToolNameChoice | None = None
    thinking: EnabledThinking | AdaptiveThinking | ThinkingBetweenTools | DisabledThinking | None = None
    output_config: OutputConfig = OutputConfig()
    # The older name of `output_config.format`, which released SDKs still send.
    output_format: JSONSchemaOutput | None = None
    thread: Any = None

    extras: dict[str, Any] = {}
    ignored: tuple[str, ...] = ()

    rewritten: ClassVar = frozenset(
        {"messages", "system", "tools", "tool_choice", "thinking", "output_config", "output_format"}
        | {"extras", "ignored"}
    )
    refused: ClassVar = frozenset({"thread"})

    def __post_init__(self) -> None:
        # Ignoring it would lose the conversation. After this code, SDKs send the whole one with each turn.
        if self.thread is not None:
            allowed = "threads are not kept here, send the whole conversation"
            raise Violation("thread", allowed, "thread_unsupported_request")
        # Anthropic's rule: names are unique, because an answer calls tools by name.
        names: set[str] = set()
        for index, tool in enumerate(self.tools):
            if tool.name in names:
                raise Violation(f"tools[{index}].name", f"there are two tools '{tool.name}'")
            names |= {tool.name} if tool.name else set()
        # The model can't choose among tools that are left out.
        if isinstance(self.tool_choice, AnyChoice | ToolNameChoice) and not self._own_tools:
            raise Violation("tool_choice", "it is only allowed when tools are specified")
        if isinstance(self.tool_choice, ToolNameChoice):
            name = self.tool_choice.name
            if name not in {tool.name for tool in self._own_tools}:
                raise Violation("tool_choice.name", f"there is no tool '{name}'")

    @property
    def _own_tools(self) -> list[ToolDefinition]:
        return [tool for tool in self.tools if not tool.is_servers]

    def members(self) -> dict[str, Any]:
        """Return the members of a `GenerationRequest` that make up its prompt."""
        names = ((_short(tool.name), tool.name) for tool in self._own_tools)
        # The encoder replaces shortened names in the answer by the client's own.
        long_names = {short: name for short, name in names if short != name}
        left_out = (f"tools[{index}]" for index, tool in enumerate(self.tools) if tool.is_servers)
        members = request_body.same_members(self) | {
            "prompt": Messages(to_messages(self.system, self.messages, _short)),
            "media_param": next(remote_pictures(self.messages), None),
            "reasoning_effort": self.output_config.effort or self._estimated_effort,
            "is_effort_estimated": self._estimated_effort is not None,
            # Anthropic upstreams get it as it was sent; others get the effort.
            "extras": self.extras | _as_extra("thinking", self.thinking),
            "ignored": (*self.ignored, *left_out),
            "context": {"tools": long_names} if long_names else {},
        }
        if output := self.output_config.format or self.output_format:
            # OpenAI requires a name, which Anthropic does not have.
            schema = parameters.JsonSchema("output", schema=output.schema, strict=True)
            members["response_format"] = parameters.JsonSchemaFormat(schema)
        return members | (self._tool_members() if self._own_tools else {})

    def _tool_members(self) -> dict[str, Any]:
        choice = self.tool_choice
        # Encoded at once: the decoded schemas are dropped with the body.
        tools = msgspec.json.encode([_function(tool) for tool in self._own_tools])
        marks = {_short(tool.name): tool.cache_control for tool in self._own_tools if tool.cache_control}
        members: dict[str, Any] = {"tools": msgspec.Raw(tools), "tool_cache_marks": marks}
        match choice:
            case AutoChoice():
                members["tool_choice"] = "auto"
            # OpenAI's word for it.
            case AnyChoice():
                members["tool_choice"] = "required"
            case NoChoice():
                members["tool_choice"] = "none"
            case ToolNameChoice():
                members["tool_choice"] = FunctionChoice(Named(_short(choice.name)))
            case None:
                pass
            case _:
                assert_never(choice)
        # Anthropic has the switch inside the choice, and with its sense reversed.
        if choice is not None and not isinstance(choice, NoChoice) and choice.disable_parallel_tool_use:
            members["parallel_tool_calls"] = False
        return members

    @property
    def _estimated_effort(self) -> parameters.ReasoningEffort | None:
        """The effort for the client's thinking budget; None if there is no budget, or the effort was sent."""
        if self.output_config.effort or not isinstance(self.thinking, EnabledThinking):
            return None
        budget_tokens = self.thinking.budget_tokens
        return next(effort for least_tokens, effort in _EFFORTS if budget_tokens >= least_tokens)


class CountTokensRequest(PromptRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/messages/count_tokens`.

    Anthropic's has no `metadata`; here it names the end user, whose rate limits count the request.
    """

    metadata: Metadata = Metadata()

    rewritten: ClassVar = PromptRequest.rewritten | {"metadata"}

    def members(self) -> dict[str, Any]:
        """Return all members of a `GenerationRequest` except the digest."""
        return super().members() | {"user": _user(self.metadata.user_id)}


class MessagesRequest(PromptRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/messages`. Do not reorder fields: the digest hashes them in this order."""

    max_tokens: parameters.OutputTokens
    stop_sequences: Annotated[list[_StopSequence], Meta(max_length=caps.MAX_MESSAGES_STOP_SEQUENCES)] = []
    stream: bool = False
    temperature: parameters.Probability | None = None
    top_p: parameters.Probability | None = None
    top_k: Annotated[int, Meta(ge=0, le=caps.MAX_TOKEN_ID)] | None = None
    metadata: Metadata = Metadata()
    service_tier: Literal["auto", "standard_only"] | None = None
    models: parameters.Fallbacks | None = None

    rewritten: ClassVar = PromptRequest.rewritten | {
        *("max_tokens", "stop_sequences", "top_k", "metadata", "service_tier")
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        # Anthropic's rule ("Extended thinking"): the budget is a part of max_tokens.
        if isinstance(self.thinking, EnabledThinking) and self.thinking.budget_tokens >= self.max_tokens:
            raise Violation("thinking.budget_tokens", "it must be less than max_tokens")
        turns = said(self.messages)
        if not turns:
            raise Violation("messages", "there is nothing to answer")
        number, last = turns[-1]
        # Few chat templates can continue an answer; most begin a new one without an error.
        if isinstance(last, AssistantTurn):
            allowed = (
                "the last message must be the user's: continuing an answer of the assistant (prefill) is not "
                "supported"
            )
            raise Violation(f"messages[{number}].role", allowed)

    def members(self) -> dict[str, Any]:
        """Return all members of a `GenerationRequest` except the digest."""
        members = super().members()
        return members | {
            # Not `max_tokens`: OpenAI's reasoning models refuse it.
            "max_completion_tokens": self.max_tokens,
            "stop": self.stop_sequences or None,
            "user": _user(self.metadata.user_id),
            "service_tier": {None: None, "auto": "auto", "standard_only": "default"}[self.service_tier],
            "extras": members["extras"] | _as_extra("top_k", self.top_k),
            # `message_start` has the prompt's tokens, before the upstream has sent a usage.
            "announces_prompt_tokens": True,
        }


def parse(body: bytes, default_model: str | None = None, *, is_ticket: bool = False) -> GenerationRequest:
    """Return the request in the body of `POST /v1/messages`; see `protocol.Parser`."""
    sent = request_body.read(body, MessagesRequest, default_model)
    return GenerationRequest(**sent.members(), digest=request_body.digest(NAME, sent))


def parse_count(
    body: bytes, default_model: str | None = None, *, is_ticket: bool = False
) -> GenerationRequest:
    """Return the request in the body of `POST /v1/messages/count_tokens`; see `protocol.Parser`."""
    sent = request_body.read(body, CountTokensRequest, default_model)
    return GenerationRequest(**sent.members(), digest=request_body.digest(COUNT_NAME, sent))


def _function(tool: ToolDefinition) -> FunctionTool:
    name = _short(tool.name)
    return FunctionTool(FunctionDefinition(name, tool.description, tool.input_schema, tool.strict))


def _as_extra(name: str, value: Any) -> dict[str, Any]:
    """Return an engine parameter: only deployments that ask for it get it."""
    return {} if value is None else {name: msgspec.to_builtins(value)}


def _short(name: str) -> str:
    """Return a tool's name for upstreams: a longer one becomes its beginning and a checksum."""
    if len(name) <= MAX_UPSTREAM_NAME_CHARS:
        return name
    # The checksum distinguishes names with the same beginning, as those of MCP servers have.
    return f"{name[: MAX_UPSTREAM_NAME_CHARS - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _user(user_id: str | None) -> str | None:
    """Return the end user's id, or its checksum if it is longer than upstreams allow, as Claude Code's is."""
    if user_id is None or len(user_id) <= MAX_UPSTREAM_NAME_CHARS:
        return user_id
    return hashlib.sha256(user_id.encode()).hexdigest()
