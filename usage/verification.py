"""Checks the books against themselves, on a live system: every invariant is a query that must find nothing.

All queries see one snapshot, so that running settlements do not look like differences.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from django.db import connection, transaction
from django.db.models import Count, F, OuterRef, Q, Subquery, Sum
from django.db.models.functions import Coalesce, TruncHour

from usage import budgets, pricing
from usage.models import Budget, Generation, HourlyUsage, Kind, LedgerEntry, State
from usage.pricing import Tokens
from usage.rollups import Group

MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that should be equal and is not."""

    invariant: str
    subject: str
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked and what was found."""

    generations: int
    open_generations: int
    entries: int
    differences: list[Difference]


def verify() -> Report:
    """Check every invariant in one snapshot (inside a transaction of the caller: in that one)."""
    is_outermost = not connection.in_atomic_block
    with transaction.atomic():
        if is_outermost and connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return Report(
            generations=Generation.objects.count(),
            open_generations=Generation.objects.exclude(state=State.SETTLED).count(),
            entries=LedgerEntry.objects.count(),
            differences=[difference for check in CHECKS for difference in check()],
        )


def _one_charge_each() -> Iterator[Difference]:
    """I1: a settled generation has exactly one charge, an open one has none."""
    counted = Generation.objects.annotate(charges=Count("ledger_entries", filter=Q(ledger_entries__kind=Kind.CHARGE)))
    wrong = counted.exclude(Q(state=State.SETTLED, charges=1) | Q(~Q(state=State.SETTLED), charges=0))
    for row in wrong[:MAX_SHOWN]:
        yield Difference("I1 one charge", str(row), "1 charge" if row.state == State.SETTLED else "no charge", f"{row.charges} charges")


def _amounts_recompute() -> Iterator[Difference]:
    """I7: tokens × the row's own price is the row's amount, and the ledger's entries add up to it."""
    ledger = LedgerEntry.objects.filter(generation=OuterRef("pk")).values("generation").annotate(total=Sum("amount_nanodollars"))
    rows = Generation.objects.filter(state=State.SETTLED).annotate(posted=Coalesce(Subquery(ledger.values("total")), 0))
    for row in rows.iterator(chunk_size=2_000):
        tokens = Tokens(row.prompt_tokens, row.completion_tokens, row.cached_tokens, row.reasoning_tokens)
        expected = 0 if row.is_waived else pricing.amount(tokens, row.price)
        if not expected == row.amount_nanodollars == row.posted:
            yield Difference("I7 exact money", str(row), f"{expected} n$", f"row {row.amount_nanodollars} n$, ledger {row.posted} n$")


def _entries_match_rows() -> Iterator[Difference]:
    """I11: the tokens in the ledger are the tokens of the generation."""
    wrong = LedgerEntry.objects.filter(kind=Kind.CHARGE).exclude(
        prompt_tokens=F("generation__prompt_tokens"), completion_tokens=F("generation__completion_tokens"), outcome=F("generation__outcome")
    )
    for entry in wrong.select_related("generation")[:MAX_SHOWN]:
        row = entry.generation
        yield Difference(
            "I11 told = charged",
            str(row),
            f"{row.prompt_tokens}+{row.completion_tokens}",
            f"{entry.prompt_tokens}+{entry.completion_tokens}",
        )


def _overage_is_apart() -> Iterator[Difference]:
    """I4: a charge never exceeds its hold."""
    wrong = LedgerEntry.objects.filter(kind=Kind.CHARGE, amount_nanodollars__gt=F("generation__reserved_nanodollars"))
    for entry in wrong.select_related("generation")[:MAX_SHOWN]:
        yield Difference(
            "I4 hold", str(entry.generation), f"≤ {entry.generation.reserved_nanodollars} n$", f"{entry.amount_nanodollars} n$"
        )


def _budgets_conserve() -> Iterator[Difference]:
    """I2: posted is the ledger's sum, pending is the open holds' sum, for every budget."""
    posted, pending = _sums_by_budget()
    for budget in Budget.objects.order_by("id").iterator():
        expected = (posted.pop(budget.id, 0), pending.pop(budget.id, 0))
        found = (budget.posted_nanodollars, budget.pending_nanodollars)
        if expected != found:
            yield Difference("I2 conservation", budget.id, "posted {} pending {}".format(*expected), "posted {} pending {}".format(*found))
    for budget_id in sorted(posted.keys() | pending.keys()):
        if posted.get(budget_id) or pending.get(budget_id):
            yield Difference("I2 conservation", budget_id, f"posted {posted.get(budget_id, 0)}", "no such budget")


def _sums_by_budget() -> tuple[dict[str, int], dict[str, int]]:
    group = ("organization_id", "project_id", "api_key_id", "budget_day")
    ledger = LedgerEntry.objects.values_list(*group).annotate(total=Sum("amount_nanodollars")).order_by()
    holds = Generation.objects.exclude(state=State.SETTLED).values_list(*group).annotate(total=Sum("reserved_nanodollars")).order_by()
    sums: list[dict[str, int]] = []
    for rows in (ledger, holds):
        by_budget: dict[str, int] = {}
        for organization_id, project_id, api_key_id, day, total in rows:
            for budget_id in budgets.ids_for(organization_id, project_id, api_key_id, day):
                by_budget[budget_id] = by_budget.get(budget_id, 0) + total
        sums.append(by_budget)
    return sums[0], sums[1]


def _rollup_is_the_ledger() -> Iterator[Difference]:
    """I2, I13: the hourly rollup is the ledger summed, row by row."""
    expected = {group: tuple(numbers) for group, numbers in _ledger_by_hour().items()}
    columns = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "amount_nanodollars")
    found = {
        (row.organization_id, row.hour, row.project_id, row.api_key_id, row.model, row.outcome): tuple(
            getattr(row, name) for name in columns
        )
        for row in HourlyUsage.objects.iterator()
    }
    for group in sorted(expected.keys() | found.keys()):
        if expected.get(group) != found.get(group):
            subject = f"key {group[3]}, {group[4]}, {group[1]:%Y-%m-%d %H}h, {group[5]}"
            yield Difference("I2 rollup", subject, str(expected.get(group)), str(found.get(group)))


def _ledger_by_hour() -> dict[Group, list[int]]:
    keys = ("organization_id", "hour", "project_id", "api_key_id", "model", "outcome")
    sums = [Sum(name) for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "amount_nanodollars")]
    rows = (
        LedgerEntry.objects.annotate(hour=TruncHour("created_at"))
        .values_list(*keys)
        .annotate(*sums, charges=Count("id", filter=Q(kind=Kind.CHARGE)))
        .order_by()
    )
    return {tuple(row[: len(keys)]): [row[-1], *row[len(keys) : -1]] for row in rows}


CHECKS: tuple[Callable[[], Iterator[Difference]], ...] = (
    _one_charge_each,
    _amounts_recompute,
    _entries_match_rows,
    _overage_is_apart,
    _budgets_conserve,
    _rollup_is_the_ledger,
)
