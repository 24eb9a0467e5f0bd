"""A statement as a value: its lines, credit notes, payments and totals, and how they are made of items.

Amounts of charges are positive if the organization owes them. Balances are credit: negative if it owes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Literal, NamedTuple, get_args

import msgspec
from msgspec import Struct

from usage.models import CORRECTING, CREDITING, OWED_SIGNS, ItemKind
from usage.pricing import LineName, to_usd
from usage.statements.itemizing import Item, Items, Sums, add
from usage.statements.month import Month

TokenKind = Literal[LineName, "all_tokens"]
_KINDS = list(ItemKind.values)
assert {*get_args(TokenKind), *CORRECTING, *CREDITING} == {*_KINDS}, "issued content must be readable"


class Money(Struct, frozen=True, kw_only=True):
    """Money, exact in both members."""

    usd: str
    nanodollars: int

    @classmethod
    def of(cls, nanodollars: int) -> "Money":
        return cls(usd=to_usd(nanodollars), nanodollars=nanodollars)


class StatementLine(Struct, frozen=True, kw_only=True):
    """The tokens of one project, model, kind and price. `amount` is what was charged: `list_amount`, which is
    at the price before the organization's discount, less `discount`.

    Each request's amount was rounded to a nanodollar, so the amount may differ a little from tokens × price.
    Kind `all_tokens`, without prices: the requests were not counted by kind.
    """

    project_id: str
    project: str
    model: str
    kind: TokenKind
    requests: int
    tokens: int
    list_price_per_mtok_usd: str | None
    price_per_mtok_usd: str | None
    list_amount: Money
    discount: Money
    amount: Money


class CreditNote(Struct, frozen=True, kw_only=True):
    """Later changes of charges of one project, model and month, booked in the statement's month. A negative
    amount gives back. `corrects` is the statement that has the charges: an earlier one, or this one.
    """

    id: str
    corrects: str
    reason: Literal["correction", "rerating"]
    project_id: str
    project: str
    model: str
    corrections: int
    amount: Money


class CreditMovement(Struct, frozen=True, kw_only=True):
    """The credit that was granted or refunded on one day of UTC."""

    date: date
    kind: Literal["grant", "refund"]
    bookings: int
    amount: Money

    @property
    def owed_nanodollars(self) -> int:
        """Return the amount with the sign of the ledger: what the organization owes more."""
        return OWED_SIGNS[self.kind] * self.amount.nanodollars


class CreditKind(NamedTuple):
    """What a kind of credit is on a statement."""

    word: str
    total: str
    """The member of `StatementTotals` that it adds to."""


# By the kind of the movement, of the item and of the ledger's entry, which have the same names.
CREDIT: Mapping[str, CreditKind] = {
    "grant": CreditKind("Granted", "granted"),
    "refund": CreditKind("Refunded", "refunded"),
}
# Content that names another kind could be stored, and never be read again.
assert {*get_args(CreditNote.__annotations__["reason"])} == {*CORRECTING}
assert {*get_args(CreditMovement.__annotations__["kind"])} == {*CREDITING} == {*CREDIT} == {*OWED_SIGNS}


class DiscountPeriod(Struct, frozen=True, kw_only=True):
    """A discount that was in effect in the month, from this time until the next one began."""

    effective_from: datetime
    percent: str


class StatementTotals(Struct, frozen=True, kw_only=True):
    """The sums. `usage` is `list_amount` less `discount`; `charged` is `usage` plus `corrections`, the sum
    of the ledger and of `/v1/organization/costs`. The closing balance is the opening balance less `charged`,
    plus `granted`, less `refunded`.
    """

    requests: int
    opening_balance: Money
    list_amount: Money
    discount: Money
    usage: Money
    corrections: Money
    charged: Money
    granted: Money
    refunded: Money
    closing_balance: Money


assert {each.total for each in CREDIT.values()} <= {*StatementTotals.__struct_fields__}


class StatementDocument(Struct, frozen=True, kw_only=True):
    """The statement of one month of UTC. A closed one never changes; a preview is what is known at `until`.

    `newest_seal` is the digest of the ledger's newest seal when a closed statement was issued.
    """

    id: str
    object: Literal["organization.statement"] = "organization.statement"
    status: Literal["closed", "preview"]
    organization_id: str
    organization: str
    period_start: datetime
    period_end: datetime
    until: datetime
    currency: Literal["usd"] = "usd"
    totals: StatementTotals
    lines: list[StatementLine]
    credit_notes: list[CreditNote]
    credit: list[CreditMovement]
    discounts: list[DiscountPeriod]
    newest_seal: str | None = None

    @property
    def is_preview(self) -> bool:
        return self.status == "preview"

    @property
    def month(self) -> Month:
        return Month.of(self.period_start)


def encode(document: StatementDocument) -> str:
    """Return the content of a statement: the text whose digest is sealed."""
    return msgspec.json.encode(document).decode()


def decode(content: str) -> StatementDocument:
    """Return the document; raises `msgspec.DecodeError`."""
    return msgspec.json.decode(content, type=StatementDocument)


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a statement is made of."""

    organization_id: int
    organization: str
    month: Month
    until: datetime
    is_closed: bool
    opening_nanodollars: int
    requests: int
    days: Sequence[tuple[date, Items]]
    """The items by day. Only credit is listed by day."""
    projects: Mapping[int, str]
    discounts: Sequence[tuple[datetime, int]]
    newest_seal: str | None = None


