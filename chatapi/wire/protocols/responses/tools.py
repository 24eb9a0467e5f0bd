"""The tools of a request, and their translation to those of chat completions.

A tool of Responses is flat; one of chat completions nests its definition. It may be in a namespace; in chat
completions, which have none, the namespace becomes a part of the tool's name.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, assert_never

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from chatapi.wire import caps
from chatapi.wire import parameters as chat
from chatapi.wire.invalid_request import InvalidRequest, Violation
from chatapi.wire.parameters import Description, ToolName

# Between a namespace and a tool's name in the one name that an upstream gets.
SEPARATOR: Final = "__"


class _Tagged(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """The base of tools and of choices of a tool, whose `type` says which one it is."""


class FlatFunction(_Tagged, frozen=True, tag="function"):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: ToolName
    description: Description | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def named(self, name: str) -> chat.Tool:
        """Return the tool as chat completions have it, under this name."""
        function = chat.FunctionDefinition(name, self.description, self.parameters, self.strict)
        return chat.FunctionTool(function)


class FlatGrammar(_Tagged, frozen=True, tag="grammar"):
    """The format of a custom tool whose input is text of this grammar."""

    syntax: Literal["lark", "regex"]
    definition: str


class FlatCustomTool(_Tagged, frozen=True, tag="custom"):
    """A tool that takes text."""

    name: ToolName
    description: Description | None = None
    format: chat.TextInput | FlatGrammar | None = None

    def named(self, name: str) -> chat.Tool:
        """Return the tool as chat completions have it, under this name."""
        format_: chat.TextInput | chat.GrammarInput | None
        if isinstance(self.format, FlatGrammar):
            format_ = chat.GrammarInput(chat.GrammarDefinition(self.format.definition, self.format.syntax))
        else:
            format_ = self.format
        return chat.CustomTool(chat.CustomDefinition(name, self.description, format_))


class Namespace(_Tagged, frozen=True, tag="namespace"):
    """Tools with a common prefix of their names."""

    name: ToolName
    tools: Annotated[list[FlatFunction | FlatCustomTool], Meta(min_length=1, max_length=caps.MAX_AGENT_TOOLS)]
    description: Description | None = None

    def __post_init__(self) -> None:
        if len(self.described_tools[0].description or "") > caps.MAX_DESCRIPTION_CHARS:
            most = caps.MAX_DESCRIPTION_CHARS
            raise Violation(
                "description", f"with the first tool's description, it has more than {most} characters"
            )

    @property
    def described_tools(self) -> list[FlatFunction | FlatCustomTool]:
        """The tools, the first one with the namespace's description: a copy in each would cost tokens."""
        if not self.description:
            return self.tools
        first, *others = self.tools
        about = f"All tools whose names begin with '{self.name}{SEPARATOR}': {self.description}"
        description = f"{about}\n\n{first.description}" if first.description else about
        return [replace(first, description=description), *others]


class WebSearch(_Tagged, frozen=True, tag="web_search"):
    """OpenAI's web search. It is ignored, not refused, because coding agents send it with every request."""


class WebSearchPreview(_Tagged, frozen=True, tag="web_search_preview"):
    """The older name of `WebSearch`."""


class DatedWebSearch(_Tagged, frozen=True, tag="web_search_2025_08_26"):
    """A version of `WebSearch`."""


class DatedWebSearchPreview(_Tagged, frozen=True, tag="web_search_preview_2025_03_11"):
    """A version of `WebSearchPreview`."""


AnyWebSearch = WebSearch | WebSearchPreview | DatedWebSearch | DatedWebSearchPreview
Tool = FlatFunction | FlatCustomTool | Namespace | AnyWebSearch
Tools = Annotated[list[Tool], Meta(max_length=caps.MAX_AGENT_TOOLS)]


class FlatFunctionChoice(_Tagged, frozen=True, tag="function"):
    """This function must be called."""

    name: ToolName
    namespace: ToolName | None = None

    @property
    def as_chat(self) -> chat.FunctionChoice:
        """The choice as chat completions have it."""
        return chat.FunctionChoice(chat.Named(flat_name(self.namespace, self.name)))


class FlatCustomChoice(_Tagged, frozen=True, tag="custom"):
    """This custom tool must be called."""

    name: ToolName
    namespace: ToolName | None = None

    @property
    def as_chat(self) -> chat.CustomChoice:
        """The choice as chat completions have it."""
        return chat.CustomChoice(chat.Named(flat_name(self.namespace, self.name)))


ToolByName = FlatFunctionChoice | FlatCustomChoice


