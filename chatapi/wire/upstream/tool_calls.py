"""Puts an upstream's tool call fragments in order: contiguous numbers, one id and one name per call, said
once.

OpenAI numbers the calls of a choice and says `id` and `name` on a call's first fragment. Others leave out the
number or the id, give every call the number 0, or repeat id or name on every fragment; clients join what they
get ("call_1call_1"), so none of this may reach them.
"""

from collections.abc import Iterable
from typing import Any
from uuid import uuid4

import msgspec

from chatapi.wire.caps import MAX_TOOL_CALLS
from chatapi.wire.deltas import FinishReason, ToolCall, ToolKind
from chatapi.wire.json_guard import as_object
from chatapi.wire.upstream.upstream_errors import INVALID_RESPONSE, UpstreamError


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
        """Which kind of call this is."""
        return "function" if self.custom is None else "custom"

    @property
    def name(self) -> str:
        """The called function's or tool's name, empty when this fragment does not say it."""
        called = self.custom or self.function
        return (called.name if called else None) or ""

    @property
    def arguments(self) -> str:
        """The piece of the call's argument, as text even where an upstream sent an object."""
        if self.custom is not None:
            return self.custom.input or ""
        arguments = self.function.arguments if self.function else None
        # Some upstreams send an object, as Ollama's own API has it.
        return msgspec.json.encode(arguments).decode() if isinstance(arguments, dict) else arguments or ""


class _LegacyFragment(Fragment, gc=False):
    """A piece of the deprecated `function_call`."""

    @property
    def kind(self) -> ToolKind:
        """The kind that no element of `tool_calls` is."""
        return "function_call"


class _Call:
    """A call in progress. Its first piece waits until the name is known, as only that piece may say it."""

    def __init__(self, number: int, fragment: Fragment, used_ids: set[str]) -> None:
        """`used_ids`: the ids that calls of the choice have."""
        self.number = number
        self._used_ids = used_ids
        self.upstream_index = fragment.index
        self.kind = fragment.kind
        self.upstream_id = fragment.id
        self.name = ""
        self._extra_content: dict[str, Any] | None = None
        self._arguments: list[str] = []

    def is_continued_by(self, fragment: Fragment) -> bool:
        """Whether the fragment, which has this call's number, belongs to it.

        Only a name can start another call: some servers make up an id for each fragment.
        """
        # Without a name it can only go on: a call that begins has one.
        if not self.name or not fragment.name or self.kind == "function_call":
            return True
        if fragment.id and self.upstream_id:
            return fragment.id == self.upstream_id
        # The name again, behind a whole object: the same tool is called once more.
        return fragment.name == self.name and not as_object("".join(self._arguments))

    def add(self, fragment: Fragment, choice_index: int) -> ToolCall | None:
        """The piece to tell for this fragment, if there is one."""
        is_known = bool(self.name)
        arguments = fragment.arguments
        self._arguments.append(arguments)
        if is_known:
            return ToolCall(self.number, arguments, index=choice_index, kind=self.kind) if arguments else None
        self.name = fragment.name
        self.upstream_id = self.upstream_id or fragment.id
        if isinstance(fragment.extra_content, dict):
            self._extra_content = self._extra_content or fragment.extra_content
        if not self.name:
            return None
        return ToolCall(
            self.number,
            "".join(self._arguments),
            self._new_id(),
            self.name,
            choice_index,
            self.kind,
            self._extra_content,
        )

    def _new_id(self) -> str | None:
        """Return the upstream's id, or one of ours if it has none, or has given it to another call."""
        if self.kind == "function_call":
            return None
        # Not the call's number: clients match results by id within a whole conversation.
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
        """The pieces that these fragments of one chunk give; raises `UpstreamError` for too many calls."""
        # An empty fragment would open a call that never gets a name.
        said = (fragment for fragment in fragments if fragment.id or fragment.name or fragment.arguments)
        pieces = (self._call_of(fragment).add(fragment, self._choice_index) for fragment in said)
        return [piece for piece in pieces if piece is not None]

    def read_legacy(self, function: Function) -> list[ToolCall]:
        """The piece, if any, that this fragment of a `function_call` gives: the only call of its choice,
        without an id.
        """
        return self.read([_LegacyFragment(index=0, function=function)])

    @property
    def has_nameless_call(self) -> bool:
        """Whether a call's name never came: nobody can carry it out."""
        return not all(call.name for call in self._calls)

    def reason_for(self, reason: FinishReason) -> FinishReason:
        """Return the reason for which the choice ended: agents carry no calls out after a `stop`, which some
        upstreams say even so.
        """
        if reason != "stop" or not self._calls:
            return reason
        return "function_call" if self._calls[0].kind == "function_call" else "tool_calls"

    def _call_of(self, fragment: Fragment) -> _Call:
        call = self._known_by_id(fragment) or (
            self._latest if fragment.index is None else self._by_index.get(fragment.index)
        )
        if call is None or not call.is_continued_by(fragment):
            # A model that repeats itself can call for ever, and each call takes memory until the end.
            if len(self._calls) == MAX_TOOL_CALLS:
                raise UpstreamError(INVALID_RESPONSE)
            call = _Call(len(self._calls), fragment, self._used_ids)
            self._calls.append(call)
        # The latest call of an index: some servers give all calls the index 0.
        if fragment.index is not None:
            self._by_index[fragment.index] = call
        if fragment.id:
            self._by_id[fragment.id] = call
        return call

    def _known_by_id(self, fragment: Fragment) -> _Call | None:
        """The call of the fragment's id, which is not the latest where several share an index; and they may
        share an id instead.
        """
        call = self._by_id.get(fragment.id) if fragment.id else None
        return call if call is not None and fragment.index in (None, call.upstream_index) else None

    @property
    def _latest(self) -> _Call | None:
        return self._calls[-1] if self._calls else None
