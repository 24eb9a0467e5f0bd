"""Counts what a running generation produces, and makes its settlement and its terminal deltas; no I/O."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Protocol

import msgspec

from chatapi.wire import tokens
from chatapi.wire.deltas import (
    AnyDelta,
    Audio,
    Content,
    Failed,
    Finished,
    Reasoning,
    Refusal,
    Started,
    Text,
    ToolCall,
    Usage,
)
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.prompts import Texts
from chatapi.wire.upstream.upstream_errors import STOPPED
from chatapi.worker.runs.echo import EchoCounters
from usage import pricing
from usage.books.ledger import Claimed, Settlement
from usage.books.settlement import Attempt
from usage.models import Outcome, UsageNote, UsageSource
from usage.pricing import MAX_TOKENS, TOKEN_COLUMNS, Price, Tokens

# The message that the books keep of each refusal, by the upstream or by this service: those that clients get
# may quote the request.
REFUSED = "The request was refused."


class RunUsage:
    """Counts the deltas of one generation as they pass. Tokens are encoded only when they are read."""

    def __init__(self) -> None:
        self.reported: Usage | None = None
        """The upstream's own usage."""
        self.finished: dict[int, Finished] = {}
        self.first_token_ms: int | None = None
        self.last_token_ms: int | None = None
        self.longest_gap_ms = 0
        """The longest time between two batches with content; see `_ends_stall`."""
        self.has_started = False
        """Whether the delta that announces the choices has passed."""
        self.prompt: Usage | None = None
        """The upstream's own figures of the prompt, if it sent them before its answer."""
        self.unencoded_chars = 0
        """The length of the text since the counters last encoded their whole pieces."""
        self._pieces = 0
        self._echo: EchoCounters | None = None
        self._lost: RunUsage | None = None
        self._started_at = time.monotonic()
        # By choice: the deltas of choices are interleaved, and no token spans two choices.
        self._visible: Mapping[int, tokens.Counter] = defaultdict(tokens.Counter)
        self._reasoning: dict[int, tokens.Counter] = defaultdict(tokens.Counter)

    @property
    def total_ms(self) -> int:
        """The time since the worker began with the generation."""
        return round((time.monotonic() - self._started_at) * 1_000)

    def add(self, batch: Sequence[AnyDelta]) -> list[AnyDelta]:
        """Count a batch; return the deltas to publish now. Finishes and usage wait for the commit."""
        # One pass for counting and for dividing: this runs for every batch of every stream.
        passing: list[AnyDelta] = []
        before = self._pieces
        for delta in batch:
            match delta:
                case Text():  # first, because nearly every delta is text
                    self._visible[delta.index].add(delta.text)
                    self.unencoded_chars += len(delta.text)
                    self._pieces += 1
                    passing.append(delta)
                case Finished():
                    self.finished[delta.index] = delta
                case Usage():
                    self.reported = delta
                case Started():
                    self.has_started = True
                    self.prompt = delta.prompt_usage
                    passing.append(delta)
                case _:
                    self._count(delta)
                    passing.append(delta)
        # Only content counts for the time: a role or a usage is no token.
        if self._pieces > before:
            token_ms = round((time.monotonic() - self._started_at) * 1_000)
            gap_ms = 0 if self.last_token_ms is None else token_ms - self.last_token_ms
            if gap_ms > self.longest_gap_ms and _ends_stall(batch):
                self.longest_gap_ms = gap_ms
            self.first_token_ms = token_ms if self.first_token_ms is None else self.first_token_ms
            self.last_token_ms = token_ms
        return passing

    def _count(self, delta: Content | Failed) -> None:
        if isinstance(delta, Failed) or (text := delta.counted_text) is None:
            return
        counters = self._reasoning if isinstance(delta, Reasoning) else self._visible
        counters[delta.index].add(text)
        self.unencoded_chars += len(text)
        self._pieces += 1

    def expect_echo(self, request: GenerationRequest, *, is_whole: bool = True) -> None:
        """Leave out the prompt that choices repeat, if the request asks for `echo`. Call this before `add`.

        `is_whole` is False if the beginning of the answer is lost.
        """
        prompt = request.prompt
        if isinstance(prompt, Texts) and prompt.echo:
            self._visible = self._echo = EchoCounters(prompt, request.n or 1, is_whole=is_whole)

    def take_back(self, batch: Sequence[AnyDelta]) -> None:
        """Subtract deltas that could not be published: text that is in no log must not be charged."""
        # A count of its own, and not a subtraction at once: tokens are known only of a whole text.
        self._lost = self._lost or RunUsage()
        self._lost.add(batch)
        self.reported = None  # it includes what was lost

    @property
    def pieces(self) -> int:
        """The number of deltas with content: about that of tokens, and cheap enough for a heartbeat."""
        return max(0, self._pieces - self.echoed_pieces - (self._lost._pieces if self._lost else 0))

    @property
    def echoed_pieces(self) -> int:
        """The number of deltas that only repeat the prompt."""
        return self._echo.pieces if self._echo else 0

    @property
    def text_bytes(self) -> int:
        """The length of the text that was produced, in UTF-8."""
        counters = [*self._visible.values(), *self._reasoning.values()]
        return sum([counter.text_bytes for counter in counters])

    @property
    def counters(self) -> list[tokens.Counter]:
        """The counters that `completion_tokens` reads. Read in a thread first, they do not block the loop."""
        own = [*self._visible.values(), *self._reasoning.values()]
        return own + self._lost.counters if self._lost else own

    @property
    def completion_tokens(self) -> int:
        """Our own count of what was produced and not lost, reasoning included.

        Encodes up to 16 KiB of each choice, which takes milliseconds.
        """
        visible = _kept_tokens(self._visible, self._lost._visible if self._lost else {})
        return visible + (self.reasoning_tokens or 0)

    @property
    def reasoning_tokens(self) -> int | None:
        """Our own count of the reasoning that was not lost; None if there was none."""
        return _kept_tokens(self._reasoning, self._lost._reasoning if self._lost else {}) or None


