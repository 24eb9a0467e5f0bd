"""The items of a response's output, and the events that stream them piece by piece.

The whole item is kept until its end, because its last events repeat all of it.
"""

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

from chatapi.wire.deltas import TokenLogprob, ToolCall, ToolKind
from chatapi.wire.json_guard import as_object
from chatapi.wire.protocols.responses.items import Call, CustomToolCall, FunctionCallItem

# An event's type, and its members except `type` and `sequence_number`.
Event = tuple[str, dict[str, Any]]
Status = Literal["in_progress", "completed", "incomplete"]
_to_json = msgspec.json.Encoder().encode
PartKind = Literal["output_text", "refusal", "reasoning_text", "summary_text"]


# The most log probabilities, as JSON, in an event that repeats them; the stream's last event has all of them.
MAX_REPEATED_BYTES: Final = 65_536


class _Form(NamedTuple):
    """The names of the events and members of a kind of part."""

    events: str
    part_events: str
    number: str
    """The member that numbers the parts of an item."""
    member: str
    """The member that holds the whole text."""


_CONTENT: Final = "response.content_part"
_FORMS: Final[dict[PartKind, _Form]] = {
    "output_text": _Form("response.output_text", _CONTENT, "content_index", "text"),
    "refusal": _Form("response.refusal", _CONTENT, "content_index", "refusal"),
    "reasoning_text": _Form("response.reasoning_text", _CONTENT, "content_index", "text"),
    "summary_text": _Form(
        "response.reasoning_summary_text", "response.reasoning_summary_part", "summary_index", "text"
    ),
}


class CallForm(NamedTuple):
    """The form of an output item for a kind of call."""

    item: type[Call]
    """The item that clients send back; it has the type of the output item, and the prefix of its ids."""
    events: str
    member: str
    """The member that holds the whole text."""
    is_json: bool
    """Whether the text is a JSON object, so that its end is visible; free text has no visible end."""
    repeats_name: bool
    """Whether the event that ends the text also has the tool's name."""


_FUNCTION: Final = CallForm(
    FunctionCallItem, "response.function_call_arguments", "arguments", is_json=True, repeats_name=True
)
CALL_FORMS: Final[dict[ToolKind, CallForm]] = {
    "function": _FUNCTION,
    "custom": CallForm(
        CustomToolCall, "response.custom_tool_call_input", "input", is_json=False, repeats_name=False
    ),
    # An upstream may send one, though no request of this protocol has the deprecated `functions`.
    "function_call": _FUNCTION,
}
assert CALL_FORMS.keys() == {*get_args(ToolKind)}, "a kind of call has no form"
assert {form.item for form in CALL_FORMS.values()} == {*get_args(Call)}, "an item is the call of no kind"


class _Text:
    """A growing text, in one buffer: a list of its pieces would take ten times the memory."""

    def __init__(self) -> None:
        self._utf8 = bytearray()

    def add(self, piece: str) -> None:
        # A model's token may be half of a surrogate pair.
        self._utf8 += piece.encode("utf-8", "surrogatepass")

    def __str__(self) -> str:
        return self._utf8.decode("utf-8", "surrogatepass")


class Part:
    """A growing part of a message or of a reasoning item."""

    def __init__(self, kind: PartKind, place: dict[str, Any], index: int) -> None:
        """`place`: the members that name its item."""
        self.kind = kind
        self._form = _FORMS[kind]
        self._place = place | {self._form.number: index}
        self._text = _Text()
        self._annotations: list[dict[str, Any]] = []
        self._logprobs: list[bytes] = []

    @property
    def text(self) -> str:
        return str(self._text)

    @property
    def logprobs(self) -> msgspec.Raw:
        """All log probabilities. They are kept as JSON: decoded, they would take ten times the memory."""
        return msgspec.Raw(b"[" + b",".join(self._logprobs) + b"]")

    @property
    def repeated_logprobs(self) -> msgspec.Raw:
        """All log probabilities, or none if they are large, for events that are not the stream's last."""
        return self.logprobs if sum(map(len, self._logprobs)) <= MAX_REPEATED_BYTES else msgspec.Raw(b"[]")

    def body(self, *, is_event: bool = False) -> dict[str, Any]:
        """Return the part as it is now."""
        body: dict[str, Any] = {"type": self.kind, self._form.member: self.text}
        if self.kind == "output_text":
            logprobs = self.repeated_logprobs if is_event else self.logprobs
            body |= {"annotations": self._annotations, "logprobs": logprobs}
        return body

    def begin(self) -> Event:
        return f"{self._form.part_events}.added", self._place | {"part": self.body(is_event=True)}

    def add(self, text: str, logprobs: list[TokenLogprob] | None = None) -> Event:
        """Append a piece of text."""
        self._text.add(text)
        members = self._place | {"delta": text}
        if self.kind == "output_text":
            new = [_to_json(_logprob(each)) for each in logprobs or ()]
            self._logprobs += new
            members["logprobs"] = [msgspec.Raw(each) for each in new]
        return f"{self._form.events}.delta", members

    def annotate(self, annotation: dict[str, Any]) -> Event:
        """Append a citation; it is flat here, and nested in chat completions."""
        kind = annotation.get("type")
        nested = annotation.get(kind) if isinstance(kind, str) else None
        flat = {"type": kind} | nested if isinstance(nested, dict) else annotation
        self._annotations.append(flat)
        place = self._place | {"annotation_index": len(self._annotations) - 1, "annotation": flat}
        return "response.output_text.annotation.added", place

    def end(self) -> Iterator[Event]:
        whole: dict[str, Any] = {self._form.member: self.text}
        if self.kind == "output_text":
            whole["logprobs"] = self.repeated_logprobs
        yield f"{self._form.events}.done", self._place | whole
        yield f"{self._form.part_events}.done", self._place | {"part": self.body(is_event=True)}


