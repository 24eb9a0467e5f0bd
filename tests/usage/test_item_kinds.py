"""Each kind of ledger entry has its line on a statement, and an unknown kind has none."""

from datetime import UTC, datetime

import pytest
from django.db import IntegrityError, transaction

from accounts.models import Organization
from usage.models import OWED_SIGNS, ItemKind, Kind, LedgerEntry
from usage.statements import itemizing
from usage.statements.document import CREDIT, CreditMovement, Money

MARCH = datetime(2026, 3, 1, tzinfo=UTC)


def entry_of(kind: str) -> itemizing._Entry:
    return itemizing._Entry(MARCH, 1, None, "", kind, 5, 0, 0, False, None)


@pytest.mark.parametrize("kind", Kind.values)
def test_each_kind_has_a_line(kind: str) -> None:
    item, sums = itemizing._item_without_request(entry_of(kind))
    assert item.kind == (ItemKind.ALL_TOKENS if kind in ("charge", "overage") else kind)
    assert sums.amount_nanodollars == 5


def test_an_unknown_kind_is_not_taken_for_tokens() -> None:
    with pytest.raises(ValueError, match="'bonus' is not a valid Kind"):
        itemizing._item_without_request(entry_of("bonus"))


@pytest.mark.parametrize(("kind", "sign"), OWED_SIGNS.items())
def test_the_database_knows_the_sign_of_credit(acme: Organization, kind: str, sign: int) -> None:
    entry = LedgerEntry(kind=kind, organization=acme, created_at=MARCH, budget_day=MARCH.date())
    for amount in (0, -sign):
        entry.amount_nanodollars = amount
        with pytest.raises(IntegrityError, match="amounts_have_their_kinds_sign"), transaction.atomic():
            entry.save()
    entry.amount_nanodollars = sign
    entry.save()


def test_credit_is_owed_with_the_sign_of_the_ledger() -> None:
    moved = [
        CreditMovement(date=MARCH.date(), kind=kind, bookings=1, amount=Money.of(5))
        for kind in ("grant", "refund")
    ]
    assert {each.kind: each.owed_nanodollars for each in moved} == {"grant": -5, "refund": 5}
    assert {*CREDIT} == {each.kind for each in moved}
