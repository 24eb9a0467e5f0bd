"""The sandbox's scripts: a behaviour chosen by the model's name, refined by markers in the prompt. Pure.

A marker is `[sandbox name=value ...]`, for example `[sandbox tokens=64 delay_ms=20]`; see docs/sandbox.md.
"""

import re
from dataclasses import dataclass
from dataclasses import replace as refined
from typing import Any, Final, Literal

from msgspec.structs import replace

from chatapi.wire.deltas import Failed, FinishReason
from chatapi.wire.upstream import upstream_errors


@dataclass(frozen=True, slots=True)
class Script:
    """How one answer goes. `None` means: not at all, or as the request says."""

    says: Literal["prose", "echo", "refusal"] = "prose"
    tokens: int = 32
    """Length of prose and refusal; an echo, JSON and tool calls are as long as they are."""
    delay_ms: int = 0
    """Between two tokens of a choice."""
    first_delay_ms: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int | None = None
    cache_write_1h_tokens: int | None = None
    tool_calls: int = 0
    finish: FinishReason | None = None
    error: str | None = None
    """A name in `ERRORS`; before the first token, or after `after` tokens."""
    after: int | None = None
    retry_after_ms: int | None = None
    stall_after: int | None = None

    @property
    def failure(self) -> Failed | None:
        """The failure that `error` names, if any."""
        if self.error is None:
            return None
        known = ERRORS[self.error]
        return known if self.retry_after_ms is None else replace(known, retry_after_ms=self.retry_after_ms)

    @property
    def breaks_after(self) -> int | None:
        """The number of tokens of each choice after which the answer breaks off; None: never."""
        points = [point for point in (self.stall_after, self.after) if point is not None]
        return min(points, default=None)

    @property
    def stalls(self) -> bool:
        """Whether the answer breaks off by a stall."""
        return self.stall_after is not None and self.stall_after == self.breaks_after


BEHAVIOURS: Final = {
    "sandbox": Script(),
    "sandbox-echo": Script(says="echo"),
    "sandbox-tool-call": Script(tool_calls=1),
    "sandbox-parallel-tool-calls": Script(tool_calls=2),
    "sandbox-reasoning": Script(reasoning_tokens=16),
    "sandbox-refusal": Script(says="refusal", tokens=12),
    "sandbox-length": Script(finish="length"),
    "sandbox-content-filter": Script(tokens=8, finish="content_filter"),
    "sandbox-error-before": Script(error="server_error"),
    "sandbox-error-midstream": Script(error="server_error", after=5),
    "sandbox-stall": Script(stall_after=5),
    "sandbox-slow-start": Script(first_delay_ms=3_000),
}

# Where a real upstream's failure has a fixed wording, a client meets the same one here.
ERRORS: Final = {
    "invalid_request": Failed(
        "The sandbox refuses this request, as asked.", "invalid_request_error", "invalid_request", status=400
    ),
    "context_length": Failed(
        "The sandbox's context is full, as asked.",
        "invalid_request_error",
        "context_length_exceeded",
        status=400,
    ),
    "rate_limit": replace(upstream_errors.RATE_LIMITED, retry_after_ms=1_000),
    "server_error": Failed("The sandbox failed, as asked.", "server_error", "server_error", status=500),
    "upstream_error": upstream_errors.UPSTREAM_FAILED,
    "overloaded": replace(upstream_errors.UNAVAILABLE, retry_after_ms=1_000),
    "timeout": upstream_errors.TIMED_OUT,
}

_INTEGERS = {
    "tokens": range(100_001),
    "delay_ms": range(60_001),
    "first_delay_ms": range(600_001),
    "reasoning_tokens": range(100_001),
    "cached_tokens": range(10_000_001),
    "cache_write_tokens": range(10_000_001),
    "cache_write_1h_tokens": range(10_000_001),
    "tool_calls": range(17),
    "after": range(1, 100_001),
    "retry_after_ms": range(600_001),
    "stall_after": range(100_001),
}
_WORDS = {"finish": ("stop", "length", "tool_calls", "content_filter"), "error": tuple(ERRORS)}

MARKERS: Final = (*_INTEGERS, *_WORDS)

# Possessive, and without brackets inside: otherwise a prompt of markers that are never closed takes quadratic
# time.
_MARKER = re.compile(r"\[sandbox(?:\s([^\[\]]*+))?\]")
_INTEGER = re.compile(r"[0-9]{1,9}")


class MarkerError(ValueError):
    """A marker that the sandbox does not understand; the message names it and says what is allowed."""


def read(behaviour: str, text: str) -> Script:
    """Return the script of a behaviour (an unknown name means `sandbox`), refined by the text's markers.

    Raises `MarkerError`.
    """
    settings: dict[str, Any] = {}
    for marker in _MARKER.finditer(text):
        for setting in (marker.group(1) or "").split():
            name, value = _setting(setting)
            if name in settings:
                raise MarkerError(f"sandbox marker {name!r} is given twice")
            settings[name] = value
    script: Script = refined(BEHAVIOURS.get(behaviour, BEHAVIOURS["sandbox"]), **settings)
    if script.error is None and (script.after, script.retry_after_ms) != (None, None):
        raise MarkerError("sandbox markers 'after' and 'retry_after_ms' need 'error'")
    return script


def without_markers(text: str) -> str:
    return _MARKER.sub("", text).strip()


def _setting(setting: str) -> tuple[str, int | str]:
    name, equals, value = setting.partition("=")
    if not equals or name not in MARKERS:
        names = ", ".join(MARKERS)
        raise MarkerError(f"sandbox marker {setting[:80]!r} is unknown: use name=value with one of {names}")
    if name in _WORDS:
        if value not in _WORDS[name]:
            words = ", ".join(_WORDS[name])
            raise MarkerError(f"sandbox marker {name}={value[:80]!r} must be one of {words}")
        return name, value
    allowed = _INTEGERS[name]
    if not _INTEGER.fullmatch(value) or int(value) not in allowed:
        bounds = f"from {allowed[0]} to {allowed[-1]}"
        raise MarkerError(f"sandbox marker {name}={value[:80]!r} must be a whole number {bounds}")
    return name, int(value)
