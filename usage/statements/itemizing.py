"""Itemizing of days: the ledger entries of a day of UTC that is over, added up by the lines of statements.

Rollups don't know prices, and an amount is rounded for each request, so lines can't be computed from them.
Each day's requests are therefore read once, in parts, an hour after the day's end; a month is then the
sum of some rows a day. No entry reaches a day later, see `usage/rollups/closing.py`.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import Count, Max, QuerySet, Sum

from accounts.models import Organization
from usage import pricing
from usage.books.prices import History
from usage.database.clock import TruncUTC
from usage.database.snapshot import snapshot
from usage.failpoints import failpoint
from usage.models import BOOKED, CHARGED, DailyItem, ItemizedDay, ItemKind, Kind, LedgerEntry
from usage.pricing import FREE, PRICE_COLUMNS, TOKEN_COLUMNS, Price, Tokens
from usage.rollups import retention_horizon
from usage.rollups.closed_days import DAY
from usage.rollups.closing import Part, first_open_day, parts


class Item(NamedTuple):
    """What ledger entries have in common that belong to one line."""

    organization_id: int
    project_id: int | None
    model: str
    kind: str
    corrected_month: date | None = None
    list_per_mtok_nanodollars: int | None = None
    per_mtok_nanodollars: int | None = None


class Sums(NamedTuple):
    """The sums of one item, as the columns of `DailyItem`."""

    entries: int = 0
    tokens: int = 0
    list_nanodollars: int = 0
    amount_nanodollars: int = 0

    def plus(self, other: "Sums") -> "Sums":
        return Sums(*map(int.__add__, self, other))


Items = dict[Item, Sums]
Days = dict[date, Items]


def add(items: Items, more: Iterable[tuple[Item, Sums]]) -> Items:
    for item, sums in more:
        items[item] = items.get(item, Sums()).plus(sums)
    return items


# ---- days, step by step; a caller with a time limit for each call makes the steps itself


def itemize_next() -> date | None:
    """Itemize the oldest day that is over and not itemized, and return it; None when there is none.

    Any number of processes may call it at the same time, outside of transactions: two that itemize the same
    day write the same rows.
    """
    if (day := next_day()) is not None:
        _itemize(day)
    return day


def _itemize(day: date) -> None:
    items: Items = {}
    for part in parts(day):
        add(items, items_of_part(part).items())
    write(day, items)


def next_day() -> date | None:
    """Return the oldest day that is over and not itemized, None when there is none."""
    first_open = first_open_day(ItemizedDay)
    day = itemized_until() or first_day() or first_open
    return day if day < first_open else None


def first_day() -> date | None:
    """Return the day of the oldest entry."""
    first = LedgerEntry.objects.order_by("created_at", "id").values_list("created_at", flat=True).first()
    return first.date() if first else None


def itemized_until() -> date | None:
    """Return the day before which all days are itemized; None if there is none."""
    last: date | None = ItemizedDay.objects.aggregate(last=Max("day"))["last"]
    return last + DAY if last else None


def items_of_part(part: Part) -> Items:
    """Return the items of all organizations in a part of a day; this reads all of its entries."""
    entries = LedgerEntry.objects.filter(created_at__gte=part.start, created_at__lt=part.end)
    with snapshot():
        rows = rows_of(entries).iterator(chunk_size=5_000)
        return items_of(rows, History()).get(part.start.date(), {})


def write(day: date, items: Mapping[Item, Sums]) -> None:
    with transaction.atomic():
        # First: a second process that itemizes the day waits for this row.
        ItemizedDay.objects.update_or_create(day=day)
        of_every = DailyItem.objects.filter(organization__in=Organization.objects.values("pk"))
        of_every.filter(day=day).delete()  # the index begins with the organization
        rows = (
            DailyItem(day=day, **item._asdict(), **sums._asdict())
            for item, sums in sorted(items.items(), key=lambda pair: repr(pair[0]))
        )
        DailyItem.objects.bulk_create(rows, batch_size=500)
        failpoint("itemize.in_tx")


def itemize_anew() -> int:
    """Itemize all days again whose requests are kept, and all missing days; return the number of days.

    They stay itemized meanwhile: a process that itemizes the next day would leave a gap before it.
    """
    first_open, since = first_open_day(ItemizedDay), retention_horizon.horizon()
    first = first_day() or first_open
    if since:
        first = min(since.date(), itemized_until() or first)
    days = [first + number * DAY for number in range((first_open - first).days)]
    for day in days:
        _itemize(day)
    return len(days)


# ---- items of ledger entries


class _Entry(NamedTuple):
    """The columns of a ledger entry that its items are made of."""

    created_at: datetime
    organization_id: int
    project_id: int | None
    model: str
    kind: str
    amount_nanodollars: int
    prompt_tokens: int
    completion_tokens: int
    is_rerating: bool
    corrects__created_at: datetime | None


_REQUEST = ("admitted_at", "is_test", "is_waived", *TOKEN_COLUMNS, *PRICE_COLUMNS)


def rows_of(entries: QuerySet[LedgerEntry]) -> "QuerySet[LedgerEntry, tuple[Any, ...]]":
    """Return a row of each entry, with its request, for `items_of`."""
    return entries.order_by().values_list(*_Entry._fields, *(f"generation__{name}" for name in _REQUEST))


def items_of(rows: Iterable[tuple[Any, ...]], history: History) -> Days:
    """Return the items of the entries by the day on which they were written."""
    days: Days = {}
    for row in rows:
        entry = _Entry._make(row[: len(_Entry._fields)])
        items = days.setdefault(entry.created_at.date(), {})
        admitted_at, is_test, is_waived, *numbers = row[len(_Entry._fields) :]
        if entry.kind not in CHARGED or admitted_at is None:
            add(items, [_item_without_request(entry)])
        # The amount of a request is on its charge's lines; an overage is a part of it.
        elif entry.kind == Kind.CHARGE:
            tokens = Tokens(*numbers[: len(TOKEN_COLUMNS)])
            price = FREE if is_waived else Price(*numbers[len(TOKEN_COLUMNS) :])
            # A test is free because it is one, also if the organization's discount is of everything.
            is_free = is_test or is_waived
            listed = price if is_free else _list_price(history, entry, admitted_at, price)
            add(items, _lines(entry, tokens, price, listed))
    return days


def items_of_bookings(entries: QuerySet[LedgerEntry]) -> Days:
    """Return the items of those entries that people booked, by the day on which they were booked, added up by
    the database: a re-rating books as many corrections as there were requests.
    """
    groups = (
        entries.filter(BOOKED)
        .order_by()
        .annotate(day=TruncUTC("day", "created_at"), corrected_day=TruncUTC("day", "corrects__created_at"))
    )
    columns = ("day", "organization_id", "project_id", "model", "kind", "is_rerating", "corrected_day")
    sums = groups.values_list(*columns).annotate(Count("pk"), Sum("amount_nanodollars"))
    days: Days = {}
    for day, *owner, is_rerating, corrected_day, count, amount in sums:
        entry = _Entry._make((day, *owner, amount, 0, 0, is_rerating, corrected_day))
        item, one = _item_without_request(entry)
        add(days.setdefault(day.date(), {}), [(item, one._replace(entries=count))])
    return days


def _item_without_request(entry: _Entry) -> tuple[Item, Sums]:
    """Return the item of a correction, of credit, or of a charge whose request was exported and dropped."""
    month = entry.corrects__created_at and entry.corrects__created_at.date().replace(day=1)
    kind = _kind_without_request(entry).value
    item = Item(entry.organization_id, entry.project_id, entry.model, kind, month)
    tokens = entry.prompt_tokens + entry.completion_tokens
    count = int(entry.kind != Kind.OVERAGE)
    return item, Sums(count, tokens, entry.amount_nanodollars, entry.amount_nanodollars)


def _kind_without_request(entry: _Entry) -> ItemKind:
    """Return the kind of the entry's item; raises `ValueError` for a kind that only a newer release knows."""
    match Kind(entry.kind):
        case Kind.CHARGE | Kind.OVERAGE:
            return ItemKind.ALL_TOKENS
        case Kind.CORRECTION:
            return ItemKind.RERATING if entry.is_rerating else ItemKind.CORRECTION
        case Kind.GRANT:
            return ItemKind.GRANT
        case Kind.REFUND:
            return ItemKind.REFUND


def _lines(entry: _Entry, tokens: Tokens, price: Price, listed: Price) -> Iterator[tuple[Item, Sums]]:
    """Yield the lines of a receipt; a request that costs nothing has its tokens at the price 0."""
    owner = (entry.organization_id, entry.project_id, entry.model)
    lines, at_list = pricing.line_items(tokens, price), pricing.line_items(tokens, listed)
    for line, full in zip(lines, at_list, strict=True):
        item = Item(*owner, line.name, None, full.price_per_mtok_nanodollars, line.price_per_mtok_nanodollars)
        yield item, Sums(1, line.tokens, full.amount_nanodollars, line.amount_nanodollars)


def _list_price(history: History, entry: _Entry, admitted_at: datetime, price: Price) -> Price:
    """Return the price before the discount; the request's own if no discount explains it."""
    points = history.discount_at(admitted_at, entry.organization_id)
    listed = history.listed_at(entry.model, admitted_at) if points else None
    return listed if listed is not None and pricing.discounted(listed, points) == price else price
