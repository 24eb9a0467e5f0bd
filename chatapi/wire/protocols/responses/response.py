"""A growing response: the object, and the events of its stream (OpenAI's API reference, "Responses").

A stream is `response.created`, `response.in_progress`, the events of each item of the output, and one
terminal event with the whole object. There is no `[DONE]`. One item is open at a time: content of others is
held back until the open one is whole.
"""

from collections.abc import Iterator
from typing import Any, Final, Literal, assert_never, get_args

import msgspec

from chatapi.wire.deltas import (
    Annotations,
    AnyDelta,
    Audio,
    ChatContent,
    Failed,
    Finished,
    OtherContent,
    Reasoning,
    Refusal,
    Started,
    Text,
    TokenLogprob,
    ToolCall,
    Usage,
)
from chatapi.wire.protocols.envelope import END_LOST, renamed
from chatapi.wire.protocols.protocol import Answer
from chatapi.wire.protocols.responses.items import ID_PREFIXES
from chatapi.wire.protocols.responses.output import (
    CALL_FORMS,
    Event,
    OutputCall,
    OutputItem,
    PartKind,
    Spoken,
    Status,
)

ID_PREFIX: Final = "resp_"
# The members of a response object that repeat the request, with the values for a request without them.
DEFAULTS: Final[dict[str, Any]] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
# See `Protocol.parameter_names`.
PARAMETER_NAMES: Final = {
    "logprobs": "include",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
}
_NO_PENALTIES: Final = {"presence_penalty": 0.0, "frequency_penalty": 0.0}
# The most calls and parts of an output that are sent as they come. Content that would begin another one is
# held back and joined, because the last event repeats them all.
MAX_PARTS: Final = 1_024
# The kinds of parts that a delta may belong to.
_PARTS: Final[dict[type[AnyDelta], tuple[PartKind, ...]]] = {
    Text: ("output_text",),
    Annotations: ("output_text",),
    Refusal: ("refusal",),
    Reasoning: ("reasoning_text", "summary_text"),
}
_CONTENT: Final = (ToolCall, *_PARTS)
assert {*_CONTENT, Audio} == set(get_args(ChatContent)), "content is of a part, or in no response"
_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]
_to_json = msgspec.json.Encoder().encode
_default_echo = _to_json(DEFAULTS)


class Response:
    """A growing response: deltas in, events out."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.status: ResponseStatus = "queued"
        self.usage: Usage | None = None
        self.failure: Failed | None = None
        self._echo = _default_echo
        self._context: dict[str, Any] = {}
        self._model = answer.model
        self._service_tier = "default"
        self._incomplete_reason: str | None = None
        self._is_cut = False
        self._items: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._held = _Held()
        self._parts_count = 0
        self._call_ids: set[str] = set()
        self._ended_calls: set[int] = set()

    def add(self, delta: AnyDelta) -> Iterator[Event]:
        """Add one delta, and yield its events; the caller must take all of them."""
        match delta:
            case Started():
                yield from self._start(delta)
            case Finished():
                yield from self._finish(delta)
            case Usage():
                self.usage = delta
                if self.status in ("queued", "in_progress"):
                    yield from self.fail(END_LOST, is_end=True)
                    return
                event = "completed" if self.status == "completed" else "incomplete"
                yield f"response.{event}", self._snapshot()
            case Failed():
                yield from self.fail(delta, is_end=True)
            case _ if isinstance(delta, OtherContent):
                pass
            case _ if self._must_wait(delta):
                self._held.add(delta)
            case _:
                yield from self._content(delta)

    def fail(self, failure: Failed, *, is_end: bool) -> Iterator[Event]:
        """Yield the end of a broken response.

        Items that have ended stay completed. Of the items that were held back until now, a call is completed
        if its arguments are a JSON object and another item follows it; all others are incomplete.

        `is_end`: the generation has ended, not only this stream. Then held-back content is sent first,
        because it is charged.
        """
        failure = renamed(failure, PARAMETER_NAMES)
        self.failure, self.status = failure, "failed"
        if is_end:
            yield from self._release()
        if self._open is not None:
            self._open.status = "incomplete"
        error = {
            "type": failure.type,
            "code": failure.code,
            "message": failure.message,
            "param": failure.param,
        }
        # Clients read either form: nested, as OpenAI's servers send it, or flat, as its reference has it.
        yield "error", {key: error[key] for key in ("code", "message", "param")} | {"error": error}
        yield "response.failed", self._snapshot()

    def expect(self, context: dict[str, Any]) -> None:
        """Set the parts of its request that the response repeats."""
        self._context = context
        self._echo = context.get("echo", "").encode() or _default_echo

    @property
    def output(self) -> list[dict[str, Any]]:
        """The items that have ended."""
        return [item.body() for item in self._items if item.status != "in_progress"]

    def object(self) -> bytes:
        """Return the response object as it is now, as JSON; an open item is no part of it."""
        head = {
            "id": ID_PREFIX + self.answer.id,
            "object": "response",
            "created_at": self.answer.created,
            "completed_at": self._completed_at,
            "status": self.status,
            "error": self.failure
            and {"code": self.failure.code or "server_error", "message": self.failure.message},
            "incomplete_details": self._incomplete_reason and {"reason": self._incomplete_reason},
            "model": self._model,
            "output": self.output,
            "service_tier": self._service_tier,
            "store": self._context.get("is_stored", False),
            "usage": self.usage and usage_body(self.usage),
            **_NO_PENALTIES,
        }
        return _to_json(head)[:-1] + b"," + self._echo[1:]

    @property
    def _completed_at(self) -> int | None:
        """The time of its completion, not before its creation: the two times come from different clocks."""
        if self.usage is None or self.usage.completed_at is None or self.status != "completed":
            return None
        return max(self.usage.completed_at, self.answer.created)

    def _snapshot(self) -> dict[str, Any]:
        return {"response": msgspec.Raw(self.object())}

    # ---- beginning and end

    def _start(self, delta: Started) -> Iterator[Event]:
        self.expect(delta.context)
        self._model = delta.model or self._model
        self._service_tier = delta.service_tier or "default"
        is_queued = "is_background" in delta.context
        self.status = "queued" if is_queued else "in_progress"
        yield "response.created", self._snapshot()
        if is_queued:
            yield "response.queued", self._snapshot()
            self.status = "in_progress"
        yield "response.in_progress", self._snapshot()

    def _finish(self, delta: Finished) -> Iterator[Event]:
        """End the output. In a cut response, the last item and each call that is not whole are incomplete."""
        self._incomplete_reason = _INCOMPLETE.get(delta.finish_reason)
        self._is_cut = self._incomplete_reason is not None or delta.is_cancelled
        yield from self._release()
        if not self._items:
            yield from self._begin(Spoken(self._item_id(ID_PREFIXES["message"]), 0, "message"))
            yield from self._part("output_text")
        yield from self._end_item("incomplete" if self._is_cut else "completed")
        if delta.is_cancelled:
            self.status = "cancelled"
        else:
            self.status = "incomplete" if self._is_cut else "completed"

    def _release(self) -> Iterator[Event]:
        """Yield the events of the held-back content."""
        for delta in self._held.take():
            yield from self._content(delta)

    # ---- content

    def _must_wait(self, delta: ChatContent) -> bool:
        """Return whether the delta would begin another part while a call is incomplete, or one too many."""
        if not isinstance(delta, _CONTENT) or self._continues(delta):
            return False
        if self._held or self._parts_count >= MAX_PARTS:
            return True
        return isinstance(self._open, OutputCall) and not self._open.is_whole

    def _continues(self, delta: ChatContent) -> bool:
        if isinstance(self._open, OutputCall):
            return isinstance(delta, ToolCall) and delta.call_index == self._open.call_index
        return isinstance(self._open, Spoken) and self._open.part.kind in _PARTS.get(type(delta), ())

    def _content(self, delta: ChatContent) -> Iterator[Event]:
        match delta:
            case Text(logprobs=logprobs):
                yield from self._say("message", "output_text", delta.text, logprobs)
            case Refusal():
                yield from self._say("message", "refusal", delta.text)
            case Reasoning():
                has_summary = "has_summary" in self._context
                yield from self._say(
                    "reasoning", "summary_text" if has_summary else "reasoning_text", delta.text
                )
            case ToolCall():
                yield from self._call(delta)
            case Annotations():
                yield from self._annotate(delta)
            case Audio():
                pass  # no request of this protocol can ask for them
            case _:
                assert_never(delta)

    def _say(
        self,
        item_type: Literal["message", "reasoning"],
        kind: PartKind,
        text: str,
        logprobs: list[TokenLogprob] | None = None,
    ) -> Iterator[Event]:
        if not text and not logprobs:
            return
        yield from self._spoken(item_type, kind)
        assert isinstance(self._open, Spoken)
        yield self._open.part.add(text, logprobs)

    def _annotate(self, delta: Annotations) -> Iterator[Event]:
        yield from self._spoken("message", "output_text")
        assert isinstance(self._open, Spoken)
        for annotation in delta.annotations:
            yield self._open.part.annotate(annotation)

    def _call(self, delta: ToolCall) -> Iterator[Event]:
        if delta.call_index in self._ended_calls:
            return  # only white space can follow a whole call
        if not isinstance(self._open, OutputCall) or self._open.call_index != delta.call_index:
            yield from self._end_item("completed")
            yield from self._begin(self._new_call(delta))
            self._parts_count += 1
        assert isinstance(self._open, OutputCall)
        if delta.arguments:
            yield self._open.add(delta.arguments)

    def _new_call(self, first: ToolCall) -> OutputCall:
        index = len(self._items)
        call_id = first.id or ""
        if not call_id or call_id in self._call_ids:
            call_id = self._item_id("call")
        self._call_ids.add(call_id)
        namespace = self._context.get("namespaces", {}).get(first.name)
        id_prefix = CALL_FORMS[first.kind].item.id_prefix
        return OutputCall(self._item_id(id_prefix), index, call_id, first, namespace)

    # ---- items and parts

    def _spoken(self, item_type: Literal["message", "reasoning"], kind: PartKind) -> Iterator[Event]:
        """Yield the events after which an item of that type and a part of that kind are open."""
        if not isinstance(self._open, Spoken) or self._open.type != item_type:
            yield from self._end_item("completed")
            yield from self._begin(Spoken(self._item_id(ID_PREFIXES[item_type]), len(self._items), item_type))
        yield from self._part(kind)

    def _part(self, kind: PartKind) -> Iterator[Event]:
        assert isinstance(self._open, Spoken)
        if not self._open.has_part(kind):
            self._parts_count += 1
            if self.failure is None:
                yield from self._open.contents_end()
            yield self._open.begin_part(kind)

    def _begin(self, item: OutputItem) -> Iterator[Event]:
        self._items.append(item)
        self._open = item
        yield item.begin()

    def _end_item(self, status: Status) -> Iterator[Event]:
        if self._open is None:
            return
        is_whole = False
        if isinstance(self._open, OutputCall):
            self._ended_calls.add(self._open.call_index)
            is_whole = self._open.is_whole
            if self._is_cut and self._open.is_json and not is_whole:
                status = "incomplete"  # also if held-back content follows
        if self.failure is None or is_whole:
            yield from self._open.end(status)
        else:
            self._open.status = "incomplete"  # without an event that ends it
        self._open = None

    def _item_id(self, prefix: str) -> str:
        """Return the id of the next item; it has the response's id inside (`stored.response_of`)."""
        return f"{prefix}_{self.answer.id}{len(self._items):02x}"


def usage_body(usage: Usage) -> dict[str, Any]:
    """Return the usage object; the published types require every number, so an unknown one is 0."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens or 0,
            "cache_write_tokens": usage.cache_write_tokens or 0,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.total_tokens,
    }


class _Held:
    """Held-back deltas, grouped by kind and by call, in the order in which the groups began. Each group is
    joined, because an item's last event repeats all of it.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple[type[ChatContent], int], list[Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, delta: ChatContent) -> None:
        group = type(delta), delta.call_index if isinstance(delta, ToolCall) else 0
        self._groups.setdefault(group, []).append(delta)

    def take(self) -> list[ChatContent]:
        """Return the deltas, joined by group, and forget them."""
        groups, self._groups = self._groups, {}
        return [delta for first, *following in groups.values() for delta in first.joined(following)]
