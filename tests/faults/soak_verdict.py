"""Judges a soak: the clients' answers, the books and the upstream's count must agree."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import Any, NamedTuple

from tests.fake_completion import WORDS
from tests.faults.bookkeeper import Row
from tests.faults.soak_protocols import prompt_of
from tests.faults.soak_visits import Heard, Visit

FORGOTTEN_TOKENS = 75
"""The most tokens since the last heartbeat: 50 a second for a lease (1.5 s), after which the generation is no
longer its worker's.
"""
FAILED = {"failed", "not_started", "worker_lost"}
"""The outcomes after which a generation that charged nothing frees its idempotency key."""
AT_ONCE_S = 5.0
"""The longest time by which a row may begin or end later than its client's request."""
MAX_SILENCE_S = 10.0
"""The bound on the p99 of silences within a stream and before an error, also after a death."""
NO_WORKER = "queue_timeout"
"""No client may get this error while workers run: its request was lost."""

MAX_CALLS = 4
"""The most calls of the upstream for one generation: the worker repeats a call that has sent nothing."""

STREAM_LOST = {"stream_unavailable", "request_lost"}
"""The errors of clients whose server of streams has died."""

NOT_COMPLETED = "response_not_completed"
NO_PREVIOUS = "previous_response_not_found"
"""No client may get this error: clients continue only responses whose end they have."""


@dataclass(frozen=True)
class Waits:
    """Percentiles (nearest rank) of clients' waits, in seconds."""

    count: int
    p50_s: float
    p99_s: float
    max_s: float

    @classmethod
    def of(cls, seconds: Iterable[float | None]) -> "Waits":
        """Return the counts of these visits."""
        ordered = sorted(each for each in seconds if each is not None)
        if not ordered:
            return cls(0, 0.0, 0.0, 0.0)
        p50_s, p99_s = (ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] for percent in (50, 99))
        return cls(len(ordered), p50_s, p99_s, ordered[-1])

    def __str__(self) -> str:
        return (
            f"p50 {self.p50_s:6.2f} s   p99 {self.p99_s:6.2f} s   max {self.max_s:6.2f} s   of {self.count}"
        )


class Loss(NamedTuple):
    """A server of streams lost all that it had."""

    at: float
    server: str = "0"
    """Its number: the last digit of the ids of its generations."""


@dataclass
class Outages:
    """The faults with their times, in seconds of the monotonic clock."""

    web_kills: list[tuple[float, float]] = field(default_factory=list)
    """From a web process's death to the next one's first answer; all its connections are cut off."""
    web_stops: list[tuple[float, float]] = field(default_factory=list)
    """The same of a web process that was to stop: it may refuse new requests, but ends those that it has."""
    valkey_losses: list[Loss] = field(default_factory=list)
    bad_exits: list[str] = field(default_factory=list)
    """Web processes that were to stop, and did not end by themselves."""

    def explain(self, heard: Heard) -> bool:
        """Return whether a fault explains that the connection broke: a killed web process or, without any
        answer, one that was stopping.
        """
        refusing = [] if heard.status else self.web_stops
        return any(
            began <= heard.ended_at and heard.began_at <= ended
            for began, ended in [*self.web_kills, *refusing]
        )

    def has_lost_data(self, ids: Iterable[str], since: float, until: float) -> bool:
        """Return whether a server of one of these generations has lost all that it had, some time between."""
        servers = {each[-1:] for each in ids}
        return any(loss.server in servers and since <= loss.at <= until for loss in self.valkey_losses)

    def has_lost(self, visit: Visit, row: Row) -> bool:
        """Return whether Valkey has lost the log of this visit's generation, so that only the last heartbeat
        is left.
        """
        first, last = visit.heard[0].began_at, visit.heard[-1].ended_at + row.seconds + AT_ONCE_S
        return row.outcome == "worker_lost" and self.has_lost_data([row.id], first, last)


