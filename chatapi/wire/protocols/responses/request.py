"""The body of `POST /v1/responses` (OpenAI's API reference, "Create a model response")."""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from chatapi.wire import caps, parameters, request_body
from chatapi.wire.generation_request import GenerationRequest, check_fields
from chatapi.wire.invalid_request import InvalidRequest, UnresolvedReferences, Violation
from chatapi.wire.messages import Id, SystemMessage
from chatapi.wire.prompts import Messages
from chatapi.wire.protocols.responses.items import (
    BUILT_IN,
    AdditionalTools,
    Conversation,
    IgnoredItem,
    Item,
    ItemReference,
    Items,
    MessageItem,
    WholeItem,
)
from chatapi.wire.protocols.responses.options import (
    CacheOptions,
    ReasoningOptions,
    ResponsesStreamOptions,
    TextOptions,
)
from chatapi.wire.protocols.responses.response import DEFAULTS
from chatapi.wire.protocols.responses.tools import (
    Tool,
    ToolChoice,
    Tools,
    chat_choice,
    chat_tools,
    left_out,
    namespaces,
    plain_choice,
    whole_tool,
)

NAME: Final = "responses"
COUNT_NAME: Final = "responses.input_tokens"
MIN_OUTPUT_TOKENS: Final = 16
_LOGPROBS: Final = "message.output_text.logprobs"
_to_json = msgspec.json.encode
# OpenAI's parameters that are refused, with the alternative for the client: ignoring them would answer a
# different question.
_UNSUPPORTED: Final = {
    "conversation": "send the conversation as input, or previous_response_id",
    "prompt": "send the prompt's text as instructions or input",
    "context_management": "send a shorter input",
}


class Resolved(msgspec.Struct, frozen=True, omit_defaults=True):
    """The items that a body refers to; the service adds them to the body."""

    previous: list[WholeItem] = []
    """The conversation up to `previous_response_id`."""
    items: dict[str, WholeItem] = {}
    """The targets of item references."""


class ResponsesRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The body of `POST /v1/responses`. Do not reorder fields: the digest hashes them in this order."""

    model: parameters.ModelName
    input: str | Items | None = None
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=MIN_OUTPUT_TOKENS, le=caps.MAX_OUTPUT_TOKENS)] | None = None
    # It limits only built-in tools, and none runs here, so the response repeats it and nothing else happens.
    max_tool_calls: Annotated[int, Meta(ge=1, le=caps.MAX_OUTPUT_TOKENS)] | None = None
    temperature: parameters.Temperature | None = None
    top_p: parameters.Probability | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    stream: bool = False
    stream_options: ResponsesStreamOptions | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: (
        list[
            Literal[
                "message.output_text.logprobs",
                "reasoning.encrypted_content",
                "message.input_image.image_url",
                "file_search_call.results",
                "web_search_call.results",
                "web_search_call.action.sources",
                "code_interpreter_call.outputs",
                "computer_call_output.output.image_url",
            ]
        ]
        | None
    ) = None
    metadata: parameters.Metadata | None = None
    user: parameters.User | None = None
    safety_identifier: parameters.SafetyIdentifier | None = None
    prompt_cache_key: parameters.CacheKey | None = None
    prompt_cache_options: CacheOptions | None = None
    prompt_cache_retention: parameters.PromptCacheRetention | None = None
    service_tier: parameters.ServiceTier | None = None
    moderation: parameters.Moderation | None = None
    truncation: Literal["disabled", "auto"] | None = None
    store: bool | None = None
    previous_response_id: Id | None = None
    background: bool | None = None
    models: parameters.Fallbacks | None = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None

    # The following fields are no parameters: `_of_client` refuses the first, `request_body` sets the others.
    resolved: Resolved | None = None
    extras: dict[str, Any] = {}
    ignored: tuple[str, ...] = ()

    rewritten: ClassVar = frozenset(
        {"input", "instructions", "previous_response_id", "ignored", "stream", "background", "store"}
        | {"max_output_tokens", "text", "reasoning", "include", "top_logprobs"}
        | {"tools", "tool_choice", "parallel_tool_calls", "prompt_cache_options", "truncation"}
    )
    refused: ClassVar = frozenset({"resolved", *_UNSUPPORTED})
    # The response repeats some of them.
    without_effect: ClassVar = frozenset({"max_tool_calls", "stream_options"})

    def __post_init__(self) -> None:
        # OpenAI's reference, "Background mode": only a stored response can be fetched.
        if self.background and self.store is False:
            raise Violation("background", "a response in the background is stored, so store can't be false")
        for name, instead in _UNSUPPORTED.items():
            if getattr(self, name) is not None:
                raise Violation(name, f"it is not supported here, {instead}", "unsupported_parameter")
        # An earlier conversation alone is a valid request: the model continues it.
        if self.input is None and self.previous_response_id is None:
            allowed = "it is required without previous_response_id"
            raise Violation("input", allowed, "missing_required_parameter")

    @property
    def _sent_items(self) -> dict[str, Item]:
        """The request's own items by their paths, as they were sent."""
        if isinstance(self.input, str):
            return {"input": MessageItem(role="user", content=self.input)}
        return {f"input[{index}]": item for index, item in enumerate(self.input or ())}

    @property
    def _all_tools(self) -> dict[str, Tool]:
        """The request's tools and those of its items, by their paths. Raises `InvalidRequest`."""
        tools = {f"tools[{index}]": tool for index, tool in enumerate(self.tools or ())}
        for path, item in self._sent_items.items():
            if not isinstance(item, AdditionalTools):
                continue
            tools |= {f"{path}.tools[{index}]": tool for index, tool in enumerate(item.tools)}
            # Each list by itself is within the limit.
            if len(tools) > caps.MAX_AGENT_TOOLS:
                param = f"{path}.tools"
                allowed = f"expected at most {caps.MAX_AGENT_TOOLS} tools, those of items too"
                raise InvalidRequest(f"Invalid value for '{param}': {allowed}.", param)
        return tools

    @property
    def references(self) -> dict[str, str]:
        """The paths of the ids of items of earlier responses that the input refers to, by id."""
        items = self._sent_items.items()
        return {item.id: f"{path}.id" for path, item in items if isinstance(item, ItemReference)}

    def generation_request(self, *, is_ticket: bool = False) -> GenerationRequest:
        """Return the request of this body. Raises `InvalidRequest`, or `UnresolvedReferences`."""
        # The service adds the missing items, and parses the body again (`stored.resolved_body`).
        if self.resolved is None and (self.previous_response_id or self.references):
            raise UnresolvedReferences(self.previous_response_id, self.references)
        resolved = self.resolved or Resolved()
        own_items, dropped = self._own_items(resolved)
        cache = self.prompt_cache_options or CacheOptions()
        if cache.comparison_response_id is not None:
            dropped.append("prompt_cache_options.comparison_response_id")
        dropped += self._without_effect()
        conversation = self._conversation(resolved.previous, own_items)
        messages = conversation.end()
        if not messages:
            raise InvalidRequest("Invalid value for 'input': there is nothing to answer.", "input")
        tools = self._all_tools
        forwarded = chat_tools(tools)
        context = self._context(tools.values())
        items = [*resolved.previous, *own_items.values()]
        state = _to_json({"items": items, "context": context}) if self.store is not False else b""
        # Too large to keep: the client can't continue the answer, whose object says `store: false`.
        if len(state) > caps.MAX_STATE_BYTES:
            state = b""
        # Without its state, a response in the background can't be read.
        if self.background and not state:
            message = (
                "A response in the background is kept with its whole conversation, instructions and tools: "
                f"at most {caps.MAX_STATE_BYTES} bytes."
            )
            raise InvalidRequest(message, "background")
        members = request_body.same_members(self) | self._tool_members(forwarded)
        return GenerationRequest(
            **members | self._text_members(),
            stream=self.stream or is_ticket,
            prompt=Messages(messages),
            media_param=conversation.media_param,
            # Not `max_tokens`, which OpenAI's reasoning models refuse.
            max_completion_tokens=self.max_output_tokens,
            prompt_cache_options=self.prompt_cache_options and cache.as_chat,
            ignored=(*self.ignored, *left_out(tools), *dropped),
            is_background=self.background is True,
            state=state,
            # `self` has the items that it refers to: the same input after another answer is another request.
            digest=request_body.digest(NAME, self),
            context=context | {"is_stored": bool(state)},
        )

    def _without_effect(self) -> list[str]:
        """Return the names of the parameters that are accepted, and without which the answer may differ."""
        reasoning = self.reasoning or ReasoningOptions()
        dropped = {
            "truncation": self.truncation == "auto",
            "reasoning.context": reasoning.context not in (None, "auto"),
            "reasoning.mode": reasoning.mode not in (None, "standard"),
        }
        return [name for name, is_dropped in dropped.items() if is_dropped]

    def _own_items(self, resolved: Resolved) -> tuple[dict[str, WholeItem], list[str]]:
        """Return the request's own items by their paths, and the paths of those that are left out."""
        items: dict[str, WholeItem] = {}
        dropped: list[str] = []
        for path, item in self._sent_items.items():
            if isinstance(item, IgnoredItem):
                dropped.append(path)
            elif not isinstance(item, AdditionalTools):
                items[path] = resolved.items[item.id] if isinstance(item, ItemReference) else item
        return items, dropped

    def _conversation(self, previous: list[WholeItem], own_items: dict[str, WholeItem]) -> Conversation:
        # Checked for the whole, too: each part by itself is within the limit.
        if len(previous) + len(own_items) > caps.MAX_MESSAGES:
            allowed = f"expected at most {caps.MAX_MESSAGES} items, with those of previous_response_id"
            raise InvalidRequest(f"Invalid value for 'input': {allowed}.", "input")
        conversation = Conversation()
        if self.instructions is not None:
            conversation.messages.append(SystemMessage(self.instructions))
        # The client knows items of earlier responses only by this parameter.
        for item in previous:
            conversation.add(item, "previous_response_id")
        for path, item in own_items.items():
            conversation.add(item, path)
        return conversation

    def _text_members(self) -> dict[str, Any]:
        """Return the members about the answer's text and its reasoning."""
        text, reasoning = self.text or TextOptions(), self.reasoning or ReasoningOptions()
        members: dict[str, Any] = {
            "response_format": text.chat_format,
            "verbosity": text.verbosity,
            "reasoning_effort": reasoning.effort,
        }
        if _LOGPROBS in (self.include or ()):
            members |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        return members

    def _tool_members(self, forwarded: list[parameters.Tool]) -> dict[str, Any]:
        """Return the members about tools: without tools, upstreams refuse the others."""
        choice = self.tool_choice and chat_choice(self.tool_choice, forwarded)
        if forwarded:
            return {
                "tools": forwarded,
                "tool_choice": choice,
                "parallel_tool_calls": self.parallel_tool_calls,
            }
        # "required" and a named tool demand a call, which is impossible without tools.
        if choice not in (None, "none", "auto"):
            message = "Invalid value for 'tool_choice': it is only allowed when tools are specified."
            raise InvalidRequest(message, "tool_choice")
        return {}

    def _context(self, tools: Iterable[Tool]) -> dict[str, Any]:
        """Return the context of a request with these tools, which `response.Response` reads."""
        reasoning = self.reasoning or ReasoningOptions()
        context: dict[str, Any] = {"echo": self._echo(), "is_stored": True}
        if names := namespaces(tools):
            context["namespaces"] = names
        if reasoning.summary or reasoning.generate_summary:
            context["has_summary"] = True
        if self.background:
            context["is_background"] = True
        return context

    def _echo(self) -> str:
        """Return the members that the response object repeats, as JSON, which takes a tenth of their memory.

        Large members are replaced by their defaults: a stream has the object three times.
        """
        sent: dict[str, Any] = {
            name: value for name in DEFAULTS if name != "tools" and (value := getattr(self, name)) is not None
        }
        sent = msgspec.to_builtins(sent) | {"truncation": "disabled"}
        # SDKs decode the object by the published types, which require these members.
        sent["tools"] = [whole_tool(tool) for tool in self.tools or ()]
        sent["text"] = DEFAULTS["text"] | sent.get("text", {})
        sent["reasoning"] = DEFAULTS["reasoning"] | sent.get("reasoning", {})
        for name in ("instructions", "tools", "text"):
            if name in sent and len(_to_json(sent[name])) > caps.MAX_ECHO_BYTES:
                sent[name] = DEFAULTS[name]
        return _to_json(DEFAULTS | sent).decode()


# `Response.object` writes the first three by itself; the others are no members of a response here.
_NOT_REPEATED: Final = frozenset(
    {"model", "store", "service_tier", "input", "models", "stream", "stream_options", "include", "moderation"}
    | {"prompt_cache_options", "prompt_cache_retention", "resolved", "extras", "ignored", *_UNSUPPORTED}
)
check_fields(ResponsesRequest, DEFAULTS, _NOT_REPEATED)


def parse(body: bytes, default_model: str | None = None, *, is_ticket: bool = False) -> GenerationRequest:
    """Return the request in `body`; see `protocol.Parser`."""
    sent = request_body.read(body, ResponsesRequest, default_model, _of_client)
    return sent.generation_request(is_ticket=is_ticket)


def parse_resolved(body: bytes, default_model: str | None = None) -> GenerationRequest:
    """Return the request in a body to which the service has added the items that it refers to."""
    return request_body.read(body, ResponsesRequest, default_model, _add_types).generation_request()


def parse_count(
    body: bytes, default_model: str | None = None, *, is_ticket: bool = False
) -> GenerationRequest:
    """Return the request whose input tokens are counted; it stores and streams nothing."""
    return _counted(request_body.read(body, ResponsesRequest, default_model, _of_client))


def parse_resolved_count(body: bytes, default_model: str | None = None) -> GenerationRequest:
    """Return the request whose input tokens are counted, with the items that it refers to."""
    return _counted(request_body.read(body, ResponsesRequest, default_model, _add_types))


