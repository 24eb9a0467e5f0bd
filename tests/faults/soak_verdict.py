"""Whether a soak went well: what the clients got, what the books say and what the upstream counted must agree."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.faults.bookkeeper import Row
from tests.faults.soak_clients import Visit

Outages = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Verdict:
    """What was counted, and what must not be."""

    tables: dict[str, "Counter[str]"]
    violations: list[str]

    @classmethod
    def of(
        cls, visits: Sequence[Visit], rows: Sequence[Row], report: Mapping[str, Any], calls: Sequence[dict[str, Any]], web_outages: Outages
    ) -> "Verdict":
        """Judge; nobody asks any more and no generation is open. `calls` are those of the upstream, as it counted them."""
        sent: defaultdict[str, list[int]] = defaultdict(list)
        for call in calls:
            sent[call["body"]["messages"][0]["content"]].append(call["tokens"])
        by_id = {row.id: row for row in rows}
        violations = [
            *_books(report),
            *_settled_once(rows),
            *(f"{visit}: {what}" for visit in visits for what in _told_once(visit, web_outages)),
            *(f"{visit}: {what}" for visit in visits for what in _told_is_charged(visit, by_id, sent[visit.prompt])),
            *_nobody_pays_for_nothing(rows, sent),
        ]
        tables = {
            "generations": Counter(row.outcome for row in rows),
            "usage": Counter(row.usage_source for row in rows),
            "ends": Counter(_end(visit) for visit in visits),
            "status": Counter(str(visit.status) for visit in visits),
        }
        return cls(tables, violations)

    @property
    def generations(self) -> int:
        """How many there were."""
        return self.tables["generations"].total()

    def asking_at_least(self, generations: int) -> "Verdict":
        """The same, and a violation where there were fewer: what hardly ran proves little."""
        if self.generations >= generations:
            return self
        return replace(self, violations=[*self.violations, f"only {self.generations} generations, at least {generations} were asked for"])


def _books(report: Mapping[str, Any]) -> Iterator[str]:
    """0 differences, 0 overdrawn, pending back to 0."""
    yield from (f"books: {each}" for each in report["differences"])
    yield from (f"overdrawn: {each}" for each in report["over limit"])
    yield from (f"still pending: {each}" for each in report["pending"])


def _settled_once(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if row.charges != 1 or row.overages:
            yield f"{row.id}: {row.charges} charges, {row.overages} overages"


def _told_once(visit: Visit, web_outages: Outages) -> Iterator[str]:
    if visit.failure:
        yield f"the client failed: {visit.failure}"
    if visit.events:
        yield f"after the end came {visit.events}"
    if visit.ends > 1:
        yield f"{visit.ends} ends"
    if visit.is_done and visit.ends != 1:
        yield "no end before [DONE]"
    if visit.is_broken and not any(began <= visit.ended_at and visit.began_at <= ended for began, ended in web_outages):
        yield "the connection broke, and web lived"


def _told_is_charged(visit: Visit, rows: Mapping[str, Row], sent: Sequence[int]) -> Iterator[str]:
    if len(sent) > 1:
        yield f"{len(sent)} calls of the upstream"
    if not visit.generation_id:
        return
    row = rows.get(visit.generation_id.removeprefix("chatcmpl-"))
    if row is None:
        yield f"{visit.generation_id} is lost"
        return
    if row.completion_tokens > sum(sent):
        yield f"charged {row.completion_tokens} tokens of {sum(sent)}"
    if visit.usage is not None:
        told = (visit.usage["prompt_tokens"], visit.usage["completion_tokens"])
        if told != (row.prompt_tokens, row.completion_tokens):
            yield f"told {told}, charged {row.prompt_tokens}+{row.completion_tokens}"


def _nobody_pays_for_nothing(rows: Sequence[Row], sent: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Also of those whose clients never learned their id."""
    charged, generated = sum(row.completion_tokens for row in rows), sum(map(sum, sent.values()))
    if charged > generated:
        yield f"{charged} tokens are charged, {generated} were sent"


def _end(visit: Visit) -> str:
    if visit.has_left:
        return "left"
    if visit.is_broken:
        return "web died in mid-answer" if visit.status else "web was away"
    return "usage told" if visit.usage is not None else "error told"
