"""Invariants of generations and ledger entries, numbered as in the README.

Every check is a query that must find nothing. With `since`, it looks only at rows that were settled or
written from then on.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from django.db.models import Count, Exists, F, Model, OuterRef, Q, QuerySet, Subquery, Sum, Value
from django.db.models.functions import Coalesce

from accounts.models import Organization
from usage import pricing
from usage.models import (
    CHARGED,
    OPEN,
    Generation,
    Kind,
    LedgerEntry,
    Outcome,
    RetentionHorizon,
    State,
    UsageSource,
)
from usage.models.budget_keys import BudgetOwners
from usage.pricing import TOKEN_COLUMNS, Tokens
from usage.rollups import closed_days, retention_horizon
from usage.verification import triggers

Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True, slots=True)
class Difference:
    """Two values that should be equal and are not, in words for people."""

    invariant: str
    subject: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.subject}: expected {self.expected}, found {self.found}"


def by_organization(rows: QuerySet[Row]) -> QuerySet[Row]:
    """Return the rows with a condition that is true for all of them, on the first column of their index.

    Without it, the databases read a whole table, which is kept for ever, for the rows of the last days.
    """
    return rows.filter(organization__in=Organization.objects.values("pk"))


# How long ago a lease may have expired: far longer than a reaper needs to take it over.
LATE = timedelta(minutes=1)


def one_charge_each(since: datetime | None) -> Iterator[Difference]:
    """Check I1: a settled generation has exactly one charge, an open one has no entry at all."""
    charges = Count("ledger_entries", filter=Q(ledger_entries__kind=Kind.CHARGE))
    counted = generations(since).annotate(charges=charges, entries=Count("ledger_entries"))
    for row in counted.exclude(Q(state=State.SETTLED, charges=1) | OPEN & Q(entries=0)):
        is_settled = row.state == State.SETTLED
        yield Difference(
            "I1 one charge",
            str(row),
            "1 charge" if is_settled else "no entry",
            f"{row.charges} charges, {row.entries} entries",
        )


def nothing_is_stuck(now: datetime) -> Iterator[Difference]:
    """Check I3: a reaper settles generations whose worker is gone."""
    for row in Generation.objects.exclude(state=State.SETTLED).filter(lease_expires_at__lt=now - LATE):
        yield Difference(
            "I3 stuck",
            str(row),
            "settled",
            f"{row.state}, its lease ran out at {row.lease_expires_at:%Y-%m-%d %H:%M:%S}",
        )


def overage_is_apart(since: datetime | None) -> Iterator[Difference]:
    """Check I4: a charge never exceeds its hold, and only a charge of the whole hold has an overage."""
    charge = LedgerEntry.objects.filter(generation=OuterRef("generation"), kind=Kind.CHARGE).values(
        "amount_nanodollars"
    )
    rows = (
        entries(since)
        .filter(_WITH_ROW, kind__in=CHARGED)
        .select_related("generation")
        .annotate(charged=Subquery(charge))
    )
    held = F("generation__reserved_nanodollars")
    for entry in rows.filter(
        Q(kind=Kind.CHARGE, amount_nanodollars__gt=held) | Q(kind=Kind.OVERAGE) & ~Q(charged=held)
    ):
        assert entry.generation is not None
        held_nanodollars = entry.generation.reserved_nanodollars
        yield Difference(
            "I4 hold",
            f"{entry.kind} of {entry.generation}",
            f"charge ≤ {held_nanodollars} n$",
            f"{entry.charged} n$",
        )


def rows_are_protected() -> Iterator[Difference]:
    """Check I6: triggers protect the ledger, its seals, and generations that are not exported."""
    if wrong := list(triggers.missing()):
        yield Difference(
            "I6 immutable",
            "the ledger's triggers",
            "all as they were made",
            f"gone or changed: {', '.join(wrong)}",
        )


def generations_are_kept(since: datetime | None) -> Iterator[Difference]:
    """Check I15: charges have their generations, but for those before the horizon that were exported."""
    gone = entries(since).filter(kind__in=CHARGED).exclude(_HAS_ROW)
    kept_since = retention_horizon.horizon()
    for entry in gone.filter(created_at__gte=kept_since) if kept_since else gone:
        yield Difference("I15 kept", f"{entry.kind} {entry.pk}", f"{entry.request_id}", "no such generation")
    for dropped in RetentionHorizon.objects.order_by("day"):
        span = (closed_days.midnight(dropped.after), closed_days.midnight(dropped.day))
        if since and span[1] <= since:
            continue
        expected = dropped.generations_count if dropped.finished_at else dropped.dropped_count
        charges = LedgerEntry.objects.filter(
            kind=Kind.CHARGE, created_at__gte=span[0], created_at__lt=span[1]
        )
        if (count := charges.exclude(_HAS_ROW).count()) != expected:
            yield Difference(
                "I15 kept",
                f"settled from {dropped.after} to {dropped.day}",
                f"{expected} dropped",
                f"{count} gone",
            )


def amounts_recompute(since: datetime | None) -> Iterator[Difference]:
    """Check I7: tokens × the row's own price is its amount, and so is the sum of its charge and overage."""
    charges = LedgerEntry.objects.filter(generation=OuterRef("pk"), kind__in=CHARGED).values("generation")
    posted = Subquery(charges.annotate(total=Sum("amount_nanodollars")).values("total"))
    rows = generations(since).filter(state=State.SETTLED).annotate(posted=Coalesce(posted, Value(0)))
    # In chunks: a year's rows do not fit into memory.
    for row in rows.iterator(chunk_size=2_000):
        tokens = Tokens.of(row)
        expected = 0 if row.is_waived else pricing.amount(tokens, row.price)
        if not expected == row.amount_nanodollars == row.posted:
            yield Difference(
                "I7 exact money",
                str(row),
                f"{expected} n$",
                f"row {row.amount_nanodollars} n$, ledger {row.posted} n$",
            )