@dataclass(frozen=True)
class Verdict:
    """The counts of a run, and its violations."""

    tables: dict[str, "Counter[str]"]
    violations: list[str]
    waits: dict[str, Waits] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        visits: Sequence[Visit],
        rows: Sequence[Row],
        report: Mapping[str, Any],
        calls: Sequence[dict[str, Any]],
        outages: Outages,
    ) -> "Verdict":
        """Judge the soak, when no client asks any more and no generation is open. `calls` are the upstream's
        records.
        """
        sent: defaultdict[str, list[int]] = defaultdict(list)
        for call in calls:
            has_tokens = "input" not in call["body"]  # else they are vectors
            sent[prompt_of(call["body"])].append(call["tokens"] * has_tokens)
        by_id = {row.id: row for row in rows}
        violations = [
            *_books(report),
            *_settled_once(rows),
            *outages.bad_exits,
            *(
                f"{visit}: {what}"
                for visit in visits
                for what in _of_visit(visit, by_id, sent[visit.prompt], outages)
            ),
            *_nobody_pays_for_nothing(rows, sent),
        ]
        heard = [(visit, each) for visit in visits for each in visit.heard]
        tables = {
            "generations": Counter(row.outcome for row in rows),
            "usage": Counter(row.usage_source for row in rows),
            "ends": Counter(_end(each) for _, each in heard),
            "status": Counter(str(each.status) for _, each in heard),
            "errors": Counter(code for _, each in heard for code in each.error_codes),
            "when a stream server died": Counter(_ends_by_server(visits, outages.valkey_losses)),
            "charged": Counter(
                _kind_of_charge(visit, each, by_id, outages) for visit, each in heard if each.generation_id
            ),
        }
        return cls(tables, violations, _waits([each for _, each in heard]))

    @property
    def generations(self) -> int:
        """Return the number of generations."""
        return self.tables["generations"].total()

    def asking_at_least(self, generations: int) -> "Verdict":
        """Return this verdict, with a violation if there were fewer: then the faults prove little."""
        if self.generations >= generations:
            return self
        return replace(
            self,
            violations=[
                *self.violations,
                f"only {self.generations} generations, at least {generations} were asked for",
            ],
        )

    def bearing_silence(self, max_silence_s: float = MAX_SILENCE_S) -> "Verdict":
        """Return this verdict, with a violation for each kind of silence with a longer p99."""
        too_long = [
            f"{title}: p99 is {waits.p99_s:.1f} s, more than {max_silence_s:g} s"
            for title, waits in self.waits.items()
            if title in SILENCES and waits.p99_s > max_silence_s
        ]
        return replace(self, violations=[*self.violations, *too_long])


# ---- what clients waited for


SILENCES = ("longest silence within a stream", "silence before an error")


def _waits(heard: Sequence[Heard]) -> dict[str, Waits]:
    within, before_an_error = SILENCES
    return {
        "request to first byte": Waits.of(each.first_byte_s for each in heard),
        within: Waits.of(
            each.longest_silence_s for each in heard if each.status == 200 and not each.is_document
        ),
        before_an_error: Waits.of(each.error_silence_s for each in heard),
    }


# ---- the books by themselves


def _books(report: Mapping[str, Any]) -> Iterator[str]:
    """Check the books: 0 differences, 0 overdrawn, pending back to 0."""
    yield from (f"books: {each}" for each in report["differences"])
    yield from (f"overdrawn: {each}" for each in report["over limit"])
    yield from (f"still pending: {each}" for each in report["pending"])


