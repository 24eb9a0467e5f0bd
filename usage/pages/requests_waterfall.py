"""One generation's time as bars: waiting, until the first token, generating, settling."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from usage.models import Generation


@dataclass(frozen=True, slots=True)
class Span:
    """One part of a generation's life: its name, its duration, and its place in percent."""

    name: str
    colour: str
    ms: float
    x: str
    width: str
    y: int
    """The distance from the top in CSS pixels; each part has its own line."""


@dataclass(frozen=True, slots=True)
class Event:
    """A moment of a generation, and the time since its admission."""

    name: str
    at: datetime
    after_ms: float


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The shapes and texts that the template draws."""

    spans: Sequence[Span]
    events: Sequence[Event]
    total_ms: float


_LINE_PX = 24
_PARTS = (
    ("waiting for a worker", "part-queue"),
    ("waiting for the first token", "part-first"),
    ("generating", "part-tokens"),
    ("settling", "part-settle"),
)
_RUNNING = ("running", "part-tokens")


def waterfall(row: Generation, now: datetime) -> Waterfall:
    """Return the parts so far; an open generation's last part lasts until `now`."""
    events = [Event(name, at, _ms(at - row.admitted_at)) for name, at in _moments(row) if at is not None]
    end_ms = events[-1].after_ms if row.settled_at else max(events[-1].after_ms, _ms(now - row.admitted_at))
    return Waterfall(_spans(row, end_ms), events, end_ms)


def _moments(row: Generation) -> list[tuple[str, datetime | None]]:
    return [
        ("admitted", row.admitted_at),
        ("claimed", row.claimed_at),
        ("first token", _later(row.claimed_at, row.first_token_ms)),
        ("last token", _later(row.claimed_at, row.last_token_ms)),
        ("settled", row.settled_at),
    ]


def _spans(row: Generation, end_ms: float) -> list[Span]:
    """Return a part for each known moment; a moment that never came prolongs the part before it."""
    starts: list[tuple[int, float]] = [(0, 0.0)]
    for part, (_, at) in enumerate(_moments(row)[1:4], start=1):
        if at is not None:
            # The worker measures the durations and the database the moments, so the sum may exceed the end.
            starts.append((part, min(_ms(at - row.admitted_at), end_ms)))
    ends = [start for _, start in starts[1:]] + [end_ms]
    lines = [(*_PARTS[part], start, end) for (part, start), end in zip(starts, ends, strict=True)]
    if (
        row.claimed_at is not None
        and row.first_token_ms is None
        and (row.settled_at is None or row.completion_tokens)
    ):
        # The times of its tokens are written at settlement, and lost with its worker.
        lines[-1] = (*_RUNNING, *lines[-1][2:])
    return [_span(line, end_ms, _LINE_PX * at) for at, line in enumerate(lines)]


def _span(line: tuple[str, str, float, float], total_ms: float, y: int) -> Span:
    name, colour, start_ms, end_ms = line
    whole = max(total_ms, 0.001)
    took = max(end_ms - start_ms, 0.0)
    # At least 0.3 %, so that a part of a millisecond stays visible in a minute's chart.
    return Span(
        name, colour, took, f"{100 * start_ms / whole:.3f}%", f"{max(100 * took / whole, 0.3):.3f}%", y
    )


def _later(moment: datetime | None, ms: int | None) -> datetime | None:
    return None if moment is None or ms is None else moment + timedelta(milliseconds=ms)


def _ms(span: timedelta) -> float:
    return span.total_seconds() * 1_000
