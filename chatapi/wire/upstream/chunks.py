"""Reads an upstream's chunks, in OpenAI's dialect or a similar one, into deltas; one `ChunkReader` a stream.

https://platform.openai.com/docs/api-reference/chat-streaming, and the differences of vLLM, llama-server,
Ollama, OpenRouter and the other documented dialects: `choices` null, no `index`, no `[DONE]`, roles repeated,
reasoning under two names or as a part of the content (Mistral), usage on any chunk or on none.
"""

import binascii
from collections.abc import Collection, Iterable
from typing import get_args

from chatapi.wire import deltas
from chatapi.wire.deltas import (
    Annotations,
    AnyDelta,
    Audio,
    Failed,
    Finished,
    FinishReason,
    Reasoning,
    Refusal,
    ServiceTier,
    Started,
    Text,
    ToolCall,
)
from chatapi.wire.sse import Event
from chatapi.wire.upstream.events import DONE, Choice, Chunk, SentAudio, decode
from chatapi.wire.upstream.logprobs import Logprobs
from chatapi.wire.upstream.output_limit import OutputLimit
from chatapi.wire.upstream.tool_calls import ToolCallReader
from chatapi.wire.upstream.upstream_errors import (
    DISCONNECTED,
    INVALID_RESPONSE,
    UPSTREAM_FAILED,
    UpstreamError,
)
from chatapi.wire.upstream.usage import UsageReader

# Anthropic's word for a full context window, and Mistral's.
_WINDOW_FULL = frozenset({"model_context_window_exceeded", "model_length"})
_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
    "function_call": "function_call",
    "end_turn": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "repetition": "length",
    **dict.fromkeys(_WINDOW_FULL, "length"),
}
_SERVICE_TIERS: dict[str, ServiceTier] = {tier: tier for tier in get_args(ServiceTier)}


class _ChoiceState:
    """The state of one choice."""

    def __init__(self, index: int, max_chunks: int) -> None:
        self.limit = OutputLimit(max_chunks)
        self.is_finished = False
        self.tool_calls = ToolCallReader(index)


