"""The messages of a chat request: every role, every kind of content part (OpenAI's API reference, "Create
chat completion").

Members that OpenAI's reference does not have are dropped, except those that some deployments take:
`reasoning_content`, `thoughts`, `is_error`, `cache_control` and `extra_content`. Where a member may be
absent, `null` is the same.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal, assert_never

import msgspec
from msgspec import UNSET, Meta, UnsetType

from chatapi.wire.caps import (
    MAX_CONTENT_PARTS,
    MAX_ID_CHARS,
    MAX_NAME_CHARS,
    MAX_PART_DATA_CHARS,
    MAX_TOOL_CALLS,
)
from chatapi.wire.invalid_request import Violation

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]
Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID_CHARS)]

# Possessive (`++`): else a refusal takes ten times as long as an acceptance. No SVG: its renderers fetch what
# it refers to.
_IMAGE_URL = re.compile(
    r"data:image/(?:png|jpe?g|webp|gif|bmp|tiff|avif|hei[cf]);base64,[A-Za-z0-9+/]++={0,2}"
)
_BASE64 = re.compile(r"[A-Za-z0-9+/]++={0,2}")
_FILE_DATA = re.compile(r"(?:data:[a-z]{1,32}/[A-Za-z0-9.+-]{1,128};base64,)?[A-Za-z0-9+/]++={0,2}")
# No slash: some gateways fetch a file id that is a URL.
_FILE_ID = re.compile(r"[A-Za-z0-9._-]+")
# A domain name that ends in letters: no IP address in any notation, no user@, no backslash, and no name of a
# private network (RFC 6761 and 6762, ICANN's .internal). The upstream resolves the name when it fetches the
# picture, so each deployment has to allow remote pictures (`Deployment.allow_remote_media`).
_INNER_NAMES = "internal|local|localdomain|localhost|lan|home|corp|intranet|private|arpa|onion|svc"
_REMOTE_URL = re.compile(
    r"https?://(?:[A-Za-z0-9-]{1,63}\.)+"
    rf"(?!(?i:{_INNER_NAMES})(?![A-Za-z]))[A-Za-z]{{2,63}}"
    r"(?::[0-9]{1,5})?(?:/[!-\[\]-~]*)?"
)
_MAX_REMOTE_URL_CHARS = 2_048


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """The root of content parts and tool calls."""


# OpenAI's own mark; `CacheControl` is Anthropic's.
class PromptCacheBreakpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a cached prefix."""

    mode: Literal["explicit"]
    ttl: Literal["30m", "12h"] | None = None


class CacheControl(msgspec.Struct, frozen=True, omit_defaults=True):
    """Anthropic's mark: the prompt is cached up to here."""

    # Texts and not literals: Anthropic adds values, and only its deployments read them.
    type: Annotated[str, Meta(max_length=16)]
    ttl: Annotated[str, Meta(max_length=16)] | None = None


class TextPart(_Part, frozen=True, tag="text"):
    """A piece of text."""

    text: str
    prompt_cache_breakpoint: PromptCacheBreakpoint | None = None
    cache_control: CacheControl | None = None
    """Only for deployments that ask for it; the same in other parts and in messages."""


class RefusalPart(_Part, frozen=True, tag="refusal"):
    """A piece of an assistant's refusal."""

    refusal: str


class ImageUrl(msgspec.Struct, frozen=True, omit_defaults=True):
    """A picture: a `data:` URL, or the URL of a remote one."""

    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None

    def __post_init__(self) -> None:
        # Only bitmaps: other formats, such as SVG, may refer to further files and servers.
        if not self.is_remote:
            _check_media(
                "url",
                self.url,
                _IMAGE_URL,
                "data:image/<png, jpeg, webp, gif or another bitmap>;base64,<data>",
            )
        # The upstream fetches it from inside its own network, so the host must be a public name.
        elif len(self.url) > _MAX_REMOTE_URL_CHARS or not _REMOTE_URL.fullmatch(self.url):
            raise _unsupported("url", "expected a data: URL, or http(s) with a public host name")

    @property
    def is_remote(self) -> bool:
        """Whether the upstream would have to fetch it."""
        return not self.url.startswith("data:")


class ImagePart(_Part, frozen=True, tag="image_url"):
    """A picture."""

    image_url: ImageUrl
    prompt_cache_breakpoint: PromptCacheBreakpoint | None = None
    cache_control: CacheControl | None = None