class OutputItem:
    """A growing item of the output."""

    def __init__(self, id: str, index: int) -> None:
        self.id = id
        self.status: Status = "in_progress"
        self.index = index
        self.place = {"item_id": id, "output_index": index}

    def body(self, *, is_event: bool = False) -> dict[str, Any]:
        """Return the item as it is now."""
        raise NotImplementedError

    def contents_end(self) -> Iterator[Event]:
        """Yield the events that end the item's content."""
        raise NotImplementedError

    def begin(self) -> Event:
        return "response.output_item.added", {"output_index": self.index, "item": self.body()}

    def end(self, status: Status) -> Iterator[Event]:
        """Yield the item's last events, and set its status."""
        yield from self.contents_end()
        self.status = status
        yield "response.output_item.done", {"output_index": self.index, "item": self.body(is_event=True)}


class Spoken(OutputItem):
    """A message or a reasoning item, which has parts."""

    def __init__(self, id: str, index: int, type: Literal["message", "reasoning"]) -> None:
        super().__init__(id, index)
        self.type = type
        self._parts: list[Part] = []

    def body(self, *, is_event: bool = False) -> dict[str, Any]:
        parts = [part.body(is_event=is_event) for part in self._parts]
        if self.type == "message":
            members = {"id": self.id, "type": "message", "status": self.status, "role": "assistant"}
            return members | {"content": parts}
        summary = [part for part in parts if part["type"] == "summary_text"]
        content = [part for part in parts if part["type"] == "reasoning_text"]
        body = {"id": self.id, "type": "reasoning", "status": self.status, "summary": summary}
        return body | ({"content": content} if content else {}) | {"encrypted_content": None}

    def has_part(self, kind: PartKind) -> bool:
        """Return whether the open part is of that kind."""
        return bool(self._parts) and self._parts[-1].kind == kind

    def begin_part(self, kind: PartKind) -> Event:
        self._parts.append(Part(kind, self.place, len(self._parts)))
        return self.part.begin()

    @property
    def part(self) -> Part:
        return self._parts[-1]

    def contents_end(self) -> Iterator[Event]:
        if self._parts:
            yield from self.part.end()


class OutputCall(OutputItem):
    """A call of a tool."""

    def __init__(
        self, id: str, index: int, call_id: str, first: ToolCall, namespace: tuple[str, str] | None
    ) -> None:
        """`namespace`: the namespace of its tool, and the tool's short name."""
        super().__init__(id, index)
        self.call_index = first.call_index
        self._call_id = call_id
        self._form = CALL_FORMS[first.kind]
        self._name = namespace[1] if namespace else first.name or ""
        self._namespace = namespace[0] if namespace else None
        self._text = _Text()

    @property
    def arguments(self) -> str:
        return str(self._text)

    @property
    def is_json(self) -> bool:
        """Whether the arguments must be a JSON object."""
        return self._form.is_json

    @property
    def is_whole(self) -> bool:
        """Whether no further arguments can follow."""
        return self.is_json and as_object(self.arguments) is not None

    def body(self, *, is_event: bool = False) -> dict[str, Any]:
        body = {"id": self.id, "type": self._form.item.__struct_config__.tag, "status": self.status}
        body |= {"call_id": self._call_id, "name": self._name, self._form.member: self.arguments}
        return body if self._namespace is None else body | {"namespace": self._namespace}

    def add(self, arguments: str) -> Event:
        self._text.add(arguments)
        return f"{self._form.events}.delta", self.place | {"delta": arguments}

    def contents_end(self) -> Iterator[Event]:
        name = {"name": self._name} if self._form.repeats_name else {}
        yield f"{self._form.events}.done", self.place | name | {self._form.member: self.arguments}


def _logprob(of: TokenLogprob) -> dict[str, Any]:
    """Return a token's log probability; the published types require its bytes."""
    others = [
        {"token": other.token, "logprob": other.logprob, "bytes": _bytes(other.token, other.bytes)}
        for other in of.top_logprobs
    ]
    token = {
        "token": of.token,
        "logprob": of.logprob,
        "bytes": _bytes(of.token, of.bytes),
    }
    return token | {"top_logprobs": others}


def _bytes(token: str, known: list[int] | None) -> list[int]:
    return list(token.encode("utf-8", "replace")) if known is None else known
