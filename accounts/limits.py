"""Rate limits as values, how much of them is left, and the headers that say so; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, NamedTuple

MINUTE_MS = 60_000
DAY_MS = 86_400_000
Window = Literal["minute", "day"]
WINDOWS: Final[Mapping[int, Window]] = {MINUTE_MS: "minute", DAY_MS: "day"}
# As far as Redis' scripts count exactly; a higher limit counts as this one.
HIGHEST = 2**53


class Counts(StrEnum):
    """What a limit counts: requests one by one, running requests by leases, all else by amounts."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    RUNNING = "running"


class LimitNumber(NamedTuple):
    """A number of a row of limits, as its names elsewhere say it."""

    counts: Counts
    window_ms: int
    """The time in which all of it comes back; 0 for concurrent requests, which are counted by leases."""
    api_member: str
    """Its name in the management API."""
    option: str
    """The option of `createkey`."""

    @property
    def title(self) -> str:
        if self.counts is Counts.RUNNING:
            return "Concurrent requests"
        return f"{self.counts.capitalize()} per {WINDOWS[self.window_ms]}"

    @property
    def measure(self) -> str:
        """Return what it limits, in words."""
        if self.counts is Counts.RUNNING:
            return "requests at the same time"
        return f"{self.counts} in a {WINDOWS[self.window_ms]}"


class Amounts(NamedTuple):
    """The amount of each countable thing that a request takes, or has used."""

    # No defaults: the type checker names each place that makes one when there is another field.
    tokens: int

    def of(self, counts: Counts) -> int:
        amount: int = getattr(self, counts)
        return amount


assert {*Amounts._fields} == {*Counts} - {Counts.REQUESTS, Counts.RUNNING}, "each amount has its field"
NOTHING_USED: Final = Amounts(*[0] * len(Amounts._fields))
"""The amounts of a request that never ran."""


# What response headers report.
IN_HEADERS = (Counts.REQUESTS, Counts.TOKENS)


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that one organization, project, key or end user may use."""

    scope: str
    """organization, project, key or end_user"""
    scope_id: int
    """The owner's id; for an end user, the id of the project."""
    model: str
    """A served model; blank for all models together."""
    counts: Counts
    most: int
    window_ms: int = 0
    """The time in which `most` comes back; 0 for concurrent requests."""
    name: str = ""
    """The end user's name; blank for other owners."""

    @property
    def id(self) -> str:
        """Return the limit's name in Redis, which stays the same when the number changes."""
        known = f"{self.scope}:{self.scope_id}:{self.counts}:{self.window_ms}:{self.model}"
        return f"{known} {self.name}" if self.name else known  # no model's name has a space

    def __str__(self) -> str:
        owner = {"key": "API key", "end_user": "end user"}.get(self.scope, self.scope)
        model = f" and the model {self.model}" if self.model else ""
        return f"{self.most} {self._measure} for this {owner}{model}"

    @property
    def text(self) -> str:
        """Return the limit as pages have it: "1 request per minute"."""
        return f"{self.most:,} {self._measure}"

    @property
    def _measure(self) -> str:
        is_running = self.counts is Counts.RUNNING
        counted = "concurrent requests" if is_running else self.counts.value
        counted = counted.removesuffix("s") if self.most == 1 else counted
        # A refusal is for clients: it must not fail because a word is missing.
        window = "" if is_running else f" per {WINDOWS.get(self.window_ms, f'{self.window_ms} ms')}"
        return counted + window


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """How much of a limit is left."""

    limit: Limit
    remaining: int
    reset_ms: int
    """The time until all of it is available again, if nothing more is taken."""


def headers(statuses: Sequence[LimitStatus], refused: Limit | None = None) -> list[tuple[bytes, bytes]]:
    """Return OpenAI's `x-ratelimit-*` headers (its guide to rate limits, "Rate limits in headers")."""
    return [header for status in tightest(statuses, refused) for header in _headers(status)]


def tightest(statuses: Sequence[LimitStatus], refused: Limit | None = None) -> list[LimitStatus]:
    """Return the limit of requests and the limit of tokens that headers describe, as far as there are any:
    the limit that refused; else the tightest one per minute; else the tightest one per day.
    """
    of_kinds = ([each for each in statuses if each.limit.counts is kind] for kind in IN_HEADERS)
    return [
        min(own, key=lambda own: (own.limit != refused, own.limit.window_ms, own.remaining))
        for own in of_kinds
        if own
    ]


def _headers(status: LimitStatus) -> list[tuple[bytes, bytes]]:
    counts = status.limit.counts.encode()
    return [
        (b"x-ratelimit-limit-" + counts, b"%d" % status.limit.most),
        (b"x-ratelimit-remaining-" + counts, b"%d" % status.remaining),
        (b"x-ratelimit-reset-" + counts, duration(status.reset_ms).encode()),
    ]


def duration(ms: int) -> str:
    """Return the time as Go and OpenAI write it (`time.Duration.String`): `12ms`, `8.64s`, `1h0m0.5s`."""
    if 0 < ms < 1_000:
        return f"{ms}ms"
    minutes, rest_ms = divmod(ms, MINUTE_MS)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{rest_ms / 1_000:g}s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds
