"""The items of a request's `input`, and the chat messages that they become.

Items without a `type` are messages, or references. Other members of an item are dropped.
"""

from typing import Annotated, Any, ClassVar, Final, Literal, assert_never, get_args

import msgspec
from msgspec import Meta

from chatapi.wire import caps
from chatapi.wire.invalid_request import InvalidRequest, Violation
from chatapi.wire.messages import (
    OUTPUT_BEHIND,
    AssistantMessage,
    CalledCustomTool,
    CalledFunction,
    CustomCall,
    DeveloperMessage,
    File,
    FilePart,
    FunctionCall,
    Id,
    ImagePart,
    ImageUrl,
    Message,
    SystemMessage,
    TextPart,
    ToolMessage,
    UserMessage,
    UserPart,
)
from chatapi.wire.parameters import ToolName
from chatapi.wire.protocols.responses.parts import (
    InputFile,
    InputImage,
    InputParts,
    InputText,
    MessagePart,
    MessageParts,
    OutputRefusal,
    OutputText,
    ReasoningText,
    SummaryText,
    Tagged,
)
from chatapi.wire.protocols.responses.tools import Tools, flat_name

_BETWEEN_MESSAGES: Final = "\n\n"

# A model may call a tool that does not exist, even by a name that is not valid for a tool.
CalledName = Annotated[str, Meta(min_length=1, max_length=2 * caps.MAX_NAME_CHARS)]


