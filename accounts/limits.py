"""Rate limits as values: what may pass, what is left of it, and the headers that say so; pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

MINUTE_MS = 60_000
DAY_MS = 86_400_000
HIGHEST = 2**53
"""As far as Redis' scripts count exactly; whoever sets a higher limit means none."""


class Counts(StrEnum):
    """What a limit counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that one organization, project or key may have of something."""

    scope: str
    """organization, project or key"""
    scope_id: int
    model: str
    """The served model that it is for; blank for all of them together."""
    counts: Counts
    most: int
    window_ms: int = 0
    """The time in which `most` comes back; 0 for what runs at the same time."""

    @property
    def id(self) -> str:
        """What names this limit among all; the number may change."""
        return f"{self.scope}:{self.scope_id}:{self.counts}:{self.window_ms}:{self.model}"

    def __str__(self) -> str:
        owner = "API key" if self.scope == "key" else self.scope
        model = f" and the model {self.model}" if self.model else ""
        return f"{self.most} {self._measure} for this {owner}{model}"

    @property
    def _measure(self) -> str:
        if self.counts is Counts.RUNNING:
            return "concurrent requests"
        return f"{self.counts} per {'day' if self.window_ms == DAY_MS else 'minute'}"


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """Where a limit stands."""

    limit: Limit
    remaining: int
    reset_ms: int
    """The time until all of it is there again, if nothing more is taken."""


def headers(statuses: Sequence[LimitStatus], refused: Limit | None = None) -> list[tuple[bytes, bytes]]:
    """OpenAI's `x-ratelimit-*` headers ("Rate limits in headers", its guide to rate limits), as far as there
    are such limits.

    They speak of the limit that refused; else of the tightest per minute; where there is none, per day.
    """
    found: list[tuple[bytes, bytes]] = []
    for counts in (Counts.REQUESTS, Counts.TOKENS):
        own = [status for status in statuses if status.limit.counts is counts]
        if own:
            found += _headers(
                min(own, key=lambda own: (own.limit != refused, own.limit.window_ms, own.remaining))
            )
    return found


def _headers(status: LimitStatus) -> list[tuple[bytes, bytes]]:
    counts = status.limit.counts.encode()
    return [
        (b"x-ratelimit-limit-" + counts, b"%d" % status.limit.most),
        (b"x-ratelimit-remaining-" + counts, b"%d" % status.remaining),
        (b"x-ratelimit-reset-" + counts, duration(status.reset_ms).encode()),
    ]


def duration(ms: int) -> str:
    """The time as Go writes it (`time.Duration.String`) and OpenAI with it: `12ms`, `8.64s`, `6m0s`,
    `1h0m0.5s`.
    """
    if 0 < ms < 1_000:
        return f"{ms}ms"
    minutes, rest_ms = divmod(ms, MINUTE_MS)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{rest_ms / 1_000:g}s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds
