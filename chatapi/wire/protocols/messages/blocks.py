"""The turns of a Messages request and their content blocks (Anthropic's API reference, "Create a Message").

Members that are not here are dropped: `citations`, and those of newer betas.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from chatapi.wire.caps import MAX_BASE64_CHARS, MAX_CONTENT_PARTS, MAX_ID_CHARS
from chatapi.wire.invalid_request import Violation
from chatapi.wire.messages import CacheControl, File, FilePart, Id, ImagePart, ImageUrl, Thought

# Anthropic's limit.
_Title = Annotated[str, Meta(max_length=500)]
_EXPECTED_DATA: Final = f"expected base64 of at most {MAX_BASE64_CHARS} characters"


class Tagged(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """The base of objects whose `type` says which one it is."""


class Dropped(msgspec.Struct, frozen=True, tag_field="type"):
    """The base of blocks that are accepted and dropped."""


class TextBlock(Tagged, frozen=True, tag="text"):
    """A piece of text."""

    text: str
    cache_control: CacheControl | None = None


# The formats that Anthropic's reference lists ("Vision").
class Base64Image(Tagged, frozen=True, tag="base64"):
    """A picture in base64."""

    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str

    def __post_init__(self) -> None:
        try:
            self.part()
        except Violation as broken:
            raise Violation("data", _EXPECTED_DATA, broken.code) from None

    def part(self) -> ImagePart:
        return ImagePart(ImageUrl(f"data:{self.media_type};base64,{self.data}"))


class URLImage(Tagged, frozen=True, tag="url"):
    """The URL of a picture."""

    url: str

    def __post_init__(self) -> None:
        self.part()

    def part(self) -> ImagePart:
        return ImagePart(ImageUrl(self.url))


class ImageBlock(Tagged, frozen=True, tag="image"):
    """A picture."""

    source: Base64Image | URLImage
    cache_control: CacheControl | None = None


class Base64Document(Tagged, frozen=True, tag="base64"):
    """A PDF in base64."""

    media_type: Literal["application/pdf"]
    data: str

    def __post_init__(self) -> None:
        try:
            self.part("")
        except Violation as broken:
            raise Violation("data", _EXPECTED_DATA, broken.code) from None

    def part(self, title: str) -> FilePart:
        data = f"data:{self.media_type};base64,{self.data}"
        return FilePart(File(file_data=data, filename=title[:MAX_ID_CHARS] or "document.pdf"))


class TextDocument(Tagged, frozen=True, tag="text"):
    """A text document."""

    media_type: Literal["text/plain"]
    data: str


class ContentDocument(Tagged, frozen=True, tag="content"):
    """A document made of blocks."""

    content: str | Annotated[list[TextBlock | ImageBlock], Meta(max_length=MAX_CONTENT_PARTS)]


class DocumentBlock(Tagged, frozen=True, tag="document"):
    """A document."""

    source: Base64Document | TextDocument | ContentDocument
    title: _Title | None = None
    context: str | None = None
    cache_control: CacheControl | None = None


class SearchResultBlock(Tagged, frozen=True, tag="search_result"):
    """A search result of the client: a text with its title and source."""

    source: str
    title: str
    content: Annotated[list[TextBlock], Meta(max_length=MAX_CONTENT_PARTS)]
    cache_control: CacheControl | None = None


# Only the search tool of Anthropic's servers uses it.
class ToolReferenceBlock(Dropped, frozen=True, tag="tool_reference"):
    """A tool that a search has found."""


ResultBlock = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock


# Its content may be left out: a tool may have no output.
class ToolResultBlock(Tagged, frozen=True, tag="tool_result"):
    """The result of a tool call."""

    tool_use_id: Id
    content: str | Annotated[list[ResultBlock], Meta(max_length=MAX_CONTENT_PARTS)] = ""
    is_error: bool = False
    cache_control: CacheControl | None = None


class ToolUseBlock(Tagged, frozen=True, tag="tool_use"):
    """A call of a tool that the model has made."""

    id: Id
    name: Id
    input: dict[str, Any]
    cache_control: CacheControl | None = None


class ThinkingBlock(Tagged, frozen=True, tag="thinking"):
    """Reasoning of the model in an earlier turn."""

    thinking: str = ""
    # Kept, because an Anthropic upstream refuses its own reasoning without it.
    signature: str = ""

    def thought(self) -> Thought:
        return Thought(self.thinking, self.signature)


class RedactedThinkingBlock(Tagged, frozen=True, tag="redacted_thinking"):
    """Encrypted reasoning of the model in an earlier turn."""

    data: str = ""

    def thought(self) -> Thought:
        return Thought(data=self.data)


class CompactionBlock(Tagged, frozen=True, tag="compaction"):
    """A summary of the conversation before it, made by Anthropic's servers."""

    # None if they could not make one.
    content: str | None = None
    cache_control: CacheControl | None = None