class _Item(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", kw_only=True):
    """The base of items."""

    id_prefix: ClassVar[str]
    """The prefix of the ids that this service gives to items of this type."""
    sdk_members: ClassVar[dict[str, Any]]
    """The members by which SDKs recognize it and that requests may leave out, with their defaults."""
    id: Id | None = None


class MessageItem(_Item, frozen=True, tag="message", kw_only=True):
    """A message."""

    id_prefix: ClassVar = "msg"
    sdk_members: ClassVar = {}
    role: Literal["user", "assistant", "system", "developer"]
    content: str | MessageParts


class FunctionCallItem(_Item, frozen=True, tag="function_call", kw_only=True):
    """A call of a function that the model made."""

    id_prefix: ClassVar = "fc"
    sdk_members: ClassVar = {}
    call_id: Id
    name: CalledName
    arguments: str
    namespace: ToolName | None = None

    @property
    def as_chat(self) -> FunctionCall:
        """The call as chat completions have it."""
        called = CalledFunction(flat_name(self.namespace, self.name), self.arguments)
        return FunctionCall(self.call_id, called)


class FunctionCallOutput(_Item, frozen=True, tag="function_call_output", kw_only=True):
    """The result of a function call."""

    id_prefix: ClassVar = "fco"
    sdk_members: ClassVar = {}
    call_id: Id
    output: str | InputParts


class CustomToolCall(_Item, frozen=True, tag="custom_tool_call", kw_only=True):
    """A call of a custom tool that the model made."""

    id_prefix: ClassVar = "ctc"
    sdk_members: ClassVar = {}
    call_id: Id
    name: CalledName
    input: str
    namespace: ToolName | None = None

    @property
    def as_chat(self) -> CustomCall:
        """The call as chat completions have it."""
        called = CalledCustomTool(flat_name(self.namespace, self.name), self.input)
        return CustomCall(self.call_id, called)


class CustomToolCallOutput(_Item, frozen=True, tag="custom_tool_call_output", kw_only=True):
    """The result of a custom tool call."""

    id_prefix: ClassVar = "ctco"
    sdk_members: ClassVar = {}
    call_id: Id
    output: str | InputParts


class ReasoningItem(_Item, frozen=True, tag="reasoning", kw_only=True):
    """Reasoning of the model. `encrypted_content` is dropped, because it can't be read here."""

    id_prefix: ClassVar = "rs"
    sdk_members: ClassVar = {"summary": []}
    summary: Annotated[list[SummaryText], Meta(max_length=caps.MAX_CONTENT_PARTS)] | None = None
    content: Annotated[list[ReasoningText], Meta(max_length=caps.MAX_CONTENT_PARTS)] | None = None

    @property
    def text(self) -> str:
        """The reasoning itself, else its summary."""
        return "\n\n".join(part.text for part in self.content or self.summary or ())


class ItemReference(Tagged, frozen=True, tag="item_reference", kw_only=True):
    """An item of an earlier response, by its id."""

    id: Id


# Codex sends all its tools in such an item, for models that its catalog marks with `use_responses_lite`.
class AdditionalTools(Tagged, frozen=True, tag="additional_tools", kw_only=True):
    """Tools that the model may call, in addition to the request's `tools`."""

    tools: Tools


class WebSearchCall(_Item, frozen=True, tag="web_search_call", kw_only=True):
    """A search by OpenAI's servers. It has no text, so it is ignored."""


# Items of OpenAI's own tools and servers. They are refused: without them the conversation would be another.
BUILT_IN: Final = frozenset(
    {
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "configuration_update",
        "file_search_call",
        "image_generation_call",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
    }
)
Call = FunctionCallItem | CustomToolCall
Output = FunctionCallOutput | CustomToolCallOutput
WholeItem = MessageItem | Call | Output | ReasoningItem
IgnoredItem = WebSearchCall
Item = WholeItem | ItemReference | AdditionalTools | IgnoredItem
_READ: Final = {item.__struct_config__.tag for item in get_args(Item)}
assert BUILT_IN.isdisjoint(_READ), f"read and refused: {BUILT_IN & _READ}"
# By the item's type.
ID_PREFIXES: Final[dict[str, str]] = {
    item.__struct_config__.tag: item.id_prefix for item in get_args(WholeItem)
}
Items = Annotated[list[Item], Meta(min_length=1, max_length=caps.MAX_MESSAGES)]


class _Turn:
    """Consecutive items of the assistant, joined to one message: chat templates refuse one for each call."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.refusals: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[FunctionCall | CustomCall] = []

    def message(self) -> AssistantMessage | None:
        """Return the message; None if there is nothing but reasoning."""
        if not (self.texts or self.refusals or self.calls):
            return None
        return AssistantMessage(
            _BETWEEN_MESSAGES.join(self.texts) if self.texts else None,
            refusal="".join(self.refusals) if self.refusals else None,
            tool_calls=self.calls or None,
            reasoning_content="\n\n".join(self.reasoning) or None,
        )


class Conversation:
    """Builds chat messages from items."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.media_param: str | None = None
        """The client's name for the first remote picture."""
        self._turn = _Turn()
        self._pictures: list[ImagePart | FilePart] = []
        self._call_ids: set[str] = set()

    def add(self, item: WholeItem, path: str) -> None:
        """Add the item that the client knows by this path. Raises `InvalidRequest`."""
        if not isinstance(item, Output):
            self._end_outputs()
        match item:
            case MessageItem(role="assistant"):
                self._add_answer(item, path)
            case FunctionCallItem() | CustomToolCall():
                self._call_ids.add(item.call_id)
                if len(self._turn.calls) == caps.MAX_TOOL_CALLS:
                    raise _invalid(path, f"expected at most {caps.MAX_TOOL_CALLS} calls in a row")
                self._turn.calls.append(item.as_chat)
            case ReasoningItem():
                self._turn.reasoning += [item.text] if item.text else []
            case FunctionCallOutput() | CustomToolCallOutput():
                self.end_turn()
                self._add_output(item, path)
            case MessageItem():
                self.end_turn()
                self._add_message(item, path)
            case _:
                assert_never(item)

    def end(self) -> list[Message]:
        self._end_outputs()
        self.end_turn()
        return self.messages

    def end_turn(self) -> None:
        """End the assistant's turn."""
        turn, self._turn = self._turn, _Turn()
        if (message := turn.message()) is not None:
            self.messages.append(message)

    def _end_outputs(self) -> None:
        """Append the outputs' pictures after their tool messages."""
        if self._pictures:
            self.messages.append(UserMessage([*self._pictures]))
            self._pictures = []

    def _add_answer(self, item: MessageItem, path: str) -> None:
        parts: MessageParts = [OutputText(item.content)] if isinstance(item.content, str) else item.content
        texts = []
        for index, part in enumerate(parts):
            match part:
                case InputText() | OutputText():
                    texts.append(part.text)
                case OutputRefusal():
                    self._turn.refusals.append(part.refusal)
                case InputImage() | InputFile():
                    raise _wrong_part(f"{path}.content[{index}]", "'output_text', 'refusal'")
                case _:
                    assert_never(part)
        if texts or not parts:
            self._turn.texts.append("".join(texts))

    def _add_output(self, item: Output, path: str) -> None:
        if item.call_id not in self._call_ids:
            what = str(item.__struct_config__.tag).replace("_", " ") + f" with call_id {item.call_id}"
            raise InvalidRequest(f"No tool call found for {what}.", f"{path}.call_id")
        if isinstance(item.output, str):
            self.messages.append(ToolMessage(item.output, item.call_id))
            return
        texts: list[TextPart] = []
        for index, part in enumerate(item.output):
            converted = self._part(part, f"{path}.output[{index}]")
            if isinstance(converted, TextPart):
                texts.append(converted)
            elif len(self._pictures) == caps.MAX_CONTENT_PARTS:
                raise _invalid(path, f"expected at most {caps.MAX_CONTENT_PARTS} pictures and files in a row")
            else:
                self._pictures.append(converted)
        self.messages.append(ToolMessage(texts or (OUTPUT_BEHIND if item.output else ""), item.call_id))

    def _add_message(self, item: MessageItem, path: str) -> None:
        content: str | list[UserPart]
        if isinstance(item.content, str):
            content = item.content
        elif not item.content:
            raise _invalid(f"{path}.content", "expected at least one part")
        else:
            content = [self._part(part, f"{path}.content[{i}]") for i, part in enumerate(item.content)]
        if item.role == "user":
            self.messages.append(UserMessage(content))
            return
        if not isinstance(content, str):
            for index, part in enumerate(content):
                if not isinstance(part, TextPart):
                    raise _wrong_part(f"{path}.content[{index}]", "'input_text'")
        kind = SystemMessage if item.role == "system" else DeveloperMessage
        self.messages.append(kind(content))  # type: ignore[arg-type]  # all parts are text

    def _part(self, part: MessagePart, path: str) -> TextPart | ImagePart | FilePart:
        match part:
            case InputText():
                return TextPart(part.text, part.prompt_cache_breakpoint)
            case InputImage():
                return self._image(part, path)
            case InputFile():
                return _file(part, path)
            case OutputText() | OutputRefusal():
                raise _wrong_part(path, "'input_text', 'input_image', 'input_file'")
            case _:
                assert_never(part)

    def _image(self, part: InputImage, path: str) -> ImagePart:
        if part.file_id is not None:
            raise _invalid(f"{path}.file_id", "files are not kept here, send image_url with a data: URL")
        param = f"{path}.image_url"
        if part.image_url is None:
            raise _missing(param)
        try:
            image = ImageUrl(part.image_url, part.detail)
        except Violation as broken:
            raise _invalid(param, broken.allowed, broken.code) from None
        if image.is_remote:
            self.media_param = self.media_param or param
        return ImagePart(image, part.prompt_cache_breakpoint)


def _file(part: InputFile, path: str) -> FilePart:
    for name in ("file_id", "file_url"):
        if getattr(part, name) is not None:
            raise _invalid(f"{path}.{name}", "files are not kept or fetched here, send file_data")
    if part.file_data is None:
        raise _missing(f"{path}.file_data")
    try:
        file = File(file_data=part.file_data, filename=part.filename)
    except Violation as broken:
        raise _invalid(f"{path}.file_data", broken.allowed, broken.code) from None
    return FilePart(file, part.prompt_cache_breakpoint)


def _invalid(param: str, allowed: str, code: str = "invalid_value") -> InvalidRequest:
    return InvalidRequest(f"Invalid value for '{param}': {allowed}.", param, code)


def _missing(param: str) -> InvalidRequest:
    return InvalidRequest(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def _wrong_part(path: str, allowed: str) -> InvalidRequest:
    return _invalid(f"{path}.type", f"in a message of this role, supported values are: {allowed}")
