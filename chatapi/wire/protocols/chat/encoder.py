"""Chat completions: OpenAI's chunks and bodies (seed 001, OpenAI's API reference), in any dialect's style.

A stream is a role chunk, content chunks, one finish chunk per choice with an empty delta, a usage chunk if
`stream_options.include_usage` asks for it (then all other chunks have `usage: null`), and `data: [DONE]`. A
failure in mid-stream is an error frame and `[DONE]`. `style.py` has the differences of dialects.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, get_args

from chatapi.wire.completion import Choice, Completion, Logprobs
from chatapi.wire.deltas import (
    Annotations,
    AnyDelta,
    Audio,
    ChatDelta,
    Failed,
    Finished,
    FinishReason,
    Reasoning,
    Refusal,
    Started,
    Text,
    ToolCall,
    Usage,
)
from chatapi.wire.protocols.chat.chat_objects import (
    LogprobObjects,
    logprobs_member,
    message_body,
    piece_of_call,
    usage_body,
    whole_calls,
)
from chatapi.wire.protocols.chat.ordered_calls import OrderedCalls
from chatapi.wire.protocols.chat.style import DONE, OPENAI, Style, to_json
from chatapi.wire.protocols.envelope import END_LOST
from chatapi.wire.protocols.protocol import Answer, Dialect


class CompletionFolder(Completion):
    """Folds an answer into the one object that its encoder writes."""

    def __init__(self, encoder: "ChatEncoder") -> None:
        super().__init__(encoder.new_logprobs)
        self._encoder = encoder
        self._unfinished_count = encoder.answer.choices_count

    def add(self, delta: AnyDelta) -> None:
        super().add(delta)
        match delta:
            case Finished():
                self._unfinished_count -= 1
            case Usage() if self._unfinished_count > 0:
                self.failure = END_LOST

    def body(self) -> bytes:
        """Return the object; the usage must have come."""
        return self._encoder.body(self)


class ChatEncoder:
    """One chat completion: deltas in, bytes out. The style decides how a stream runs and ends; text
    completions (text_completions/encoder.py) override the content of chunks.
    """

    id_prefix: ClassVar[str] = "chatcmpl-"
    """The prefix of ids, unless the style has one."""
    chunk_object: ClassVar[str] = ""
    """The `object` of chunks; empty: the style's."""
    body_object: ClassVar[str] = "chat.completion"
    new_logprobs: ClassVar[type[Logprobs]] = LogprobObjects
    """Collects the log probabilities of a choice for `body`."""
    writers: ClassVar[Mapping[type[AnyDelta], str]] = {
        Started: "_started",
        Text: "_text",
        Reasoning: "_reasoning",
        Refusal: "_refusal",
        ToolCall: "_tool_call",
        Audio: "_audio",
        Annotations: "_annotations",
        Finished: "_finished",
        Usage: "usage",
        Failed: "_broken",
    }
    """The method that writes each delta, by name: text completions override it."""

    def __init__(self, answer: Answer, style: Style = OPENAI) -> None:
        self.answer = answer
        self.style = style
        self.public_id = self.to_public_id(style, answer.id)
        # OpenAI's reference, `include_usage`: all other chunks have `usage: null`.
        self._usage_field = b',"usage":null' if answer.include_usage and style.usage_is_opt_in else b""
        # The JSON of citations by choice, until the choice ends.
        self._citations: defaultdict[int, bytearray] = defaultdict(bytearray)
        self._ordered: defaultdict[int, OrderedCalls] = defaultdict(OrderedCalls)
        # For `Style.has_whole_calls`.
        self._calls = Completion() if style.has_whole_calls else None
        self._ended: list[Finished] = []
        # An answer may fail before its `Started`, and some dialects write a failure as a chunk.
        self._frame(Started())

    @classmethod
    def dialect(cls, style: Style) -> Dialect:
        return Dialect(
            name=style.name,
            public_id=partial(cls.to_public_id, style),
            encoder=partial(cls, style=style),
            folder=lambda answer: CompletionFolder(cls(answer, style)),
            envelope=style.envelope,
            requires_model=style.requires_model,
            refuses_idle_parameters=style.usage_is_opt_in,
            ignored_parameters=style.ignored_parameters,
        )

    @classmethod
    def prefix(cls, style: Style) -> str:
        """Return the prefix of the ids that clients see."""
        return style.id_prefix or cls.id_prefix

    @classmethod
    def to_public_id(cls, style: Style, id: str) -> str:
        """Return the id that clients see, from a generation's 32 hex digits."""
        return (style.id_prefix or cls.id_prefix) + style.id_form(id)

    # ---- streaming

    def encode(self, batch: Iterable[AnyDelta]) -> bytes:
        """Return the batch's chunks as server-sent events; a terminal delta brings the stream's end."""
        # A table by type: a `match` would try up to ten patterns for each delta.
        writers = self.writers
        return b"".join([getattr(self, writers[type(delta)])(delta) for delta in batch])

    def _started(self, delta: Started) -> bytes:
        self._frame(delta)
        return b"".join([self._announcement(index) for index in range(self.answer.choices_count)])

    def _announcement(self, index: int) -> bytes:
        """Return a choice's first chunk. All choices are announced together: SDKs need to see the indices 0,
        1, … in this order. Without a role, one choice needs no announcement.
        """
        if self.style.has_role:
            return self._chunk(index, b'{"role":"assistant"}')
        return self._chunk(index, self.style.empty_delta) if self.answer.choices_count > 1 else b""

    def _text(self, delta: Text) -> bytes:
        if delta.logprobs is None:  # nearly every delta: saves a call
            return b'%s{"index":%d,"delta":{"content":%s},%s' % (
                self._head,
                delta.index,
                to_json(delta.text),
                self._tail,
            )
        return self._chunk(
            delta.index, b'{"content":' + to_json(delta.text) + b"}", logprobs_member(delta.logprobs, None)
        )

    def _reasoning(self, delta: Reasoning) -> bytes:
        # Chat completions have no place for a signature or an encrypted block.
        if not delta.text:
            return b""
        # DeepSeek's name, which vLLM and most clients know; OpenAI's reference has none.
        return self._chunk(delta.index, b'{"reasoning_content":' + to_json(delta.text) + b"}")

    def _refusal(self, delta: Refusal) -> bytes:
        return self._chunk(
            delta.index, b'{"refusal":' + to_json(delta.text) + b"}", logprobs_member(None, delta.logprobs)
        )

    def _tool_call(self, delta: ToolCall) -> bytes:
        if self._calls is not None:
            self._calls.add(delta)
            return b""
        return b"".join(map(self._piece_of_call, self._ordered[delta.index].add(delta)))

    def _piece_of_call(self, delta: ToolCall) -> bytes:
        return self._chunk(delta.index, to_json(piece_of_call(delta)))

    def _held_calls(self, index: int) -> bytes:
        """Return the chunks of the choice's calls that are held back."""
        found = self._ordered.pop(index, None)
        return b"".join(map(self._piece_of_call, found.release())) if found else b""

    def _audio(self, delta: Audio) -> bytes:
        """Return the chunk as OpenAI writes it; its reference does not have it."""
        members = {
            "id": delta.id,
            "data": delta.data,
            "transcript": delta.transcript,
            "expires_at": delta.expires_at,
        }
        return self._chunk(
            delta.index, to_json({"audio": {name: value for name, value in members.items() if value}})
        )

    def _annotations(self, delta: Annotations) -> bytes:
        # One list for each choice, before its end: openai-python's `stream()` raises for a second one.
        self._citations[delta.index] += to_json(delta.annotations)[1:-1] + b","
        return b""

    def _finished(self, delta: Finished) -> bytes:
        self._ended.append(delta)
        before = self._held_calls(delta.index) + self._cited(delta.index)
        if self._calls is not None:
            before += self._whole_calls(self._calls.choice(delta.index))
        return before if self.style.usage_ends_choices else before + self._finish_chunk(delta)

    def _whole_calls(self, choice: Choice) -> bytes:
        """Return the chunk with the choice's tool calls, once the choice has ended."""
        called = whole_calls(choice)
        if "tool_calls" in called:
            called["tool_calls"] = [
                {"index": number, **call} for number, call in enumerate(called["tool_calls"])
            ]
        return self._chunk(choice.index, to_json(called)) if called else b""

    def _cited(self, index: int) -> bytes:
        """Return the chunk with the choice's citations; nothing if there are none."""
        found = self._citations.pop(index, None)
        return self._chunk(index, b'{"annotations":[%s]}' % found[:-1]) if found else b""

    def usage(self, usage: Usage) -> bytes:
        """Return the frames that end a complete stream."""
        if len(self._ended) < self.answer.choices_count:
            return self._broken(END_LOST)
        if self.style.usage_ends_choices:
            *others, last = self._ended
            ends = [self._finish_chunk(end) for end in others]
            self._usage_field = b',"usage":' + to_json(usage_body(usage))
            return b"".join(ends) + self._finish_chunk(last)
        # Every complete answer ends with a `Usage`, because it is settled; this client did not ask for it.
        if self.style.usage_is_opt_in and not self.answer.include_usage:
            return DONE
        return self._head + b'],"usage":' + to_json(usage_body(usage)) + b"}\n\n" + DONE

    def _broken(self, failure: Failed) -> bytes:
        """Return the end of a generation that broke off, behind the calls that are held back: they are
        charged.
        """
        return b"".join(map(self._held_calls, sorted(self._ordered))) + self.failed(failure)

    def failed(self, failure: Failed) -> bytes:
        """Return the frames that end a broken stream; see `protocol.Encoder`."""
        return self.style.failed(failure, self._head)

    def _frame(self, started: Started) -> None:
        """Prepare the beginning and the end of all chunks, so that a chunk costs three copies."""
        envelope = self._envelope(self.chunk_object or self.style.chunk_object, started)
        self._head = b"data: " + to_json(envelope)[:-1] + b',"choices":['
        self._tail = b'"finish_reason":null}]' + self._usage_field + b"}\n\n"

    def _envelope(self, object_: str, started: Started | Completion) -> dict[str, Any]:
        """Return the first members of chunks and bodies."""
        envelope = {
            "id": self.public_id,
            "object": object_,
            "created": self.answer.created,
            "model": started.model or self.answer.model,
        }
        # Left out if it is not known: the published type does not allow null.
        if started.system_fingerprint is not None:
            envelope["system_fingerprint"] = started.system_fingerprint
        if started.service_tier is not None:
            envelope["service_tier"] = started.service_tier
        return envelope

    def _finish_chunk(self, delta: Finished) -> bytes:
        return self._chunk(
            delta.index, self.style.empty_delta, finish_reason=self._word_for(delta.finish_reason)
        )

    def _chunk(
        self, index: int, delta: bytes, logprobs: bytes = b"", finish_reason: FinishReason | None = None
    ) -> bytes:
        tail = self._tail if finish_reason is None else self._finish_tail(finish_reason)
        return b'%s{"index":%d,"delta":%s,%s%s' % (self._head, index, delta, logprobs, tail)

    def _finish_tail(self, finish_reason: FinishReason) -> bytes:
        return b'"finish_reason":"%s"}]%s}\n\n' % (finish_reason.encode(), self._usage_field)

    def _word_for(self, finish_reason: FinishReason) -> FinishReason:
        """Return the dialect's word for the finish reason."""
        return self.style.finish_reasons.get(finish_reason, finish_reason)

    # ---- not streaming

    def body(self, completion: Completion) -> bytes:
        """Return the whole answer as one JSON object; `completion.usage` must be set."""
        assert completion.usage is not None, "a completion is only shown after its settlement"
        # All requested choices: one without any delta is an empty message, as in a stream.
        choices = [self._choice_body(completion.choice(index)) for index in range(self.answer.choices_count)]
        envelope = self._envelope(self.body_object, completion)
        return to_json(envelope | {"choices": choices, "usage": usage_body(completion.usage)})

    def _choice_body(self, choice: Choice) -> dict[str, Any]:
        logprobs = None
        if choice.logprobs is not None or choice.refusal_logprobs is not None:
            logprobs = {
                "content": choice.logprobs and choice.logprobs.body,
                "refusal": choice.refusal_logprobs and choice.refusal_logprobs.body,
            }
        finish_reason = choice.finish_reason and self._word_for(choice.finish_reason)
        return {
            "index": choice.index,
            "message": message_body(choice),
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }


assert {*ChatEncoder.writers} == set(get_args(ChatDelta)), "a delta has no writer"