class ChunkReader:
    """Turns the events of one upstream stream into deltas, and knows when it is whole.

    `choices` is the number that the request asks for, `is_text` whether it is a text completion. A choice
    with content after `max_chunks` chunks (each has at least one token), or with far more tokens than that,
    is ended with finish_reason `length`: the upstream ignores its limit.
    """

    max_answer_bytes = 16 << 20
    too_large = INVALID_RESPONSE

    def __init__(
        self,
        *,
        choices: int,
        max_chunks: int,
        is_text: bool = False,
        prompts: int = 1,
        stop_sequences: Collection[str] = (),
    ) -> None:
        """`prompts`: their number in a text request; each has the same number of choices."""
        self._expected = choices
        self._max_chunks = max_chunks
        self._is_text = is_text
        self._stop_sequences = stop_sequences
        self._choices: dict[int, _ChoiceState] = {}
        self._finished = 0
        self._usage = UsageReader(choices_per_prompt=max(1, choices // prompts))
        self._has_one_prompt = prompts == 1
        self._started = Started()
        self.is_cut = False
        """Whether our limit has ended a choice that the upstream would continue."""
        self.has_started = False
        self.is_done = False
        """Whether nothing more has to be read: `[DONE]` came, or all choices have ended, one by our limit."""
        self.failure: Failed | None = None
        """Why nothing more can be read; what `read` returned before still counts."""

    @property
    def is_complete(self) -> bool:
        """Whether every choice has ended; only the usage may still come."""
        return self._finished == self._expected

    def read(self, events: Iterable[Event]) -> list[AnyDelta]:
        """Return the deltas of these events, up to the one that sets `is_done` or `failure`.

        `Started` comes with the first content: after a role alone, an error may still follow.
        """
        batch: list[AnyDelta] = []
        try:
            for event in events:
                if event.data.startswith(DONE.data):
                    self._read_done(batch)
                elif event.data:
                    self._read_chunk(decode(event), batch)
                if self.is_done:
                    break
        except UpstreamError as error:
            self.failure = error.failure
        if batch and not self.has_started:
            self.has_started = True
            # Only now, because a failure before the first content must still have its own HTTP status.
            batch.insert(0, self._started)
        return batch

    def read_rest(self, events: Iterable[Event]) -> list[AnyDelta]:
        """Return the deltas of an event that the stream's end left without a blank line.

        An incomplete event is ignored: `end` decides whether the answer is whole without it.
        """
        before = self.failure
        if self.is_done or before is not None:
            return []
        deltas = self.read(events)
        # The event is incomplete.
        if self.failure is INVALID_RESPONSE:
            self.failure = None
        return deltas

    def read_answer(self, body: bytes) -> list[AnyDelta]:
        """Return the deltas of an answer in one JSON document: the upstream has ignored `stream`."""
        return self.read([Event(body), DONE])

    def end(self) -> list[AnyDelta]:
        """Return the deltas of the upstream's end: its usage, if it sent one.

        Raises `UpstreamError` for an incomplete stream. A stream with fewer choices than requested (some
        upstreams ignore `n`) is complete only if it ended with `[DONE]`.
        """
        if self.failure is not None:
            raise UpstreamError(self.failure)
        if not self._finished or self._finished != (len(self._choices) if self.is_done else self._expected):
            raise UpstreamError(INVALID_RESPONSE if self.is_done else DISCONNECTED)
        # The usage of a choice that we have cut would count text that the client never got.
        usage = None if self.is_cut else self._usage.whole(len(self._choices))
        return [] if usage is None else [usage]

    def _read_chunk(self, chunk: Chunk, batch: list[AnyDelta]) -> None:
        before = len(batch)
        for position, choice in enumerate(chunk.choices or ()):
            self._read_choice(choice, position if choice.index is None else choice.index, batch)
        if not self.has_started and not before:
            self._read_head(chunk)
        if chunk.usage is None and len(batch) == before + 1 and type(batch[-1]) is Text:
            self._usage.said += 1  # nearly every chunk
        else:
            self._usage.read(chunk.usage, batch[before:], has_choices=bool(chunk.choices))
            self._complete_calls(batch, before)

    def _complete_calls(self, batch: list[AnyDelta], start: int) -> None:
        """Add arguments to the calls without any of each choice that ends in the batch, from `start` on.

        They come after the usage was read: no usage counts them as content.
        """
        for position in range(len(batch) - 1, start - 1, -1):
            ended = batch[position]
            if isinstance(ended, Finished) and ended.finish_reason in ("tool_calls", "function_call"):
                batch[position:position] = self._choices[ended.index].tool_calls.empty_objects()

    def _read_head(self, chunk: Chunk) -> None:
        """Remember the answer's fingerprint, tier and early usage from the chunks up to the first delta."""
        known = self._started
        tier = _SERVICE_TIERS.get(chunk.service_tier or "")
        # With several prompts, an early usage may count only one of them. A usage after the end of all
        # choices is not early.
        is_early = self._has_one_prompt and not self.is_complete
        usage = chunk.usage.of_prompt() if chunk.usage is not None and is_early else None
        self._started = Started(
            known.system_fingerprint or chunk.system_fingerprint,
            known.service_tier or tier,
            prompt_usage=usage or known.prompt_usage,
        )

    def _read_done(self, batch: list[AnyDelta]) -> None:
        """Read `[DONE]`, with which the upstream says that nothing is missing. In a text stream it may be the
        only sign of a choice's end.

        The llama server's document prints text streams without any finish_reason, and its broken streams
        have no `[DONE]`. So a text that ends here has stopped, or has used up its limit; one without any
        content is no answer, and not charged. For chats all documents promise a finish_reason, so an end
        without one is a failure.
        """
        if self._is_text:
            has_begun = self.has_started or bool(batch)
            for index, state in self._choices.items():
                if not state.is_finished and (has_begun or state.limit.is_used_up):
                    self._finish(
                        state, Finished("length" if state.limit.is_used_up else "stop", index), batch
                    )
        self.is_done = True

    def _read_choice(self, choice: Choice, index: int, batch: list[AnyDelta]) -> None:
        state = self._choices.get(index) or self._new_choice(index)
        if state.is_finished:
            return
        before = len(batch)
        _read_content(choice, index, state, batch)
        if len(batch) > before and not state.limit.allows(batch[before:]):
            batch[before:] = state.limit.beginning(batch[before:])
            self.is_cut = True
            self._finish(state, Finished("length", index), batch)
            return
        _add_attachments(choice, index, batch)
        if choice.finish_reason:
            # vLLM also sends ids of tokens here, which mean nothing to a client.
            stop_sequence = choice.stop_reason if choice.stop_reason in self._stop_sequences else None
            reason = state.tool_calls.reason_for(_finish_reason(choice.finish_reason))
            is_window_full = choice.finish_reason in _WINDOW_FULL
            finished = Finished(reason, index, stop_sequence=stop_sequence, is_window_full=is_window_full)
            self._finish(state, finished, batch)

    def _finish(self, state: _ChoiceState, finished: Finished, batch: list[AnyDelta]) -> None:
        if state.tool_calls.has_nameless_call:
            raise UpstreamError(INVALID_RESPONSE)
        state.is_finished = True
        self._finished += 1
        batch.append(finished)
        # Only an answer that we have cut ends here; others are read up to their usage and `[DONE]`.
        self.is_done = self.is_cut and self.is_complete

    def _new_choice(self, index: int) -> _ChoiceState:
        if not 0 <= index < self._expected:
            raise UpstreamError(INVALID_RESPONSE)
        state = self._choices[index] = _ChoiceState(index, self._max_chunks)
        return state


def _read_content(choice: Choice, index: int, state: _ChoiceState, batch: list[AnyDelta]) -> None:
    message = choice.delta or choice.message
    if message is None:
        _add_text(choice.text, index, choice.logprobs, batch)
        return
    content, reasoning = message.content, message.reasoning_content or message.reasoning
    if isinstance(content, list):
        thoughts = [thought.text or "" for part in content for thought in part.thinking or ()]
        reasoning = "".join(thoughts) or reasoning
        content = "".join([part.text or "" for part in content])
    if reasoning:
        batch.append(Reasoning(reasoning, index))
    _add_text(content, index, choice.logprobs, batch)
    if message.refusal:
        batch.append(
            Refusal(message.refusal, index, choice.logprobs.of_refusal() if choice.logprobs else None)
        )
    if message.tool_calls:
        calls = state.tool_calls.read(message.tool_calls)
        batch.extend([_portable(call) if call.extra_content else call for call in calls])
    elif message.function_call is not None:  # servers that still have it may send the call in both forms
        batch.extend(state.tool_calls.read_legacy(message.function_call))


def _add_attachments(choice: Choice, index: int, batch: list[AnyDelta]) -> None:
    """Add signatures, speech and citations, whose pieces need not be tokens."""
    message = choice.delta or choice.message
    if message is None:
        return
    if message.thinking_signature or message.redacted_thinking:
        batch.append(Reasoning("", index, message.thinking_signature, message.redacted_thinking))
    if message.audio is not None:
        batch.append(_portable(_audio(message.audio, index)))
    if message.annotations:
        batch.append(_portable(Annotations(message.annotations, index)))


def _portable(delta: Audio | Annotations | ToolCall) -> Audio | Annotations | ToolCall:
    """Return the delta. Raises `UpstreamError` if it can't be encoded: a number beyond 64 bits, or a document
    too deep.
    """
    try:
        deltas.encode([delta])
    except (OverflowError, RecursionError):
        raise UpstreamError(INVALID_RESPONSE) from None
    return delta


def _add_text(text: str | None, index: int, logprobs: Logprobs | None, batch: list[AnyDelta]) -> None:
    """Add a text, or the log probabilities of a token without text."""
    tokens = logprobs.of_content() if logprobs else None
    if text or tokens:
        batch.append(Text(text or "", index, tokens))


def _audio(audio: SentAudio, index: int) -> Audio:
    """Return a piece of speech. Raises `UpstreamError` if its data is not valid base64 by itself."""
    try:
        binascii.a2b_base64(audio.data or "", strict_mode=True)
    except ValueError:
        raise UpstreamError(INVALID_RESPONSE) from None
    return Audio(audio.data or "", audio.transcript or "", index, audio.id, audio.expires_at)


def _finish_reason(reason: str) -> FinishReason:
    """Return OpenAI's word for an upstream's. Raises `UpstreamError` for an unknown one."""
    # Gemini adds its own word: "content_filter: RECITATION".
    known = _FINISH_REASONS.get(reason.partition(": ")[0])
    if known is None:
        raise UpstreamError(UPSTREAM_FAILED)
    return known