def _ends_stall(batch: Sequence[AnyDelta]) -> bool:
    """Return whether the silence before this batch was a stall: its first content is text or audio.

    Before a piece of a tool call, and before reasoning without text, the model may have worked: many
    upstreams hide thinking, and send the arguments of a call when they are whole.
    """
    for delta in batch:
        match delta:
            case ToolCall() | Reasoning(text=""):
                return False
            case Text() | Reasoning() | Refusal() | Audio():
                return True
    return False


def _kept_tokens(counted: Mapping[int, tokens.Counter], lost: Mapping[int, tokens.Counter]) -> int:
    """Return the tokens of all choices, without the lost ones; clamped at zero per choice."""
    return sum(
        max(0, counter.tokens - (lost[index].tokens if index in lost else 0))
        for index, counter in counted.items()
    )


class Ending(Enum):
    """Why a run ended. `CANCELLED`, on request, ends like a complete answer; `CLIENT_LEFT` as a failure."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    CLIENT_LEFT = "client_left"
    FAILED = "failed"
    FENCED_OFF = "fenced_off"


class Bounds(Protocol):
    """The bounds of the usage of a running generation, or of an orphan."""

    @property
    def max_prompt_tokens(self) -> int | None: ...
    @property
    def price(self) -> Price: ...
    @property
    def reserved_nanodollars(self) -> int: ...


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended. `failure` is published unless it completed or was cancelled on request."""

    ending: Ending
    failure: Failed | None = None
    attempts: tuple[Attempt, ...] = ()
    """All attempts, in order."""

    @property
    def error_code(self) -> str:
        """The failure's code; empty unless the run failed."""
        failure = self.failure if self.ending is Ending.FAILED else None
        return (failure.code or failure.type) if failure else ""


def settlement(
    run: Claimed, usage: RunUsage, end: End, prompt_tokens: int, *, is_low: bool = False
) -> Settlement:
    """Return the settlement of a run.

    1. The upstream's usage counts if it is plausible, an explicit zero too. `is_low` notes that it is far
       below our own count.
    2. Otherwise our own count does, with that of the prompt in `prompt_tokens`.
    """
    reported = usage.reported
    if reported is not None and is_plausible(run, reported):
        source, used = UsageSource.UPSTREAM, _tokens(reported)
        note = UsageNote.LOW if is_low else UsageNote.ADDED if reported.is_added else None
    else:
        source, used = _counted(run, usage, end, prompt_tokens)
        note = UsageNote.IMPLAUSIBLE if reported is not None else None
    failure = end.failure if end.ending is Ending.FAILED else None
    message = failure.message if failure else ""
    if failure and failure.status == 400:
        message = REFUSED
    return Settlement(
        id=run.id,
        fence=run.fence,
        # A stop is a person's decision, so it is no error in the error rate, though its client gets one.
        outcome=Outcome.CLIENT_CANCELLED if failure is STOPPED else _OUTCOMES[end.ending],
        tokens=used,
        usage_source=source,
        usage_note=note,
        finish_reason=_finish_reason(usage.finished, end.ending, run.choices_count),
        error_code=end.error_code,
        error_message=message,
        # The last one answered, or was the last to fail.
        deployment=end.attempts[-1].deployment if end.attempts else "",
        attempts=len(end.attempts),
        attempt_log=end.attempts,
        first_token_ms=usage.first_token_ms,
        last_token_ms=usage.last_token_ms,
        # A repeat of the same request would fail again, so its Idempotency-Key keeps standing for it.
        is_final=failure is not None and failure.status in (400, 403, 413),
    )


_OUTCOMES = {
    Ending.COMPLETED: Outcome.COMPLETED,
    Ending.CANCELLED: Outcome.CLIENT_CANCELLED,
    Ending.CLIENT_LEFT: Outcome.CLIENT_CANCELLED,
    Ending.FAILED: Outcome.FAILED,
}


