"""Normalizes an upstream's tool calls: contiguous numbers, and one id and one name per call, each sent once.

OpenAI numbers the calls of a choice and sends `id` and `name` on a call's first fragment. Others leave out
the number or the id, give every call the number 0, or repeat id or name on every fragment. These must not
reach clients, which join the fragments ("call_1call_1").
"""

from collections.abc import Iterable
from typing import Any
from uuid import uuid4

import msgspec

from chatapi.wire.caps import MAX_TOOL_CALLS
from chatapi.wire.deltas import FinishReason, ToolCall, ToolKind
from chatapi.wire.json_guard import as_object
from chatapi.wire.upstream.upstream_errors import INVALID_RESPONSE, UpstreamError

_WHITESPACE = " \t\r\n"
"""JSON's: RFC 8259, section 2."""
_NO_MARK = bytes(set(range(256)) - set(b'"{}'))


class Function(msgspec.Struct, gc=False):
    """A fragment of a function call."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class Custom(msgspec.Struct, gc=False):
    """A fragment of a custom tool's call."""

    name: str | None = None
    input: str | None = None


class Fragment(msgspec.Struct, gc=False):
    """One element of `tool_calls`, of a chunk's delta or of a whole message."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None
    custom: Custom | None = None
    extra_content: Any = None

    @property
    def kind(self) -> ToolKind:
        return "function" if self.custom is None else "custom"

    @property
    def name(self) -> str:
        """The name of the function or tool; empty if the fragment does not have it."""
        called = self.custom or self.function
        return (called.name if called else None) or ""

    @property
    def arguments(self) -> str:
        """The next part of the arguments, as text even if the upstream sent an object, as Ollama does."""
        if self.custom is not None:
            return self.custom.input or ""
        arguments = self.function.arguments if self.function else None
        return msgspec.json.encode(arguments).decode() if isinstance(arguments, dict) else arguments or ""


class _LegacyFragment(Fragment, gc=False):
    """A fragment of the deprecated `function_call`."""

    @property
    def kind(self) -> ToolKind:
        return "function_call"


class _Arguments:
    """The arguments of one call so far."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._scanned = 0
        self._depth = 0
        # Marks at the end of the scanned pieces that change the meaning of the next one: the quote of an open
        # string, and a backslash in it.
        self._unfinished = b""
        self._is_object: bool | None = None

    def add(self, piece: str) -> None:
        if piece:
            self._pieces.append(piece)

    def text(self) -> str:
        return "".join(self._pieces)

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def are_complete(self) -> bool:
        """Return whether the arguments are one whole JSON object.

        If an upstream repeats the name, this is called for each fragment. So it scans each piece once, and
        parses the text once: when the first brace outside of strings is closed.
        """
        added = "".join(self._pieces[self._scanned :])
        self._scanned = len(self._pieces)
        is_blank = not added.strip(_WHITESPACE)
        if self._is_object is not None:
            self._is_object = self._is_object and is_blank
            return self._is_object
        text = self._unfinished + added.encode(errors="replace")
        text = text.replace(rb"\\", b"").replace(rb"\"", b"")
        # The parts between quotes are alternately outside and inside of strings.
        parts = text.translate(None, _NO_MARK).replace(b'""', b"").split(b'"')
        outside = b"".join(parts[::2])
        self._depth += outside.count(b"{") - outside.count(b"}")
        is_in_string = len(parts) % 2 == 0
        self._unfinished = (b'"' if is_in_string else b"") + (b"\\" if text.endswith(b"\\") else b"")
        if self._depth <= 0 and not self._unfinished and not is_blank:
            self._is_object = as_object(self.text()) is not None
        return bool(self._is_object)