def build(facts: Facts) -> StatementDocument:
    items: Items = {}
    for _, of_day in facts.days:
        add(items, of_day.items())
    lines = [_line(item, sums, facts) for item, sums in _in_order(items, facts)]
    notes = [_note(item, sums, facts) for item, sums in _in_order(items, facts, CORRECTING)]
    numbered = (
        msgspec.structs.replace(note, id=f"{facts.month}-CN{number}")
        for number, note in enumerate(notes, start=1)
    )
    return StatementDocument(
        id=str(facts.month),
        status="closed" if facts.is_closed else "preview",
        organization_id=str(facts.organization_id),
        organization=facts.organization,
        period_start=facts.month.start,
        period_end=facts.month.end,
        until=facts.until.astimezone(UTC),
        totals=_totals(items, facts),
        lines=lines,
        credit_notes=list(numbered),
        credit=[movement for day, of_day in facts.days for movement in _movements(day, of_day)],
        discounts=[
            DiscountPeriod(effective_from=start, percent=f"{points / 100:g}")
            for start, points in facts.discounts
        ],
        newest_seal=facts.newest_seal,
    )


def _in_order(items: Items, facts: Facts, kinds: Sequence[str] | None = None) -> Iterable[tuple[Item, Sums]]:
    """Return the items of these kinds, by default of tokens, by project, model, kind, price and month."""
    wanted = [
        pair
        for pair in items.items()
        if (pair[0].kind in kinds if kinds else pair[0].kind not in (*CORRECTING, *CREDITING))
    ]

    def place(pair: tuple[Item, Sums]) -> tuple[object, ...]:
        item = pair[0]
        prices = (item.per_mtok_nanodollars or 0, item.list_per_mtok_nanodollars or 0)
        project = facts.projects[item.project_id or 0]
        return project, item.model, _KINDS.index(item.kind), prices, item.corrected_month or date.min

    return sorted(wanted, key=place)


def _line(item: Item, sums: Sums, facts: Facts) -> StatementLine:
    return StatementLine(
        project_id=str(item.project_id),
        project=facts.projects[item.project_id or 0],
        model=item.model,
        kind=item.kind,  # type: ignore[arg-type]  # the others are left out
        requests=sums.entries,
        tokens=sums.tokens,
        list_price_per_mtok_usd=_usd(item.list_per_mtok_nanodollars),
        price_per_mtok_usd=_usd(item.per_mtok_nanodollars),
        list_amount=Money.of(sums.list_nanodollars),
        discount=Money.of(sums.list_nanodollars - sums.amount_nanodollars),
        amount=Money.of(sums.amount_nanodollars),
    )


def _note(item: Item, sums: Sums, facts: Facts) -> CreditNote:
    assert item.corrected_month is not None
    return CreditNote(
        id="",
        corrects=str(Month.of(item.corrected_month)),
        reason=item.kind,  # type: ignore[arg-type]  # the others are left out
        project_id=str(item.project_id),
        project=facts.projects[item.project_id or 0],
        model=item.model,
        corrections=sums.entries,
        amount=Money.of(sums.amount_nanodollars),
    )


def _movements(day: date, items: Items) -> Iterable[CreditMovement]:
    for kind in CREDITING:
        found = [sums for item, sums in items.items() if item.kind == kind]
        if found:
            owed = sum(sums.amount_nanodollars for sums in found)
            yield CreditMovement(
                date=day,
                kind=kind.value,  # type: ignore[arg-type]  # one of the two
                bookings=sum(sums.entries for sums in found),
                amount=Money.of(OWED_SIGNS[kind] * owed),
            )


def _totals(items: Items, facts: Facts) -> StatementTotals:
    by_kind = {kind: Sums() for kind in _KINDS}
    for item, sums in items.items():
        by_kind[item.kind] = by_kind[item.kind].plus(sums)
    corrected = sum(by_kind[kind].amount_nanodollars for kind in CORRECTING)
    tokens = [sums for kind, sums in by_kind.items() if kind not in (*CORRECTING, *CREDITING)]
    listed = sum(sums.list_nanodollars for sums in tokens)
    used = sum(sums.amount_nanodollars for sums in tokens)
    credited = dict.fromkeys((each.total for each in CREDIT.values()), 0)
    for kind, each in CREDIT.items():
        credited[each.total] += OWED_SIGNS[kind] * by_kind[kind].amount_nanodollars
    owed = sum(sums.amount_nanodollars for sums in by_kind.values())
    amounts = {
        "opening_balance": facts.opening_nanodollars,
        "list_amount": listed,
        "discount": listed - used,
        "usage": used,
        "corrections": corrected,
        "charged": used + corrected,
        **credited,
        "closing_balance": facts.opening_nanodollars - owed,
    }
    return StatementTotals(
        requests=facts.requests, **{name: Money.of(value) for name, value in amounts.items()}
    )


def _usd(nanodollars: int | None) -> str | None:
    return None if nanodollars is None else to_usd(nanodollars)