class InputAudio(msgspec.Struct, frozen=True):
    """A sound, in base64."""

    data: str
    format: Literal["wav", "mp3"]

    def __post_init__(self) -> None:
        _check_media("data", self.data, _BASE64, "base64")


class AudioPart(_Part, frozen=True, tag="input_audio"):
    """A sound."""

    input_audio: InputAudio
    prompt_cache_breakpoint: PromptCacheBreakpoint | None = None


class File(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file in base64, or the id of one that the upstream has."""

    file_data: str | None = None
    file_id: Id | None = None
    filename: Id | None = None

    def __post_init__(self) -> None:
        # With both, it is not clear which one the model sees.
        if (self.file_data is None) == (self.file_id is None):
            raise Violation("file_data", "a file must have exactly one of file_data and file_id")
        if self.file_data is not None:
            _check_media("file_data", self.file_data, _FILE_DATA, "base64, or data:<type>;base64,<data>")
        if self.file_id is not None and not _FILE_ID.fullmatch(self.file_id):
            raise _unsupported("file_id", "expected the id of an uploaded file")


class FilePart(_Part, frozen=True, tag="file"):
    """A file."""

    file: File
    prompt_cache_breakpoint: PromptCacheBreakpoint | None = None
    cache_control: CacheControl | None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """A function's name and its arguments (JSON text as the model wrote it)."""

    name: Id
    arguments: str


class CalledCustomTool(msgspec.Struct, frozen=True):
    """A custom tool's name and its input."""

    name: Id
    input: str


class FunctionCall(_Part, frozen=True, tag="function"):
    """A call of a function that the assistant made."""

    id: Id
    function: CalledFunction
    extra_content: Any = None
    """Data that the upstream wants back with the call (`openai_request.EXTRA_CONTENT`), if it is a dict."""


class CustomCall(_Part, frozen=True, tag="custom"):
    """A call of a custom tool that the assistant made."""

    id: Id
    custom: CalledCustomTool
    extra_content: Any = None

    @property
    def as_function(self) -> FunctionCall:
        """The call for upstreams that get the tool as a function (`CustomTool.as_function`)."""
        arguments = msgspec.json.encode({"input": self.custom.input}).decode()
        return FunctionCall(self.id, CalledFunction(self.custom.name, arguments), self.extra_content)


class AudioId(msgspec.Struct, frozen=True):
    """An earlier spoken answer."""

    id: Id


TextParts = Annotated[list[TextPart], Meta(min_length=1, max_length=MAX_CONTENT_PARTS)]
MediaPart = ImagePart | AudioPart | FilePart
UserPart = TextPart | MediaPart
Part = UserPart | RefusalPart
UserParts = Annotated[list[UserPart], Meta(min_length=1, max_length=MAX_CONTENT_PARTS)]
AssistantParts = Annotated[list[TextPart | RefusalPart], Meta(min_length=1, max_length=MAX_CONTENT_PARTS)]
ToolCalls = Annotated[list[FunctionCall | CustomCall], Meta(max_length=MAX_TOOL_CALLS)]


class Thought(msgspec.Struct, frozen=True, omit_defaults=True):
    """Earlier reasoning: `thinking` with Anthropic's signature, or `data`, which is encrypted."""

    thinking: str = ""
    signature: str = ""
    data: str = ""


class _Message(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="role"):
    """The root of messages."""


class DeveloperMessage(_Message, frozen=True, tag="developer"):
    """Instructions, under the role that newer models have for them."""

    content: str | TextParts
    name: Name | None = None


class SystemMessage(_Message, frozen=True, tag="system"):
    """Instructions."""

    content: str | TextParts
    name: Name | None = None


class UserMessage(_Message, frozen=True, tag="user"):
    """A message of the user."""

    content: str | UserParts
    name: Name | None = None


class AssistantMessage(_Message, frozen=True, tag="assistant"):
    """An earlier answer of the model: text, a refusal, calls of tools, or speech."""

    # Null and absent are different: the upstream gets what the client sent.
    content: str | AssistantParts | UnsetType | None = UNSET
    name: Name | None = None
    refusal: str | None = None
    tool_calls: ToolCalls | None = None
    function_call: CalledFunction | None = None
    audio: AudioId | None = None
    reasoning_content: str | None = None
    """Earlier reasoning, for deployments that ask for it (`openai_request.REASONING`)."""
    thoughts: Annotated[list[Thought], Meta(max_length=MAX_CONTENT_PARTS)] | None = None
    """The same from Anthropic's Messages, block by block."""
    cache_control: CacheControl | None = None

    def __post_init__(self) -> None:
        # OpenAI's reference: content is required unless tool_calls or function_call is specified.
        if self.content is None or self.content is UNSET:
            instead = (self.refusal, self.tool_calls or None, self.function_call, self.audio)
            if instead == (None, None, None, None):
                allowed = "it is required unless the message has tool_calls, function_call, refusal or audio"
                raise Violation("content", allowed, "missing_required_parameter")


OUTPUT_BEHIND: Final = "The output is in the next message."
"""The text of a tool message if the output is pictures or files, which only a user message can hold."""


class ToolMessage(_Message, frozen=True, tag="tool"):
    """The result of a tool call."""

    content: str | TextParts
    tool_call_id: Id
    is_error: bool | None = False
    cache_control: CacheControl | None = None


# For agents that still use the deprecated `functions`.
class FunctionMessage(_Message, frozen=True, tag="function"):
    """The result of a function call (deprecated)."""

    content: str | None
    name: Name


Message = DeveloperMessage | SystemMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage


def texts(message: Message) -> Iterator[str]:
    """Yield the texts of the message that every model reads; `optional_texts` yields the others."""
    if isinstance(message.content, str):
        yield message.content
    elif message.content:
        yield from _part_texts(message.content)
    if isinstance(message, AssistantMessage):
        yield from _assistant_texts(message)
    # A chat template writes names before the texts, so they cost tokens, too.
    elif not isinstance(message, ToolMessage) and message.name:
        yield message.name


def optional_texts(message: Message) -> Iterator[str]:
    """Yield the texts that most models do not read, or their deployments do not get: earlier reasoning, and
    signatures; ids of tool calls, which some chat templates write.
    """
    if isinstance(message, ToolMessage):
        yield message.tool_call_id
    if isinstance(message, AssistantMessage):
        yield from filter(None, (message.reasoning_content,))
        for thought in message.thoughts or ():
            # Anthropic shows a summary of its reasoning, charges the reasoning, and has it in the signature.
            yield from filter(None, (thought.thinking, thought.signature, thought.data))
        for call in message.tool_calls or ():
            yield call.id
            if call.extra_content:
                yield msgspec.json.encode(call.extra_content).decode()


def has_cache_mark(message: Message) -> bool:
    """Return whether the message or one of its parts has a `cache_control`."""
    parts = message.content if isinstance(message.content, list) else ()
    return any(getattr(each, "cache_control", None) is not None for each in (message, *parts))


def media(messages: list[Message]) -> Iterator[tuple[str, MediaPart]]:
    """Yield each content part that is not text, with its path."""
    for index, message in enumerate(messages):
        if not isinstance(message.content, str) and isinstance(message, UserMessage):
            for part_index, part in enumerate(message.content):
                if not isinstance(part, TextPart):
                    yield f"messages[{index}].content[{part_index}]", part


def _check_media(member: str, data: str, allowed: re.Pattern[str], shape: str) -> None:
    # The length first, because the pattern reads all of the data.
    if len(data) > MAX_PART_DATA_CHARS:
        raise _unsupported(member, f"expected at most {MAX_PART_DATA_CHARS} characters")
    if not allowed.fullmatch(data):
        raise _unsupported(member, f"expected {shape}")


def _unsupported(member: str, allowed: str) -> Violation:
    return Violation(member, allowed, "unsupported_media")


def _part_texts(parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        match part:
            case TextPart():
                yield part.text
            case RefusalPart():
                yield part.refusal
            case ImagePart() | AudioPart() | FilePart():
                pass
            case _:
                assert_never(part)


def _assistant_texts(message: AssistantMessage) -> Iterator[str]:
    yield from filter(None, (message.name, message.refusal))
    if message.function_call:
        yield from (message.function_call.name, message.function_call.arguments)
    for call in message.tool_calls or ():
        function = (call if isinstance(call, FunctionCall) else call.as_function).function
        yield from (function.name, function.arguments)
