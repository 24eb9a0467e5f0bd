"""Invariants of statements: they are as issued, follow each other, and have the sums of the ledger.

The chain is: the ledger equals its hours, hours their days (`sum_checks`), days their items, items the
statements.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from datetime import date, datetime
from hashlib import sha256
from typing import Any

import msgspec
from django.db.models import F, Q, QuerySet, Sum

from usage.database.clock import TruncUTC
from usage.models import (
    BOOKED,
    CORRECTING,
    CREDITING,
    ClosedDay,
    DailyItem,
    DailyUsage,
    ItemizedDay,
    LedgerEntry,
    Statement,
)
from usage.rollups import closed_days
from usage.statements import document
from usage.statements.document import StatementDocument
from usage.statements.month import Month
from usage.verification.invariants import Difference, by_organization

_NAME = "I16 statement"


def items_are_the_ledger(since: datetime | None) -> Iterator[Difference]:
    """Check I16: the items of each day are its usage and its credit (of the days that began since then)."""
    days, closed = ItemizedDay.objects.all(), ClosedDay.objects.all()
    # By the index of bookings: the ledger as a whole takes too long.
    credit = by_organization(LedgerEntry.objects.filter(BOOKED, kind__in=CREDITING)).order_by()
    if since:
        days, closed = days.filter(day__gt=since.date()), closed.filter(day__gt=since.date())
        credit = credit.filter(created_at__gte=closed_days.midnight(since.date()))
    items = by_organization(DailyItem.objects.filter(day__in=days)).order_by()
    # Compared where both are there: the two are written one after the other.
    usage = by_organization(DailyUsage.objects.filter(day__in=days).filter(day__in=closed)).order_by()
    yield from _unequal_usage(usage, items.exclude(kind__in=CREDITING).filter(day__in=closed))
    itemized = set(days.values_list("day", flat=True))
    yield from _unequal_credit(credit, itemized, items.filter(kind__in=CREDITING))


def _unequal_usage(usage: QuerySet[DailyUsage], items: QuerySet[DailyItem]) -> Iterator[Difference]:
    keys = ("organization_id", "day", "project_id", "model")
    tokens = F("prompt_tokens") + F("completion_tokens")
    expected = _sums(usage, keys, tokens=Sum(tokens), amount=Sum("amount_nanodollars"))
    found = _sums(items, keys, tokens=Sum("tokens"), amount=Sum("amount_nanodollars"))
    yield from _unequal("usage", expected, found)


def _unequal_credit(
    credit: QuerySet[LedgerEntry], itemized: Set[date], items: QuerySet[DailyItem]
) -> Iterator[Difference]:
    booked = _sums(credit.annotate(at=TruncUTC("day", "created_at")), ("organization_id", "at", "kind"))
    by_day = {(owner, at.date(), kind): sums for (owner, at, kind), sums in booked.items()}
    expected = {group: sums for group, sums in by_day.items() if group[1] in itemized}
    found = _sums(items, ("organization_id", "day", "kind"))
    yield from _unequal("credit", expected, found)


def _sums(rows: Any, keys: tuple[str, ...], **sums: Sum) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """Return the sums by group, without groups in which all of them are zero."""
    wanted = sums or {"amount": Sum("amount_nanodollars")}
    found = {row[: len(keys)]: row[len(keys) :] for row in rows.values_list(*keys).annotate(**wanted)}
    return {group: values for group, values in found.items() if any(values)}


def _unequal(
    what: str, expected: dict[tuple[Any, ...], tuple[int, ...]], found: dict[tuple[Any, ...], tuple[int, ...]]
) -> Iterator[Difference]:
    for group in sorted(expected.keys() | found.keys(), key=repr):
        if expected.get(group) != found.get(group):
            names = ", ".join(str(part) for part in group[2:])
            subject = f"items of {what} on {group[1]}, organization {group[0]}, {names}"
            yield Difference(_NAME, subject, str(expected.get(group)), str(found.get(group)))


def statements_are_as_issued(since: datetime | None) -> Iterator[Difference]:
    """Check I16: each statement (issued since then) has its digest, follows the one before it without a gap,
    and has the sums of its items.
    """
    rows = Statement.objects.order_by("organization_id", "month")
    before: Statement | None = None
    for row in (rows.filter(issued_at__gte=since) if since else rows).iterator(chunk_size=20):
        if before is None or before.organization_id != row.organization_id:
            earlier = Statement.objects.filter(organization=row.organization_id, month__lt=row.month)
            before = earlier.order_by("month").last()
        subject = f"the statement {row.month:%Y-%m} of organization {row.organization_id}"
        yield from (Difference(_NAME, subject, *each) for each in _differences(row, before))
        before = row


# What each column repeats of the content, as text.
_REPEATED: Mapping[str, Callable[[StatementDocument], str]] = {
    "organization_id": lambda made: made.organization_id,
    "month": lambda made: f"{made.id}-01",
    "charged_nanodollars": lambda made: str(made.totals.charged.nanodollars),
    "closing_balance_nanodollars": lambda made: str(made.totals.closing_balance.nanodollars),
}
_COLUMNS = {column.attname for column in Statement._meta.concrete_fields}
assert {*_REPEATED} == _COLUMNS - {"id", "content", "digest", "issued_at"}, "each other column is checked"


def _differences(row: Statement, before: Statement | None) -> Iterator[tuple[str, str]]:
    """Yield each expected value of the statement with the different value that was found."""
    digest = sha256(row.content.encode()).hexdigest()
    if digest != row.digest:
        yield f"content of the digest {row.digest[:16]}", f"its digest is {digest[:16]}"
    try:
        made = document.decode(row.content)
    except msgspec.DecodeError as error:
        yield "a statement", f"content that can't be read: {error}"
        return
    totals = made.totals
    columns = tuple(str(getattr(row, name)) for name in _REPEATED)
    inside = tuple(value(made) for value in _REPEATED.values())
    if columns != inside:
        yield f"the columns {inside}", f"{columns}"
    if before and Month.of(before.month).next != Month.of(row.month):
        yield f"a statement {Month.of(before.month).next} before it", f"{Month.of(before.month)}"
    opening = before.closing_balance_nanodollars if before else 0
    if totals.opening_balance.nanodollars != opening:
        yield f"an opening balance of {opening} n$", f"{totals.opening_balance.nanodollars} n$"
    if (wanted := _of_items(row)) != (sums := _of_document(made)):
        yield f"the sums of its items, {wanted}", f"{sums}"
    if _balance(made) != totals.closing_balance.nanodollars:
        yield f"a closing balance of {_balance(made)} n$", f"{totals.closing_balance.nanodollars} n$"


def _of_items(row: Statement) -> dict[str, int]:
    month = Month.of(row.month)
    items = DailyItem.objects.filter(
        organization=row.organization_id, day__gte=month.first_day, day__lt=month.next.first_day
    )
    kinds = {
        "usage": ~Q(kind__in=[*CORRECTING, *CREDITING]),
        "corrections": Q(kind__in=CORRECTING),
        "credit": Q(kind__in=CREDITING),
    }
    return items.aggregate(
        **{name: Sum("amount_nanodollars", filter=kind, default=0) for name, kind in kinds.items()}
    )


def _of_document(made: StatementDocument) -> dict[str, int]:
    """Return the sums of the lines, credit notes and credit, with the ledger's signs."""
    return {
        "usage": sum(line.amount.nanodollars for line in made.lines),
        "corrections": sum(note.amount.nanodollars for note in made.credit_notes),
        "credit": sum(each.owed_nanodollars for each in made.credit),
    }


def _balance(made: StatementDocument) -> int:
    return made.totals.opening_balance.nanodollars - sum(_of_document(made).values())