def corrections_belong(since: datetime | None) -> Iterator[Difference]:
    """Check I7: corrections count where their charges do, have no tokens, and take no more."""
    same = ("generation", "organization", "project", "api_key", "model", "outcome", "budget_day")
    # A correction of a correction, or of nothing, is a stray too.
    strays = ~Q(corrects__kind__in=CHARGED)
    for name in same:
        strays |= ~Q(**{name: F(f"corrects__{name}")})
    corrections = entries(since).filter(kind=Kind.CORRECTION)
    for entry in corrections.filter(strays | Q(prompt_tokens__gt=0) | Q(completion_tokens__gt=0)):
        yield Difference(
            "I7 correction",
            f"ledger entry {entry.pk}",
            f"like entry {entry.corrects_id}, no tokens",
            str(entry),
        )
    touched = (
        LedgerEntry.objects.filter(generation__in=corrections.values("generation"))
        .values_list("generation")
        .order_by()
    )
    for generation_id, total in touched.annotate(total=Sum("amount_nanodollars")).filter(total__lt=0):
        yield Difference("I7 correction", f"generation {generation_id}", "≥ 0 n$ charged", f"{total} n$")


def usage_has_a_source(since: datetime | None) -> Iterator[Difference]:
    """Check I10: counts have a source; only failures without output are waived; tests are free."""
    without_source = ~Q(usage_source__in=UsageSource.values) | Q(
        usage_source=UsageSource.NONE, completion_tokens__gt=0
    )
    # Written again, not imported from the settlement: a check that shares code with what it checks shares
    # its mistakes.
    is_waived = ~Q(outcome=Outcome.COMPLETED) & Q(completion_tokens=0)
    wrong = (
        without_source
        | is_waived & Q(is_waived=False)
        | Q(is_waived=True) & ~is_waived
        | Q(is_test=True, amount_nanodollars__gt=0)
    )
    for row in generations(since).filter(wrong, state=State.SETTLED):
        expected = "waived" if row.is_waived else "a source for what is charged"
        counted = f"{row.completion_tokens} tokens out, {row.amount_nanodollars} n$"
        found = f"{row.outcome}, {row.usage_source}: {counted}"
        yield Difference("I10 provenance", str(row), expected, found)


def told_is_charged(since: datetime | None) -> Iterator[Difference]:
    """Check I11: a charge has its generation's tokens, which the client got, and its owner and time."""
    wrong = (
        entries(since)
        .filter(_WITH_ROW, kind=Kind.CHARGE)
        .exclude(
            *_SAME_OR_NULL,
            # A generation's kinds of tokens are NULL if the upstream did not report them; the ledger has
            # zeros.
            **{name: Coalesce(f"generation__{name}", 0) for name in TOKEN_COLUMNS},
            outcome=F("generation__outcome"),
            created_at=F("generation__settled_at"),
            **{name: F(f"generation__{name}") for name in _OWNED},
        )
    )
    for entry in wrong.select_related("generation"):
        row = entry.generation
        assert row is not None
        expected = (
            f"{row.prompt_tokens}+{row.completion_tokens}, {row.outcome}, {row.settled_at}, {_owned(row)}"
        )
        tokens = f"{entry.prompt_tokens}+{entry.completion_tokens}"
        charged = f"{tokens}, {entry.outcome}, {entry.created_at}, {_owned(entry)}"
        yield Difference("I11 sent = charged", str(row), expected, charged)


# Columns in which a charge equals its generation; other owners of budgets may be null in both.
_OWNED = ("organization_id", "project_id", "api_key_id", "model", "budget_day")
_MAY_BE_NULL = [name for name in BudgetOwners._fields if name not in _OWNED]
_SAME_OR_NULL = [
    Q(**{name: F(f"generation__{name}")}) | Q(**{name: None, f"generation__{name}": None})
    for name in _MAY_BE_NULL
]


def _owned(row: Generation | LedgerEntry) -> str:
    return " ".join(str(getattr(row, name)) for name in (*_OWNED, *_MAY_BE_NULL))


_HAS_ROW = Exists(Generation.objects.filter(pk=OuterRef("generation_id")))
# Entries whose generation was not dropped; this joins it.
_WITH_ROW = Q(generation__state__in=State.values)


def generations(since: datetime | None) -> QuerySet[Generation]:
    """Return the generations to check: settled since then, or open."""
    rows = Generation.objects.order_by("id")
    return rows.filter(OPEN | Q(settled_at__gte=since)) if since else rows


def entries(since: datetime | None) -> QuerySet[LedgerEntry]:
    """Return the entries to check: written since then."""
    rows = LedgerEntry.objects.order_by("id")
    return rows.filter(created_at__gte=since) if since else rows
