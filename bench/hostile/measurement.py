"""The effect of one attack: the values that the attacker and the witness write, and their bounds."""

from collections import Counter

import msgspec

MAX_EXCESS_MS = 250.0
MAX_EXCESS_OF_A_CROWD_MS = 1000.0
CROWD = 20
"""From this number of attackers on, the larger bound on delays holds."""
MAX_GROWTH_MB = 100.0


class Attacked(msgspec.Struct, frozen=True):
    """The counts of the attacker's process."""

    answers: dict[str, int]
    """By status; and `not connected`, `closed`, `no answer`."""
    sent_bytes: int
    received_bytes: int
    cpu_seconds: float
    error: str = ""


class Stream(msgspec.Struct, frozen=True):
    """One honest stream: the arrival times of its tokens, and its first problem (empty if it is right)."""

    arrivals: list[float]
    problem: str


class Probe(msgspec.Struct, frozen=True):
    """One request of an honest client; times are seconds of the monotonic clock."""

    sent_at: float
    seconds: float
    problem: str = ""


class Witnessed(msgspec.Struct, frozen=True):
    """Observations of the honest clients in one run."""

    streams: list[Stream]
    fresh_probes: list[Probe]
    """`GET /healthz` over a new connection each."""
    kept_probes: list[Probe]
    requests: list[Probe]
    """Short streams of the honest organization, from request to end."""


class Outcome(msgspec.Struct, frozen=True):
    """One attack's row in the report."""

    name: str
    who: str
    summary: str
    attackers: int
    quiet_gap_ms: float
    worst_gap_ms: float
    quiet_probe_ms: float
    """The slowest probe before the attack."""
    probe_p50_ms: float
    probe_worst_ms: float
    probes: int
    probe_problems: dict[str, int]
    streams: dict[str, int]
    """Counts of the honest streams by their ends: `whole`, or the problem."""
    requests: dict[str, int]
    """The same of the short requests that began after the attack had."""
    request_worst_ms: float
    attacked: Attacked
    growth_mb: float
    growth_by_process: dict[str, float]
    failure: str = ""
    """The reason why there is no measurement: the service did not start, or ended."""

    @property
    def excess_ms(self) -> float:
        """The worst gap between two tokens, less the worst in the seconds before the attack."""
        return max(0.0, self.worst_gap_ms - self.quiet_gap_ms)

    @property
    def violations(self) -> list[str]:
        """The names of the missed bounds; empty if the run passed."""
        if self.failure:
            return [self.failure]
        most_ms = MAX_EXCESS_OF_A_CROWD_MS if self.attackers >= CROWD else MAX_EXCESS_MS
        missed = {
            "gap": self.excess_ms > most_ms,
            "probe": self.probe_worst_ms - self.quiet_probe_ms > most_ms or bool(self.probe_problems),
            "streams": set(self.streams) != {"whole"},
            "requests": bool(set(self.requests) - {"whole"}),
            "memory": self.growth_mb > MAX_GROWTH_MB,
        }
        return [name for name, is_missed in missed.items() if is_missed]


def outcome(
    named: tuple[str, str, str],
    attackers: int,
    attacked_at: float,
    witnessed: Witnessed,
    attacked: Attacked,
    growth: dict[str, float],
) -> Outcome:
    """Return the row of one run; the time before `attacked_at` is quiet. `named` has name, attacker and
    summary.
    """
    name, who, summary = named
    all_probes = [*witnessed.fresh_probes, *witnessed.kept_probes]
    probes = [probe for probe in all_probes if probe.sent_at >= attacked_at]
    requests = [request for request in witnessed.requests if request.sent_at >= attacked_at]
    return Outcome(
        name=name,
        who=who,
        summary=summary,
        attackers=attackers,
        quiet_gap_ms=worst_gap_ms(witnessed.streams, before=attacked_at),
        worst_gap_ms=worst_gap_ms(witnessed.streams, after=attacked_at),
        quiet_probe_ms=worst_ms([probe for probe in all_probes if probe.sent_at < attacked_at]),
        probe_p50_ms=middle_ms(probes),
        probe_worst_ms=worst_ms(probes),
        probes=len(probes),
        probe_problems=dict(Counter(probe.problem for probe in probes if probe.problem)),
        streams=dict(Counter(stream.problem or "whole" for stream in witnessed.streams)),
        requests=dict(Counter(request.problem or "whole" for request in requests)),
        request_worst_ms=worst_ms(requests),
        attacked=attacked,
        growth_mb=round(sum(growth.values()), 1),
        growth_by_process=growth,
    )


def failed(named: tuple[str, str, str], attackers: int, failure: str) -> Outcome:
    """Return the row of a run that had no result."""
    name, who, summary = named
    nothing = Attacked({}, 0, 0, 0.0)
    return Outcome(name, who, summary, attackers, 0, 0, 0, 0, 0, 0, {}, {}, {}, 0, nothing, 0, {}, failure)


def worst_gap_ms(streams: list[Stream], *, before: float = float("inf"), after: float = 0.0) -> float:
    """Return the longest gap between two tokens of one stream that ended between `after` and `before`."""
    gaps = [
        later - earlier
        for stream in streams
        for earlier, later in zip(stream.arrivals, stream.arrivals[1:], strict=False)  # pairs
        if after <= later < before
    ]
    return round(max(gaps, default=0.0) * 1000, 1)


def middle_ms(probes: list[Probe]) -> float:
    """Return the median duration."""
    ordered = sorted(probe.seconds for probe in probes)
    return round(ordered[len(ordered) // 2] * 1000, 1) if ordered else 0.0


def worst_ms(probes: list[Probe]) -> float:
    """Return the longest duration."""
    return round(max((probe.seconds for probe in probes), default=0.0) * 1000, 1)