def is_plausible(run: Claimed, reported: Usage) -> bool:
    """Return whether the request can have used that much.

    1. The prompt fits into the model's context. A server may put text before it, so it may be longer than
       what we counted.
    2. The completion is within the cap of each choice.
    3. The amount is at most what was reserved.
    4. The ledger's columns hold it: the bounds of a free model with many prompts or choices may be higher.
    """
    # `best_of` generates more choices than it returns, and all are paid for.
    cap = min(MAX_TOKENS, run.max_output_tokens * (run.sampled_count or run.choices_count))
    fits = reported.completion_tokens <= cap and reported.prompt_tokens <= MAX_TOKENS
    return fits and _is_held(run, _tokens(reported))


def _is_held(bounds: Bounds, used: Tokens) -> bool:
    """Return whether the prompt fits into the context, and the amount into what was reserved."""
    fits_context = bounds.max_prompt_tokens is None or used.prompt_tokens <= bounds.max_prompt_tokens
    return fits_context and pricing.amount(used, bounds.price) <= bounds.reserved_nanodollars


def believable_count(reported_tokens: int) -> int:
    """Return the largest count of our own with which the upstream's count is believable.

    Counts by different vocabularies rarely differ by more than a half.
    """
    # The 16 is for short texts, in which one odd token is a large part.
    return 2 * reported_tokens + 16


def _tokens(reported: Usage) -> Tokens:
    return Tokens(*(getattr(reported, name) for name in TOKEN_COLUMNS))


def _counted(run: Claimed, usage: RunUsage, end: End, prompt_tokens: int) -> tuple[UsageSource, Tokens]:
    counted = counted_completion(usage, run.max_output_tokens * run.choices_count)
    # Nothing was delivered, so nothing is charged, not even the prompt.
    if not counted and end.ending is not Ending.COMPLETED:
        return UsageSource.NONE, Tokens()
    return UsageSource.COUNTED, counted_tokens(run, usage, prompt_tokens, counted)


def counted_tokens(bounds: Bounds, usage: RunUsage, prompt: int, completion: int) -> Tokens:
    """Return the tokens to charge if the upstream sent no usage at its end, or an implausible one.

    `prompt` and `completion` are our own counts. For the prompt, the upstream's early figures are charged
    instead, because our count lacks pictures; but not if they are implausible or far below our count, or if
    its usage at the end was implausible.
    """
    if bounds.max_prompt_tokens is not None:
        # Our tokenizer may find more tokens than the model's context has; the reservation holds only those.
        prompt = min(prompt, bounds.max_prompt_tokens)
    reasoning = usage.reasoning_tokens
    own = Tokens(
        prompt_tokens=prompt,
        completion_tokens=completion,
        reasoning_tokens=None if reasoning is None else min(reasoning, completion),
    )
    if usage.prompt is None or usage.reported is not None:
        return own
    if prompt > believable_count(usage.prompt.prompt_tokens):
        return own
    sent = replace(_tokens(usage.prompt), completion_tokens=completion, reasoning_tokens=own.reasoning_tokens)
    return sent if _is_held(bounds, sent) else own


def counted_completion(usage: RunUsage, cap: int) -> int:
    """Return our own count of the tokens to charge, at most `cap`.

    The upstream kept that cap; our tokenizer may split the same text into more tokens.
    """
    return min(usage.completion_tokens, cap)


def _finish_reason(finished: dict[int, Finished], ending: Ending, choices_count: int) -> str:
    """Return the reasons of all choices, as one if they are equal.

    It is empty if the client left; of a failed answer it has only the choices that had finished.
    """
    if ending is Ending.CLIENT_LEFT:
        return ""
    ends = _finishes(finished, choices_count)
    if ending is Ending.FAILED:
        ends = [finished[index] for index in sorted(finished)]
    by_index = [end.finish_reason for end in ends]
    return by_index[0] if len(set(by_index)) == 1 else ",".join(by_index)


def _finishes(finished: dict[int, Finished], choices_count: int) -> list[Finished]:
    """Return the end of each choice; a cancelled choice has stopped."""
    return [finished.get(index) or Finished("stop", index) for index in range(choices_count)]


def prompt_tokens(request: GenerationRequest | None) -> int:
    """Return our own count of the prompt; 0 if the request is lost."""
    if request is None:
        return 0
    return sum(map(tokens.count, request.counted_texts)) + request.prompt.overhead_tokens


def terminal(
    end: End, usage: RunUsage, used: Tokens, choices_count: int, settled_at: datetime
) -> list[AnyDelta]:
    """Return the deltas that end the stream: the failure, or the finish of each choice and the usage.

    An answer that was cancelled before its first delta begins here: SDKs raise an error if it ends without
    one.
    """
    if end.failure is not None:
        return [end.failure]
    beginning: list[AnyDelta] = [] if usage.has_started else [Started()]
    is_cancelled = end.ending is Ending.CANCELLED
    finishes = [
        msgspec.structs.replace(finish, is_cancelled=is_cancelled and finish.index not in usage.finished)
        for finish in _finishes(usage.finished, choices_count)
    ]
    return [
        *beginning,
        *finishes,
        Usage(**used.columns(), completed_at=int(settled_at.timestamp())),  # type: ignore[arg-type]
    ]