def _settled_once(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if row.charges != 1 or row.overages:
            yield f"{row.id}: {row.charges} charges, {row.overages} overages"
        has_result = row.outcome == "completed" if row.endpoint == "embeddings" else row.completion_tokens > 0
        if has_result != (row.amount_nanodollars > 0):
            yield f"{row.id}: {row.amount_nanodollars} nanodollars for {row.completion_tokens} tokens"


def _nobody_pays_for_nothing(rows: Sequence[Row], sent: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Check that no one is charged for an answer that was not sent, also if the client never
    learned its id.
    """
    charged, generated = sum(row.completion_tokens for row in rows), sum(map(sum, sent.values()))
    if charged > generated:
        yield f"{charged} tokens are charged, {generated} were sent"


# ---- one client


def _of_visit(visit: Visit, rows: Mapping[str, Row], sent: Sequence[int], outages: Outages) -> Iterator[str]:
    if visit.failure:
        yield f"the client failed: {visit.failure}"
    for heard in visit.heard:
        yield from _told_once(visit, heard, outages)
        yield from _told_in_order(heard)
        yield from _told_is_charged(heard, rows)
        yield from _seen_is_charged(visit, heard, rows, outages)
        yield from _kept_is_found(visit, heard, outages)
    known = _known(visit, rows)
    yield from _ran_once(visit, known, sent)
    for row in known:
        yield from _sent_is_charged(row, sent)


def _known(visit: Visit, rows: Mapping[str, Row]) -> list[Row]:
    """Return the generations that answered the visit, as far as the client knows them."""
    ids = dict.fromkeys(_id(heard) for heard in visit.heard)
    return [rows[each] for each in ids if each in rows]


def _told_once(visit: Visit, heard: Heard, outages: Outages) -> Iterator[str]:
    if heard.late:
        yield f"after the end came {heard.late}"
    if NO_WORKER in heard.error_codes:
        yield f"it got {NO_WORKER}"
    # Without the log, nobody knows whether the client has all that comes before the usage, which it lacks.
    is_lost = "stream_unavailable" in heard.error_codes and outages.has_lost_data(
        [_id(heard)], visit.heard[0].began_at, heard.ended_at
    )
    ends = heard.ends + (heard.had_end and not heard.is_document and not is_lost)
    if ends > 1:
        yield f"{ends} ends"
    if heard.is_done and not ends:
        yield "no end before [DONE]"
    if heard.is_broken and not outages.explain(heard):
        yield "the connection broke, and web lived"


def _told_in_order(heard: Heard) -> Iterator[str]:
    """Check that a stream has no gap and no repetition, also after a resume."""
    if heard.words != list(islice(cycle(WORDS), heard.skipped_tokens, heard.seen_tokens)):
        yield f"not the text behind its first {heard.skipped_tokens} tokens: {' '.join(heard.words)}"


def _told_is_charged(heard: Heard, rows: Mapping[str, Row]) -> Iterator[str]:
    if not heard.generation_id:
        return
    row = rows.get(_id(heard))
    if row is None:
        yield f"{heard.generation_id} is lost"
    elif heard.usage is not None:
        reading = (heard.usage["prompt_tokens"], heard.usage["completion_tokens"])
        if reading != (row.prompt_tokens, row.completion_tokens):
            yield f"sent {reading}, charged {row.prompt_tokens}+{row.completion_tokens}"


def _seen_is_charged(visit: Visit, heard: Heard, rows: Mapping[str, Row], outages: Outages) -> Iterator[str]:
    """Check that all text that the client saw is charged, in every kind of end."""
    row = rows.get(_id(heard))
    if row is None:
        if heard.words:
            yield f"saw {len(heard.words)} tokens of nothing that is in the books"
        return
    missing = heard.seen_tokens - row.completion_tokens
    if missing > (FORGOTTEN_TOKENS if outages.has_lost(visit, row) else 0):
        yield f"saw {heard.seen_tokens} tokens, charged {row.completion_tokens}"


def _kept_is_found(visit: Visit, heard: Heard, outages: Outages) -> Iterator[str]:
    """Check that a stream which a client resumes or fetches later is there, unless its server has lost it."""
    since, ids = visit.heard[0].began_at, map(_id, visit.heard)
    is_gone = heard.status in {404, 410} or NO_PREVIOUS in heard.error_codes
    if is_gone and not outages.has_lost_data(ids, since, heard.ended_at):
        yield f"{heard.status} {heard.error_codes}, and Valkey has lost nothing"
    if NOT_COMPLETED in heard.error_codes:
        yield f"it got {NOT_COMPLETED}"


def harmed_by_another_server(visits: Sequence[Visit], outages: Outages) -> Iterator[str]:
    """Check that a stream is lost only if its own server has died, or a host of the fleet."""
    for visit in visits:
        for heard in visit.heard:
            since = visit.heard[0].began_at
            is_own = outages.has_lost_data([_id(heard)], since, heard.ended_at)
            is_cut_off = outages.explain(replace(heard, began_at=since))
            if STREAM_LOST & set(heard.error_codes) and heard.generation_id and not (is_own or is_cut_off):
                yield f"{visit}: it got {heard.error_codes}, and its server lived"


def _ends_by_server(visits: Sequence[Visit], losses: Sequence[Loss]) -> Iterator[str]:
    """Yield how each connection that was open when a server died has ended, on that server or another."""
    for visit in visits:
        for heard in visit.heard:
            for loss in losses:
                if heard.generation_id and heard.began_at < loss.at < heard.ended_at:
                    place = "on it" if _id(heard)[-1] == loss.server else "on another"
                    yield f"{place}: {', '.join(heard.error_codes) or _end(heard)}"


def _sent_is_charged(row: Row, sent: Sequence[int]) -> Iterator[str]:
    """Check that the charge is at most what the upstream sent, and all of it if the answer was completed."""
    if row.completion_tokens > max(sent, default=0):
        yield f"charged {row.completion_tokens} tokens of {sum(sent)}"
    elif row.outcome == "completed" and row.completion_tokens not in sent:
        yield f"completed, but charged {row.completion_tokens} tokens of {sum(sent)}"


def _ran_once(visit: Visit, known: Sequence[Row], sent: Sequence[int]) -> Iterator[str]:
    """Check that the upstream answered once. A client with a key may cause another answer if the first failed
    uncharged, and a call without a token is repeated a few times.
    """
    nothing = sum(row.outcome in FAILED and not row.amount_nanodollars for row in known)
    untold = sum(
        not heard.generation_id and (not heard.status or heard.status >= 500) for heard in visit.heard
    )
    allowed = 1 + nothing + untold if visit.is_keyed else visit.meant
    answers = sum(tokens > 0 for tokens in sent)
    if answers > allowed or len(sent) > allowed * MAX_CALLS:
        yield f"{len(sent)} calls of the upstream"
    if sum(row.amount_nanodollars > 0 for row in known) > visit.meant:
        yield "charged for nothing" if not visit.meant else "charged twice"


def _id(heard: Heard) -> str:
    """Return the generation's own id: the public one without its protocol's prefix."""
    return heard.generation_id[-32:]


def _kind_of_charge(visit: Visit, heard: Heard, rows: Mapping[str, Row], outages: Outages) -> str:
    row = rows.get(_id(heard))
    if row is None:
        return "not in the books"
    if heard.seen_tokens > row.completion_tokens:
        return "as of the last heartbeat" if outages.has_lost(visit, row) else "less than was seen"
    return "what was seen" if heard.seen_tokens == row.completion_tokens else "more than was seen"


def _end(heard: Heard) -> str:
    if heard.has_left:
        return "left"
    if heard.is_broken:
        return "web died in mid-answer" if heard.status else "web was away"
    if heard.is_accepted:
        return "accepted"
    if heard.is_done and not heard.error_codes and heard.usage is None:
        return "counted"
    return "usage sent" if heard.usage is not None else "error sent"