class FlatAllowedTools(_Tagged, frozen=True, tag="allowed_tools"):
    """Only these tools may be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolByName], Meta(min_length=1, max_length=caps.MAX_AGENT_TOOLS)]


# Choices that are words in OpenAI's reference, and that Cursor and others send as an object with `type`.
_WORDS: Final = {"auto": "auto", "none": "none", "required": "required", "any": "required"}
ToolChoice = Literal["none", "auto", "required"] | ToolByName | FlatAllowedTools


def plain_choice(choice: object) -> object:
    """Return the choice in the form of OpenAI's reference; some clients send other forms."""
    match choice:
        case {"type": "tool", **others}:
            return {"type": "function", **others}
        case {"type": str(kind)}:
            return _WORDS.get(kind, choice)
        case _:
            return choice


def flat_name(namespace: str | None, name: str) -> str:
    """Return the name under which an upstream gets the tool."""
    return name if namespace is None else namespace + SEPARATOR + name


def chat_tools(tools: Mapping[str, Tool]) -> list[chat.Tool]:
    """Return the tools as chat completions have them. `tools`: by their paths in the request.

    Raises `InvalidRequest`.
    """
    found: list[chat.Tool] = []
    names: set[str] = set()
    for tool, name, param in _flat(tools):
        if len(name) > caps.MAX_NAME_CHARS:
            allowed = f"with its namespace it may have {caps.MAX_NAME_CHARS - len(SEPARATOR)} characters"
            raise InvalidRequest(f"Invalid value for '{param}': {allowed}.", param)
        if name in names:
            raise InvalidRequest(f"Invalid value for '{param}': there are two tools '{name}'.", param)
        names.add(name)
        found.append(tool.named(name))
    if len(found) > caps.MAX_AGENT_TOOLS:
        allowed = f"expected at most {caps.MAX_AGENT_TOOLS} tools, those of namespaces too"
        raise InvalidRequest(f"Invalid value for 'tools': {allowed}.", "tools")
    return found


def whole_tool(tool: Tool) -> dict[str, Any]:
    """Return a tool with all members that the published types require, for the response object."""
    sent: dict[str, Any] = msgspec.to_builtins(tool)
    match tool:
        case Namespace():
            return {"description": ""} | sent | {"tools": [whole_tool(inner) for inner in tool.tools]}
        case FlatFunction():
            return dict.fromkeys(("type", "name", "description", "parameters", "strict")) | sent
        case FlatCustomTool() | WebSearch() | WebSearchPreview() | DatedWebSearch() | DatedWebSearchPreview():
            return sent
        case _:
            assert_never(tool)


def left_out(tools: Mapping[str, Tool]) -> list[str]:
    """Return the paths of the tools that no upstream gets."""
    return [path for path, tool in tools.items() if isinstance(tool, AnyWebSearch)]


def namespaces(tools: Iterable[Tool]) -> dict[str, tuple[str, str]]:
    """Return the namespace and the short name of each tool in a namespace, by its flat name."""
    return {
        flat_name(space.name, tool.name): (space.name, tool.name)
        for space in tools
        if isinstance(space, Namespace)
        for tool in space.tools
    }


def chat_choice(choice: ToolChoice, tools: list[chat.Tool]) -> chat.ToolChoice:
    """Return the choice as chat completions have it. Raises `InvalidRequest` for an unknown tool."""
    if isinstance(choice, str):
        return choice
    known = {tool.choice for tool in tools}
    if not isinstance(choice, FlatAllowedTools):
        return _chosen(choice, known, "tool_choice.name")
    named = enumerate(choice.tools)
    allowed = [_chosen(each, known, f"tool_choice.tools[{index}].name") for index, each in named]
    return chat.AllowedToolsChoice(chat.AllowedTools(choice.mode, msgspec.to_builtins(allowed)))


def _flat(tools: Mapping[str, Tool]) -> Iterator[tuple[FlatFunction | FlatCustomTool, str, str]]:
    """Yield each tool that upstreams get, with its flat name and the path of its name in the request."""
    for path, tool in tools.items():
        match tool:
            case Namespace():
                for index, inner in enumerate(tool.described_tools):
                    yield inner, flat_name(tool.name, inner.name), f"{path}.tools[{index}].name"
            case FlatFunction() | FlatCustomTool():
                yield tool, tool.name, f"{path}.name"
            case WebSearch() | WebSearchPreview() | DatedWebSearch() | DatedWebSearchPreview():
                pass  # `left_out` names it
            case _:
                assert_never(tool)


def _chosen(choice: ToolByName, known: set[chat.ToolByName], param: str) -> chat.ToolByName:
    chosen = choice.as_chat
    if chosen not in known:
        raise InvalidRequest(f"Invalid value for '{param}': there is no tool '{chosen.name}'.", param)
    return chosen
