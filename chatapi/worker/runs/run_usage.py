"""What a running generation has produced so far, and how that becomes a settlement and an end that clients
are told; pure.
"""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from chatapi.wire import tokens
from chatapi.wire.deltas import (
    AnyDelta,
    Audio,
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
from chatapi.wire.generation_request import GenerationRequest, Texts
from chatapi.wire.upstream_errors import REQUEST_REFUSED
from chatapi.worker.runs.echo import EchoCounters
from usage import pricing
from usage.books.ledger import Claimed, Settlement
from usage.books.settlement import Attempt
from usage.models import Outcome, UsageNote, UsageSource
from usage.pricing import Tokens


class RunUsage:
    """Counts one generation's deltas as they pass; cheap per delta, exact when asked."""

    def __init__(self) -> None:
        self.reported: Usage | None = None
        self.finished: dict[int, FinishReason] = {}
        self.first_token_ms: int | None = None
        self.last_token_ms: int | None = None
        self.has_started = False
        """The delta that announces the choices has passed."""
        self.unsettled_chars = 0
        """Text that the counters keep until they are asked to `settle`, or their tokens."""
        self._pieces = 0
        self._echo: EchoCounters | None = None
        self._lost: RunUsage | None = None
        self._started_at = time.monotonic()
        # By choice: they come interleaved, and no token reaches from one into another.
        self._visible: Mapping[int, tokens.Counter] = defaultdict(tokens.Counter)
        self._reasoning: dict[int, tokens.Counter] = defaultdict(tokens.Counter)

    def add(self, batch: Sequence[AnyDelta]) -> list[AnyDelta]:
        """Take a batch in; answers what of it may be published at once (the end waits for the commit)."""
        passing: list[AnyDelta] = []
        before = self._pieces
        for delta in batch:
            match delta:
                case Text():  # what nearly every delta is
                    self._visible[delta.index].add(delta.text)
                    self.unsettled_chars += len(delta.text)
                    self._pieces += 1
                    passing.append(delta)
                case Finished():
                    self.finished[delta.index] = delta.finish_reason
                case Usage():
                    self.reported = delta
                case _:
                    self._count(delta)
                    passing.append(delta)
        if self._pieces > before:
            self.last_token_ms = round((time.monotonic() - self._started_at) * 1_000)
            self.first_token_ms = self.last_token_ms if self.first_token_ms is None else self.first_token_ms
        return passing

    def _count(self, delta: AnyDelta) -> None:
        counters = self._visible
        match delta:
            case Refusal():
                text = delta.text
            case Reasoning():
                counters, text = self._reasoning, delta.text
            case ToolCall():
                text = (delta.name or "") + delta.arguments
            case Audio():
                text = delta.transcript
            case Started():
                self.has_started = True
                return
            case _:
                return
        counters[delta.index].add(text)
        self.unsettled_chars += len(text)
        self._pieces += 1

    def expect_echo(self, request: GenerationRequest, *, is_whole: bool = True) -> None:
        """Count no choice's prompt that it says again, if the request asks for that; call before anything is
        added.

        `is_whole` is False where the beginning of what was said is lost.
        """
        prompt = request.prompt
        if isinstance(prompt, Texts) and prompt.echo:
            self._visible = self._echo = EchoCounters(prompt, request.n or 1, is_whole=is_whole)

    def take_back(self, batch: Sequence[AnyDelta]) -> None:
        """Count no more what could not be published: nobody is charged for what no log holds. The upstream's
        own figure counts it.
        """
        self._lost = self._lost or RunUsage()
        self._lost.add(batch)
        self.reported = None

    @property
    def pieces(self) -> int:
        """Deltas with content: about as many as tokens, and known without counting, which is what a heartbeat
        can afford.
        """
        echoed = self._echo.pieces if self._echo else 0
        return max(0, self._pieces - echoed - (self._lost._pieces if self._lost else 0))

    @property
    def counters(self) -> list[tokens.Counter]:
        """All that `completion_tokens` asks; where there is much to be counted, whoever asks each before
        keeps the event loop free.
        """
        own = [*self._visible.values(), *self._reasoning.values()]
        return own + self._lost.counters if self._lost else own

    @property
    def completion_tokens(self) -> int:
        """Our own count of what was produced and not lost, reasoning included. Encodes up to 16 KiB of each
        choice: milliseconds.
        """
        return self._visible_tokens + self._reasoning_tokens

    @property
    def reasoning_tokens(self) -> int | None:
        """Our own count of the reasoning that was not lost; None when there was none."""
        return self._reasoning_tokens or None

    @property
    def _visible_tokens(self) -> int:
        return _kept_tokens(self._visible, self._lost._visible if self._lost else {})

    @property
    def _reasoning_tokens(self) -> int:
        return _kept_tokens(self._reasoning, self._lost._reasoning if self._lost else {})


def _kept_tokens(counted: Mapping[int, tokens.Counter], lost: Mapping[int, tokens.Counter]) -> int:
    """The tokens of all choices. None has less than none: what one has lost is not taken from another."""
    return sum(
        max(0, counter.tokens - (lost[index].tokens if index in lost else 0))
        for index, counter in counted.items()
    )


class Ending(Enum):
    """Why a run ended: `CANCELLED` was asked for and ends well, `CLIENT_LEFT` must not look like a good end."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    CLIENT_LEFT = "client_left"
    FAILED = "failed"
    FENCED_OFF = "fenced_off"


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended; `failure` is what whoever listens is told unless it completed."""

    ending: Ending
    failure: Failed | None = None
    attempts: tuple[Attempt, ...] = ()
    """All of them, in their order."""

    @property
    def error_code(self) -> str:
        """Of a failure; empty where a run ended otherwise."""
        failure = self.failure if self.ending is Ending.FAILED else None
        return (failure.code or failure.type) if failure else ""


def settlement(
    run: Claimed,
    request: GenerationRequest | None,
    usage: RunUsage,
    end: End,
    counted_prompt_tokens: int | None = None,
) -> Settlement:
    """The settlement of a run that ended so; where the prompt's tokens have been counted already, they are
    not counted again.

    An upstream's own usage counts, an explicit zero too. Without it, and where the request can't have used
    that much, we count.
    """
    told = usage.reported
    if told is not None and is_plausible(run, told):
        source, used, note = UsageSource.UPSTREAM, _tokens(told), UsageNote.ADDED if told.is_added else None
    else:
        source, used = _counted(run, request, usage, end, counted_prompt_tokens)
        note = UsageNote.IMPLAUSIBLE if told is not None else None
    failure = end.failure if end.ending is Ending.FAILED else None
    return Settlement(
        id=run.id,
        fence=run.fence,
        outcome=_OUTCOMES[end.ending],
        tokens=used,
        usage_source=source,
        usage_note=note,
        finish_reason=_finish_reason(usage.finished, end.ending, run.choices_count),
        error_code=end.error_code,
        error_message=_kept(failure) if failure else "",
        deployment=end.attempts[-1].deployment if end.attempts else "",
        attempts=len(end.attempts),
        attempt_log=end.attempts,
        first_token_ms=usage.first_token_ms,
        last_token_ms=usage.last_token_ms,
        is_final=failure is not None and failure.status in (400, 403, 413),
    )


def _kept(failure: Failed) -> str:
    """What the books keep of the failure's words. Those about a wrong request may quote it, and are for its
    client only.
    """
    return REQUEST_REFUSED if failure.status == 400 else failure.message


_OUTCOMES = {
    Ending.COMPLETED: Outcome.COMPLETED,
    Ending.CANCELLED: Outcome.CLIENT_CANCELLED,
    Ending.CLIENT_LEFT: Outcome.CLIENT_CANCELLED,
    Ending.FAILED: Outcome.FAILED,
}


def is_plausible(run: Claimed, told: Usage) -> bool:
    """Whether the request can have used so much: a full context, its cap for each choice, and no more than
    was held for it.

    A server may put more before a prompt than we know of, so more than was held for the prompt may be right.
    """
    fits_context = run.max_prompt_tokens is None or told.prompt_tokens <= run.max_prompt_tokens
    is_capped = told.completion_tokens <= run.max_output_tokens * (run.sampled_count or run.choices_count)
    return fits_context and is_capped and pricing.amount(_tokens(told), run.price) <= run.reserved_nanodollars


def _tokens(told: Usage) -> Tokens:
    return Tokens(told.prompt_tokens, told.completion_tokens, told.cached_tokens, told.reasoning_tokens)


def _counted(
    run: Claimed,
    request: GenerationRequest | None,
    usage: RunUsage,
    end: End,
    counted_prompt_tokens: int | None,
) -> tuple[UsageSource, Tokens]:
    counted = counted_completion(usage, run.max_output_tokens * run.choices_count)
    if not counted and end.ending is not Ending.COMPLETED:
        return UsageSource.NONE, Tokens()
    reasoning = usage.reasoning_tokens
    prompt = prompt_tokens(request) if counted_prompt_tokens is None else counted_prompt_tokens
    if run.max_prompt_tokens is not None:
        prompt = min(prompt, run.max_prompt_tokens)
    return UsageSource.COUNTED, Tokens(
        prompt, counted, None, None if reasoning is None else min(reasoning, counted)
    )


def counted_completion(usage: RunUsage, cap: int) -> int:
    """Our own count of the tokens to charge: never beyond the cap that the upstream was given, for our tokens
    need not be its tokens.
    """
    return min(usage.completion_tokens, cap)


def _finish_reason(finished: dict[int, FinishReason], ending: Ending, choices_count: int) -> str:
    """As told to the client: nothing to one that left; of a failed answer, of which it is told no end, what
    had finished.
    """
    if ending is Ending.CLIENT_LEFT:
        return ""
    by_index = (
        [finished[index] for index in sorted(finished)]
        if ending is Ending.FAILED
        else _finish_reasons(finished, choices_count)
    )
    return by_index[0] if len(set(by_index)) == 1 else ",".join(by_index)


def _finish_reasons(finished: dict[int, FinishReason], choices_count: int) -> list[FinishReason]:
    """Each choice's, by index: one that was cancelled has stopped."""
    return [finished.get(index, "stop") for index in range(choices_count)]


def prompt_tokens(request: GenerationRequest | None) -> int:
    """Our own count of the prompt, for an upstream that tells none; 0 when the request is not known any more."""
    return 0 if request is None else tokens.count(request.prompt_text) + request.prompt_overhead_tokens


def terminal(end: End, usage: RunUsage, used: Tokens, choices_count: int) -> list[AnyDelta]:
    """The deltas that end the stream, for after the commit: failure, or every choice's finish and the usage.

    What is cancelled before its first token has yet to announce its choices: SDKs raise at one that ends and
    never began.
    """
    if end.failure is not None:
        return [end.failure]
    beginning: list[AnyDelta] = [] if usage.has_started else [Started()]
    finishes = [
        Finished(reason, index) for index, reason in enumerate(_finish_reasons(usage.finished, choices_count))
    ]
    return [
        *beginning,
        *finishes,
        Usage(used.prompt_tokens, used.completion_tokens, used.cached_tokens, used.reasoning_tokens),
    ]