class _Call:
    """A call in progress. Its first delta waits until the name is known, because no later delta has it."""

    def __init__(self, number: int, fragment: Fragment, used_ids: set[str]) -> None:
        """`used_ids`: the ids of all calls of the choice."""
        self.number = number
        self._used_ids = used_ids
        self.upstream_index = fragment.index
        self.kind = fragment.kind
        self.upstream_id = fragment.id
        self.name = ""
        self._extra_content: dict[str, Any] | None = None
        self._arguments = _Arguments()

    @property
    def lacks_arguments(self) -> bool:
        """Whether a client that decodes the arguments so far as JSON would fail because there are none."""
        return self.kind != "custom" and not self._arguments

    def is_continued_by(self, fragment: Fragment) -> bool:
        """Return whether the fragment, which has this call's index or id, continues the call.

        Only a name can begin another call: some servers make up an id for each fragment.
        """
        # Every call begins with a name, so a fragment without one continues this call.
        if not self.name or not fragment.name or self.kind == "function_call":
            return True
        if fragment.id and self.upstream_id:
            return fragment.id == self.upstream_id
        # The same name after a whole object is another call of the same tool.
        return fragment.name == self.name and not self._arguments.are_complete()

    def add(self, fragment: Fragment, choice_index: int) -> ToolCall | None:
        """Return the delta to publish; None before the name is known, or if the fragment adds nothing."""
        arguments = fragment.arguments
        # Servers in Go write null for no arguments. SDKs parse what has come so far, and fail on white space.
        if self.lacks_arguments and arguments.strip(_WHITESPACE) in ("", "null"):
            arguments = ""
        self._arguments.add(arguments)
        if self.name:
            return ToolCall(self.number, arguments, index=choice_index, kind=self.kind) if arguments else None
        self.name = fragment.name
        self.upstream_id = self.upstream_id or fragment.id
        # A delta has it only beside the name, so a later one is left out.
        if isinstance(fragment.extra_content, dict):
            self._extra_content = self._extra_content or fragment.extra_content
        if not self.name:
            return None
        return ToolCall(
            self.number,
            self._arguments.text(),
            self._new_id(),
            self.name,
            choice_index,
            self.kind,
            self._extra_content,
        )

    def _new_id(self) -> str | None:
        """Return the upstream's id, or a new one if it is missing or another call has it."""
        if self.kind == "function_call":
            return None
        # Random, not the call's number: clients match results by id within the whole conversation.
        new_id = self.upstream_id
        if not new_id or new_id in self._used_ids:
            new_id = f"call_{uuid4().hex}"
        self._used_ids.add(new_id)
        return new_id


class ToolCallReader:
    """The tool calls of one choice."""

    def __init__(self, choice_index: int) -> None:
        self._choice_index = choice_index
        self._calls: list[_Call] = []
        self._used_ids: set[str] = set()
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}

    def read(self, fragments: Iterable[Fragment]) -> list[ToolCall]:
        """Return the deltas of a chunk's fragments. Raises `UpstreamError` for too many calls."""
        # An empty fragment would begin a call that never gets a name.
        meaningful = (each for each in fragments if each.id or each.name or each.arguments)
        deltas = (self._call_of(fragment).add(fragment, self._choice_index) for fragment in meaningful)
        return [delta for delta in deltas if delta is not None]

    def read_legacy(self, function: Function) -> list[ToolCall]:
        """Return the deltas of a fragment of `function_call`, the only call of its choice, without an id."""
        return self.read([_LegacyFragment(index=0, function=function)])

    @property
    def has_nameless_call(self) -> bool:
        """Whether a call has no name, so that no client could execute it."""
        return not all(call.name for call in self._calls)

    def reason_for(self, reason: FinishReason) -> FinishReason:
        """Return the finish reason to send: `stop` becomes that of calls if there are calls.

        Some upstreams send `stop` even then, and agents execute no calls after it.
        """
        if reason != "stop" or not self._calls:
            return reason
        return "function_call" if self._calls[0].kind == "function_call" else "tool_calls"

    def empty_objects(self) -> list[ToolCall]:
        """Return `{}` as the arguments of each call without any, for a choice that has ended with calls."""
        return [
            ToolCall(call.number, "{}", index=self._choice_index, kind=call.kind)
            for call in self._calls
            if call.lacks_arguments
        ]

    def _call_of(self, fragment: Fragment) -> _Call:
        call = self._find(fragment)
        if call is None or not call.is_continued_by(fragment):
            # A model that repeats itself may begin calls without end, and each takes memory.
            if len(self._calls) == MAX_TOOL_CALLS:
                raise UpstreamError(INVALID_RESPONSE)
            call = _Call(len(self._calls), fragment, self._used_ids)
            self._calls.append(call)
        # An index stands for its latest call.
        if fragment.index is not None:
            self._by_index[fragment.index] = call
        if fragment.id:
            self._by_id[fragment.id] = call
        return call

    def _find(self, fragment: Fragment) -> _Call | None:
        """Return the call that the fragment names by id or by index; without either, the latest one."""
        # By id first, because some servers give all calls the index 0. Others give all calls one id, but
        # different indexes.
        call = self._by_id.get(fragment.id) if fragment.id else None
        if call is not None and fragment.index in (None, call.upstream_index):
            return call
        if fragment.index is not None:
            return self._by_index.get(fragment.index)
        return self._calls[-1] if self._calls else None
