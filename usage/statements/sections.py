"""A statement as people read it, on the page and in the PDF: a summary, and sections with rows of text.

All amounts have the same number of decimals, so that they are exact and can be compared by eye.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby

from usage.formatting import time_span
from usage.models import OWED_SIGNS, ItemKind
from usage.pricing import NANODOLLARS
from usage.statements.document import CREDIT, CreditMovement, CreditNote, StatementDocument, StatementLine
from usage.statements.month import Month

# Lines and credit notes that a page or a PDF shows; the other files have all of them.
MAX_ROWS = 500
_REASONS = {"correction": "Correction", "rerating": "Re-rating"}
_DECIMALS = (2, 4, 6, 9)
# The members of the totals with credit, and the signs of its entries in the ledger.
_CREDIT_TOTALS = {each.total: OWED_SIGNS[kind] for kind, each in CREDIT.items()}
_Written = Callable[[int], str]
Rows = Sequence[Sequence[str]]


# Where people find each member of a statement: above the summary, in it, in a section, or in files only.
_PLACES = {
    "head": {"status", "organization", "period_start", "period_end", "until", "currency"},
    "summary": {"totals"},
    "sections": {"lines", "credit_notes", "credit", "discounts"},
    "files": {"id", "object", "organization_id", "newest_seal"},
}
assert sorted(chain(*_PLACES.values())) == sorted(StatementDocument.__struct_fields__), "each has one place"


@dataclass(frozen=True, slots=True)
class Head:
    """The lines above the summary; `preview` is empty if the month is closed."""

    title: str
    period: str
    preview: str


@dataclass(frozen=True, slots=True)
class Sum:
    """A line of the summary."""

    name: str
    amount: str
    is_total: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a section, with its part of the width."""

    name: str
    width: int
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one project, with its name and sum; without a name the rows stand alone."""

    name: str
    total: str
    rows: Rows


@dataclass(frozen=True, slots=True)
class Section:
    """A table with a title, its columns, and groups of rows."""

    title: str
    columns: Sequence[Column]
    groups: Sequence[Group]
    left_out: int = 0
    """Rows that are not shown."""


def _number(name: str, width: int) -> Column:
    return Column(name, width, is_number=True)


_MODEL, _KIND = Column("Model", 30), Column("Kind of tokens", 20)
_REQUESTS, _TOKENS = _number("Requests", 13), _number("Tokens", 17)
_LIST_PRICE, _PRICE, _AMOUNT = _number("List price", 14), _number("Per million", 15), _number("Amount", 20)
_NOTES = (
    Column("Number", 20), Column("Corrects", 21), Column("Project", 20), Column("Model", 23),
    Column("Reason", 14), _number("Corrections", 15), _AMOUNT,
)  # fmt: skip
_CREDIT = (Column("Date (UTC)", 40), Column("Credit", 40), _number("Bookings", 20), _AMOUNT)
_DISCOUNTS = (Column("Requests started from (UTC)", 60), _number("Discount on all prices", 40))


def head(made: StatementDocument) -> Head:
    return Head(
        f"Statement for {made.month.title}",
        f"{time_span(made.period_start, made.period_end)}, in US dollars",
        f"Preview, as of {made.until:%Y-%m-%d %H:%M} UTC." if made.is_preview else "",
    )


def summary(made: StatementDocument) -> list[Sum]:
    """Return the way from the opening to the closing balance."""
    totals, written = made.totals, _amounts(made)
    sums = [Sum("Opening balance", written(totals.opening_balance.nanodollars), is_total=True)]
    if totals.discount.nanodollars:
        sums += [
            Sum("Usage at list price", written(totals.list_amount.nanodollars)),
            Sum("Discount", written(-totals.discount.nanodollars)),
        ]
    sums += [
        Sum("Usage", written(totals.usage.nanodollars)),
        Sum("Credit notes", written(totals.corrections.nanodollars)),
        Sum("Less: charged", written(totals.charged.nanodollars), is_total=True),
    ]
    for name, owed_sign in _CREDIT_TOTALS.items():
        amount = getattr(totals, name).nanodollars
        if amount or name == "granted":
            sums.append(Sum(f"{'Plus' if owed_sign < 0 else 'Less'}: credit {name}", written(amount)))
    name = "Balance so far" if made.is_preview else "Closing balance"
    return [*sums, Sum(name, written(totals.closing_balance.nanodollars), is_total=True)]


def sections(made: StatementDocument) -> list[Section]:
    """Return the tables that have rows."""
    written = _amounts(made)
    notes = [_note(note, made, written) for note in made.credit_notes[:MAX_ROWS]]
    credit = [
        [
            f"{moved.date:%d %B %Y}".lstrip("0"),
            CREDIT[moved.kind].word,
            f"{moved.bookings:,}",
            written(moved.amount.nanodollars),
        ]
        for moved in made.credit
    ]
    discounts = [
        [f"{each.effective_from:%d %B %Y %H:%M}".lstrip("0"), f"{each.percent} %"] for each in made.discounts
    ]
    found = [
        _usage(made, written),
        Section("Credit notes", _NOTES, _alone(notes), max(len(made.credit_notes) - MAX_ROWS, 0)),
        Section("Credit", _CREDIT, _alone(credit)),
        Section("Discounts", _DISCOUNTS, _alone(discounts)),
    ]
    return [section for section in found if section.groups]


def _alone(rows: Rows) -> list[Group]:
    return [Group("", "", rows)] if rows else []


def _usage(made: StatementDocument, written: _Written) -> Section:
    has_discount = bool(made.totals.discount.nanodollars)
    prices = (_LIST_PRICE, _PRICE) if has_discount else (_PRICE,)
    groups: list[Group] = []
    for (project, _), each in groupby(made.lines, lambda line: (line.project, line.project_id)):
        lines, room = list(each), MAX_ROWS - sum(len(group.rows) for group in groups)
        if room > 0:
            total = written(sum(line.amount.nanodollars for line in lines))
            rows = [_line(line, written, has_discount=has_discount) for line in lines[:room]]
            groups.append(Group(project, total, rows))
    columns = (_MODEL, _KIND, _REQUESTS, _TOKENS, *prices, _AMOUNT)
    return Section("Usage", columns, groups, max(len(made.lines) - MAX_ROWS, 0))


def _per_million(price: str | None) -> str:
    """Return the exact price, with cents at least."""
    if price is None:
        return "–"
    dollars, _, fraction = price.partition(".")
    return f"${dollars}.{fraction:0<2}"


def _line(line: StatementLine, written: _Written, *, has_discount: bool) -> list[str]:
    prices = [line.list_price_per_mtok_usd] if has_discount else []
    return [
        line.model,
        str(ItemKind(line.kind).label),
        f"{line.requests:,}",
        f"{line.tokens:,}",
        *(_per_million(price) for price in (*prices, line.price_per_mtok_usd)),
        written(line.amount.nanodollars),
    ]


def _note(note: CreditNote, made: StatementDocument, written: _Written) -> list[str]:
    month = Month.parse(note.corrects)
    corrects = "this month" if note.corrects == made.id else month.title if month else note.corrects
    return [
        note.id,
        corrects,
        note.project,
        note.model,
        _REASONS[note.reason],
        f"{note.corrections:,}",
        written(note.amount.nanodollars),
    ]


def _amounts(made: StatementDocument) -> _Written:
    """Return the function that writes amounts, with as few decimals as all of them need."""
    # All others are sums of these.
    sums = (made.totals.opening_balance, made.totals.list_amount)
    rows: list[StatementLine | CreditNote | CreditMovement] = [*made.lines, *made.credit_notes, *made.credit]
    amounts = (*sums, *(row.amount for row in rows))
    fractions = [f"{_fraction(each.nanodollars):09d}".rstrip("0") for each in amounts]
    longest = max(map(len, fractions))
    decimals = next(each for each in _DECIMALS if each >= longest)

    def written(nanodollars: int) -> str:
        whole, digits = abs(nanodollars) // NANODOLLARS, f"{_fraction(nanodollars):09d}"
        assert not digits[decimals:].strip("0"), "an amount that is not among those above would be cut"
        return f"{'-' if nanodollars < 0 else ''}${whole:,}.{digits[:decimals]}"

    return written


def _fraction(nanodollars: int) -> int:
    return abs(nanodollars) % NANODOLLARS
