"""Each kind of ledger entry has its line on a statement, and an unknown kind has none."""

from datetime import UTC, datetime

import pytest

from usage.models import ItemKind, Kind
from usage.statements import itemizing
from usage.statements.document import CREDIT, CreditMovement, Money


def entry_of(kind: str) -> itemizing._Entry:
    return itemizing._Entry(datetime(2026, 3, 1, tzinfo=UTC), 1, None, "", kind, 5, 0, 0, False, None)


@pytest.mark.parametrize("kind", Kind.values)
def test_each_kind_has_a_line(kind: str) -> None:
    item, sums = itemizing._alone(entry_of(kind))
    assert item.kind == (ItemKind.ALL_TOKENS if kind in ("charge", "overage") else kind)
    assert sums.amount_nanodollars == 5


def test_an_unknown_kind_is_not_taken_for_tokens() -> None:
    with pytest.raises(ValueError, match="'bonus' is not a valid Kind"):
        itemizing._alone(entry_of("bonus"))


def test_credit_is_owed_with_the_sign_of_the_ledger() -> None:
    day = datetime(2026, 3, 1, tzinfo=UTC).date()
    moved = [
        CreditMovement(date=day, kind=kind, bookings=1, amount=Money.of(5)) for kind in ("grant", "refund")
    ]
    assert {each.kind: each.owed_nanodollars for each in moved} == {"grant": -5, "refund": 5}
    assert {*CREDIT} == {each.kind for each in moved}