def _counted(sent: ResponsesRequest) -> GenerationRequest:
    # Counting keeps no state, which a response in the background would require.
    counted = msgspec.structs.replace(sent, store=False, background=None, stream=False)
    return counted.generation_request()


def _of_client(found: dict[str, Any]) -> None:
    """Prepare a client's body; refuse `resolved`: the owner of its items would not be checked."""
    if "resolved" in found:
        raise InvalidRequest("Invalid value for 'resolved': no client can set it.", "resolved")
    _add_types(found)


def _add_types(found: dict[str, Any]) -> None:
    """Add the missing types of items, refuse items of OpenAI's own tools, and unify the choice of a tool."""
    found |= {"tool_choice": plain_choice(found["tool_choice"])} if "tool_choice" in found else {}
    items = found.get("input")
    # A longer list is refused later by its type, and must not take time here.
    if not isinstance(items, list) or len(items) > caps.MAX_MESSAGES:
        return
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            continue
        if item.get("type") is None:
            item["type"] = "item_reference" if "id" in item and "role" not in item else "message"
        elif isinstance(item["type"], str) and item["type"] in BUILT_IN:
            param = f"input[{index}].type"
            message = f"Invalid value for '{param}': items of OpenAI's own tools are not supported here."
            hint = f"Leave '{item['type']}' out, and what belongs to it."
            raise InvalidRequest(f"{message} {hint}", param, "unsupported_value")
