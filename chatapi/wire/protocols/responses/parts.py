"""The parts of messages, of tool outputs, and of reasoning. Other members of a part are dropped."""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from chatapi.wire import caps
from chatapi.wire.messages import Id, PromptCacheBreakpoint


class Tagged(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """The base of objects whose `type` says which one it is."""


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """The base of the parts of messages and outputs."""

    sdk_members: ClassVar[dict[str, Any]]
    """The members by which SDKs recognize it and that requests may leave out, with their defaults."""


class InputText(_Part, frozen=True, tag="input_text"):
    """A piece of text."""

    sdk_members: ClassVar = {}
    text: str
    prompt_cache_breakpoint: PromptCacheBreakpoint | None = None


class InputImage(_Part, frozen=True, tag="input_image"):
    """A picture: a `data:` URL, or the URL of a remote one."""

    sdk_members: ClassVar = {"detail": "auto"}
    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None
    prompt_cache_breakpoint: PromptCacheBreakpoint | None = None


class InputFile(_Part, frozen=True, tag="input_file"):
    """A file in base64."""

    sdk_members: ClassVar = {}
    file_data: str | None = None
    filename: Id | None = None
    file_id: str | None = None
    file_url: str | None = None
    prompt_cache_breakpoint: PromptCacheBreakpoint | None = None


class OutputText(_Part, frozen=True, tag="output_text"):
    """A piece of an earlier answer."""

    sdk_members: ClassVar = {"annotations": [], "logprobs": []}
    text: str


class OutputRefusal(_Part, frozen=True, tag="refusal"):
    """A piece of an earlier refusal."""

    sdk_members: ClassVar = {}
    refusal: str


class SummaryText(Tagged, frozen=True, tag="summary_text"):
    """A piece of a reasoning's summary."""

    text: str


class ReasoningText(Tagged, frozen=True, tag="reasoning_text"):
    """A piece of reasoning."""

    text: str


InputPart = InputText | InputImage | InputFile
InputParts = Annotated[list[InputPart], Meta(max_length=caps.MAX_CONTENT_PARTS)]
MessagePart = InputPart | OutputText | OutputRefusal
MessageParts = Annotated[list[MessagePart], Meta(max_length=caps.MAX_CONTENT_PARTS)]