# Clients send back whole earlier answers, which may come from Anthropic. Refusing these blocks would end a
# conversation that began there.
class ServerToolUseBlock(Dropped, frozen=True, tag="server_tool_use"):
    """A call that Anthropic's servers made."""


class WebSearchToolResultBlock(Dropped, frozen=True, tag="web_search_tool_result"):
    pass


class WebFetchToolResultBlock(Dropped, frozen=True, tag="web_fetch_tool_result"):
    pass


class CodeExecutionToolResultBlock(Dropped, frozen=True, tag="code_execution_tool_result"):
    pass


class BashCodeExecutionToolResultBlock(Dropped, frozen=True, tag="bash_code_execution_tool_result"):
    pass


class TextEditorCodeExecutionToolResultBlock(
    Dropped, frozen=True, tag="text_editor_code_execution_tool_result"
):
    pass


class ToolSearchToolResultBlock(Dropped, frozen=True, tag="tool_search_tool_result"):
    pass


class MCPToolUseBlock(Dropped, frozen=True, tag="mcp_tool_use"):
    pass


class MCPToolResultBlock(Dropped, frozen=True, tag="mcp_tool_result"):
    pass


class MCPToolListingBlock(Dropped, frozen=True, tag="mcp_tool_listing"):
    pass


class AdvisorToolResultBlock(Dropped, frozen=True, tag="advisor_tool_result"):
    pass


class ContainerUploadBlock(Dropped, frozen=True, tag="container_upload"):
    pass


class FallbackBlock(Dropped, frozen=True, tag="fallback"):
    """The place where another Anthropic model continued the answer."""


DroppedBlock = (
    ServerToolUseBlock
    | WebSearchToolResultBlock
    | WebFetchToolResultBlock
    | CodeExecutionToolResultBlock
    | BashCodeExecutionToolResultBlock
    | TextEditorCodeExecutionToolResultBlock
    | ToolSearchToolResultBlock
    | MCPToolUseBlock
    | MCPToolResultBlock
    | MCPToolListingBlock
    | AdvisorToolResultBlock
    | ContainerUploadBlock
    | FallbackBlock
)


class ReferredTool(msgspec.Struct, frozen=True):
    """A reference to a tool of the request, or to the tools of an MCP server."""

    # Not `tool_definition`: its tool is not among the request's tools, so it would be lost.
    type: Literal["tool_reference", "mcp_tool_reference", "mcp_toolset_reference"]


# Claude Code sends all its tools in `tools`; these blocks are part of the conversation.
class ToolAdditionBlock(Dropped, frozen=True, tag="tool_addition"):
    """From here on, the model may call this tool."""

    tool: ReferredTool


class ToolRemovalBlock(Dropped, frozen=True, tag="tool_removal"):
    """From here on, the model may not call this tool."""

    tool: ReferredTool


UserBlock = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolResultBlock
AssistantBlock = (
    TextBlock | ToolUseBlock | ThinkingBlock | RedactedThinkingBlock | CompactionBlock | DroppedBlock
)
SystemBlock = TextBlock | ToolAdditionBlock | ToolRemovalBlock
Block = UserBlock | ResultBlock | AssistantBlock | SystemBlock


class _Turn(msgspec.Struct, frozen=True, tag_field="role"):
    """The base of turns."""


class UserTurn(_Turn, frozen=True, tag="user"):
    """A message of the user, and results of tools."""

    content: str | Annotated[list[UserBlock], Meta(min_length=1, max_length=MAX_CONTENT_PARTS)]


# It may be empty: Anthropic's own answers are, when a refusal comes first.
class AssistantTurn(_Turn, frozen=True, tag="assistant"):
    """An earlier answer of the model."""

    content: str | Annotated[list[AssistantBlock], Meta(max_length=MAX_CONTENT_PARTS)]


# Its content may be left out if it has an `output_config`, which is dropped.
class SystemTurn(_Turn, frozen=True, tag="system"):
    """Instructions for the conversation from here on."""

    content: str | Annotated[list[SystemBlock], Meta(min_length=1, max_length=MAX_CONTENT_PARTS)] = ""

    @property
    def has_text(self) -> bool:
        """Whether the turn has text; others only change the tools."""
        if isinstance(self.content, str):
            return self.content != ""
        return any(isinstance(block, TextBlock) and block.text for block in self.content)


Turn = UserTurn | AssistantTurn | SystemTurn


def said(turns: Sequence[Turn]) -> list[tuple[int, Turn]]:
    """Return the turns with their numbers, without system turns that have no text."""
    numbered = enumerate(turns)
    return [(number, turn) for number, turn in numbered if not isinstance(turn, SystemTurn) or turn.has_text]
