"""Reads an upstream's chunks, in any of the dialects that pass for OpenAI's, into deltas; one `ChunkReader`
per stream.

https://platform.openai.com/docs/api-reference/chat-streaming, and what vLLM, llama-server, Ollama, OpenRouter
and the four other documented dialects do otherwise: `choices` null, no `index`, no `[DONE]`, roles repeated,
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
    **dict.fromkeys(_WINDOW_FULL, "length"),
}
_SERVICE_TIERS: dict[str, ServiceTier] = {tier: tier for tier in get_args(ServiceTier)}


class _ChoiceState:
    """How far one choice has come."""

    def __init__(self, index: int, max_chunks: int) -> None:
        self.limit = OutputLimit(max_chunks)
        self.is_finished = False
        self.tool_calls = ToolCallReader(index)


class ChunkReader:
    """Turns the events of one upstream stream into deltas, and knows when it is whole.

    `choices` is how many the request asked for, `is_text` whether it was a text completion. A choice that
    goes on after `max_chunks` with content (each has one token at least), or with far more tokens, is ended
    with finish_reason `length`: the upstream ignores the limit it was given.
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
        """`prompts`: a text request may have several, of which each has as many of the choices."""
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
        """A choice was ended by our limit: the upstream would go on."""
        self.has_started = False
        self.is_done = False
        """Nothing more is to be read: `[DONE]` came, or every choice has ended and one of them by our limit.
        """
        self.failure: Failed | None = None
        """Why nothing more can be read; what `read` returned before still counts."""

    @property
    def is_complete(self) -> bool:
        """Whether every choice has ended; at most the usage is missing."""
        return self._finished == self._expected

    def read(self, events: Iterable[Event]) -> list[AnyDelta]:
        """The deltas of these events, up to the one that sets `is_done` or `failure`.

        `Started` comes with the first delta that says something: a role alone may yet be followed by an
        error.
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
        """The deltas of what the stream's end left without a blank line. Half an event is none: `end` knows
        whether it is missed.
        """
        before = self.failure
        if self.is_done or before is not None:
            return []
        deltas = self.read(events)
        # A torn event: whether the answer is whole without it, `end` decides.
        if self.failure is INVALID_RESPONSE:
            self.failure = None
        return deltas

    def read_answer(self, body: bytes) -> list[AnyDelta]:
        """The deltas of an answer that came as one JSON document because the upstream ignored `stream`; it is
        whole by nature.
        """
        return self.read([Event(body), DONE])

    def end(self) -> list[AnyDelta]:
        """Return the deltas of the upstream's end: its usage, if it sent one.

        Raises `UpstreamError` for a stream that is not whole. A whole one may have fewer choices than were
        asked for (some upstreams ignore `n`), but then it must have said that it is done.
        """
        if self.failure is not None:
            raise UpstreamError(self.failure)
        if not self._finished or self._finished != (len(self._choices) if self.is_done else self._expected):
            raise UpstreamError(INVALID_RESPONSE if self.is_done else DISCONNECTED)
        # A usage of a choice that we have cut would count what the client never got.
        usage = None if self.is_cut else self._usage.whole(len(self._choices))
        return [] if usage is None else [usage]

    def _read_chunk(self, chunk: Chunk, batch: list[AnyDelta]) -> None:
        before = len(batch)
        for position, choice in enumerate(chunk.choices or ()):
            self._read_choice(choice, position if choice.index is None else choice.index, batch)
        if not self.has_started and not before:
            self._read_head(chunk)
        if chunk.usage is None and len(batch) == before + 1 and type(batch[-1]) is Text:
            self._usage.said += 1  # what nearly every chunk is
        else:
            self._usage.read(chunk.usage, batch[before:], has_choices=bool(chunk.choices))

    def _read_head(self, chunk: Chunk) -> None:
        """Remember what the chunks up to the first delta say about the whole answer: fingerprint, tier, early
        usage.
        """
        known = self._started
        tier = _SERVICE_TIERS.get(chunk.service_tier or "")
        # Of several prompts, an early usage may be that of one. One behind the whole answer is not early.
        is_early = self._has_one_prompt and not self.is_complete
        usage = chunk.usage.of_prompt() if chunk.usage is not None and is_early else None
        self._started = Started(
            known.system_fingerprint or chunk.system_fingerprint,
            known.service_tier or tier,
            prompt_usage=usage or known.prompt_usage,
        )

    def _read_done(self, batch: list[AnyDelta]) -> None:
        """`[DONE]`: the upstream's own word that nothing is missing. For a choice of a text stream it may be
        the only one.

        The llama server's document prints text streams whose chunks have no finish_reason; a stream of it
        that breaks off has no `[DONE]`. So a text that ends here has stopped, or has used its limit up; one
        that has not even begun is no answer, and is not to be paid for. In chats all five documents promise a
        finish_reason: there an end without one is a fault.
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
            # vLLM also sends ids of tokens here, which would mean nothing to a client.
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
        # Only what we have cut ends here; a whole answer is read up to its usage and `[DONE]`.
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
        reasoning = "".join([thought.text for part in content for thought in part.thinking]) or reasoning
        content = "".join([part.text for part in content])
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
    elif message.function_call is not None:  # servers that still have it may say the same in both forms
        batch.extend(state.tool_calls.read_legacy(message.function_call))


def _add_attachments(choice: Choice, index: int, batch: list[AnyDelta]) -> None:
    """Adds what comes beside a text, in pieces that need not be tokens."""
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
    """Return the delta; raises `UpstreamError` for one that can't cross Redis: a number beyond 64 bits, or a
    document that is too deep.
    """
    try:
        deltas.encode([delta])
    except (OverflowError, RecursionError):
        raise UpstreamError(INVALID_RESPONSE) from None
    return delta


def _add_text(text: str | None, index: int, logprobs: Logprobs | None, batch: list[AnyDelta]) -> None:
    """Adds a text, or the log probabilities of a token that shows no text."""
    tokens = logprobs.of_content() if logprobs else None
    if text or tokens:
        batch.append(Text(text or "", index, tokens))


def _audio(audio: SentAudio, index: int) -> Audio:
    """A piece of speech; raises `UpstreamError` for data that is not base64 in itself."""
    try:
        binascii.a2b_base64(audio.data or "", strict_mode=True)
    except ValueError:
        raise UpstreamError(INVALID_RESPONSE) from None
    return Audio(audio.data or "", audio.transcript or "", index, audio.id, audio.expires_at)


def _finish_reason(reason: str) -> FinishReason:
    """OpenAI's word for an upstream's; one that nobody knows is an error rather than a silent `stop`."""
    known = _FINISH_REASONS.get(reason)
    if known is None:
        raise UpstreamError(UPSTREAM_FAILED)
    return known
