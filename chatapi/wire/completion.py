"""Folds a generation's deltas into one completion, for whole answers and for tests of a deployment."""

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Any, Protocol, assert_never

from chatapi.wire.deltas import (
    Annotations,
    AnyDelta,
    Audio,
    ChatContent,
    Failed,
    Finished,
    FinishReason,
    OtherContent,
    Reasoning,
    Refusal,
    ServiceTier,
    Started,
    Text,
    TokenLogprob,
    ToolCall,
    Usage,
)


class CollectedToolCall:
    """A tool call put together from its pieces."""

    def __init__(self, first: ToolCall) -> None:
        self.id = first.id or ""
        self.name = first.name or ""
        self.kind = first.kind
        self.extra_content = first.extra_content
        self._arguments: list[str] = []

    # The first piece had the name.
    def add(self, delta: ToolCall) -> None:
        self._arguments.append(delta.arguments)

    @property
    def arguments(self) -> str:
        return "".join(self._arguments)


class CollectedAudio:
    """A spoken answer put together from its pieces."""

    def __init__(self) -> None:
        self.id = ""
        self.expires_at = 0
        self._data: list[str] = []
        self._transcript: list[str] = []

    def add(self, delta: Audio) -> None:
        self.id = delta.id or self.id
        self.expires_at = delta.expires_at or self.expires_at
        self._data.append(delta.data)
        self._transcript.append(delta.transcript)

    @property
    def data(self) -> str:
        """The whole sound as base64. Each piece may have padding, so the pieces are decoded and joined."""
        return b64encode(b"".join(map(b64decode, self._data))).decode()

    @property
    def transcript(self) -> str:
        return "".join(self._transcript)


class Logprobs(Protocol):
    """The log probabilities of a choice's text or refusal, put together from its deltas."""

    def add(self, logprobs: Sequence[TokenLogprob], text: str, start: int) -> None:
        """Add the log probabilities of a text that begins at character `start` of the choice."""
        ...


class LogprobList(list[TokenLogprob]):
    """Log probabilities as objects."""

    def add(self, logprobs: Sequence[TokenLogprob], text: str, start: int) -> None:
        self.extend(logprobs)


class Choice:
    """One choice put together from its deltas; a text without any delta is None.

    Pieces are joined when the text is read: joining each with the text before it would take seconds for
    100,000 tokens.
    """

    def __init__(self, index: int, new_logprobs: Callable[[], Logprobs]) -> None:
        self.index = index
        self._new_logprobs = new_logprobs
        # The length of the text so far, from which text completions count their offsets.
        self._chars = 0
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self.tool_calls: dict[int, CollectedToolCall] = {}
        self.audio: CollectedAudio | None = None
        self.annotations: list[dict[str, Any]] = []
        self.logprobs: Any = None
        """None, or what `new_logprobs` returned; the same for `refusal_logprobs`."""
        self.refusal_logprobs: Any = None
        self.finish_reason: FinishReason | None = None
        self.stop_sequence: str | None = None

    def add(self, delta: ChatContent) -> None:
        match delta:
            case Text():
                self._text.append(delta.text)
                self.logprobs = self._extended(self.logprobs, delta)
            case Reasoning():
                # A signature has no text; without this it would turn an absent reasoning into an empty one.
                self._reasoning += [delta.text] if delta.text else []
            case Refusal():
                self._refusal.append(delta.text)
                self.refusal_logprobs = self._extended(self.refusal_logprobs, delta)
            case ToolCall():
                # By number and not by id: only a call's first piece has an id.
                self.tool_calls.setdefault(delta.call_index, CollectedToolCall(delta)).add(delta)
            case Audio():
                self.audio = self.audio or CollectedAudio()
                self.audio.add(delta)
            case Annotations():
                self.annotations.extend(delta.annotations)
            case _:
                assert_never(delta)

    def finish(self, delta: Finished) -> None:
        self.finish_reason = delta.finish_reason
        self.stop_sequence = delta.stop_sequence

    def _extended(self, known: Logprobs | None, delta: Text | Refusal) -> Logprobs | None:
        # Characters are counted even without log probabilities: a later piece may have some.
        start, self._chars = self._chars, self._chars + len(delta.text)
        if delta.logprobs is None:
            return known
        if known is None:
            known = self._new_logprobs()
        known.add(delta.logprobs, delta.text, start)
        return known

    @property
    def text(self) -> str | None:
        return _joined(self._text)

    @property
    def reasoning(self) -> str | None:
        return _joined(self._reasoning)

    @property
    def refusal(self) -> str | None:
        return _joined(self._refusal)


def _joined(pieces: list[str]) -> str | None:
    return "".join(pieces) if pieces else None


class Completion:
    """A whole generation as one object."""

    def __init__(self, new_logprobs: Callable[[], Logprobs] = LogprobList) -> None:
        """`new_logprobs` makes the object that collects the log probabilities of a choice."""
        self._new_logprobs = new_logprobs
        self.choices: dict[int, Choice] = {}
        self.system_fingerprint: str | None = None
        self.service_tier: ServiceTier | None = None
        self.context: dict[str, Any] = {}
        self.model: str | None = None
        """See `Started.model`."""
        self.usage: Usage | None = None
        self.failure: Failed | None = None

    def add(self, delta: AnyDelta) -> None:
        match delta:
            case Started():
                self.system_fingerprint = delta.system_fingerprint
                self.service_tier = delta.service_tier
                self.context = delta.context
                self.model = delta.model
            case Usage():
                self.usage = delta
            case Failed():
                self.failure = delta
            case Finished():
                self.choice(delta.index).finish(delta)
            case _ if not isinstance(delta, OtherContent):
                self.choice(delta.index).add(delta)

    def choice(self, index: int) -> Choice:
        """Return the choice of that index; create it if it is new."""
        found = self.choices.get(index)
        if found is None:
            found = self.choices[index] = Choice(index, self._new_logprobs)
        return found
