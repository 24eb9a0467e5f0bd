"""`dropgenerations` beside readers of the same requests."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.db import connection

from tests.usage.books_to_drop import BEFORE, drop, old, write
from usage.bills.reconciliation import ReconciliationSpec, compare
from usage.bills.upstream_bill import Bill
from usage.books import ledger
from usage.models import Generation
from usage.rollups import retention_horizon
from usage.rollups.closed_days import DAY, midnight

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def books(ask: Callable[..., ledger.Admission]) -> None:
    write(ask)


def drop_elsewhere(folder: Path) -> None:
    """Drop over another connection."""
    try:
        drop(folder)
    finally:
        connection.close()


def test_generations_dropped_during_a_reconciliation_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Generation.objects.update(deployment="theirs")
    bill = Bill({}, frozenset({"requests"}), names_models=True)
    spec = ReconciliationSpec(midnight(BEFORE - 10 * DAY), midnight(BEFORE), deployment="theirs")
    whole, refuse_before = list(compare(bill, spec)), retention_horizon.refuse_before
    assert whole

    with ThreadPoolExecutor(1) as elsewhere:
        monkeypatch.setattr(
            retention_horizon,
            "refuse_before",
            lambda since: (
                refuse_before(since),
                elsewhere.submit(drop_elsewhere, tmp_path / "export").result(),
            ),
        )
        assert list(compare(bill, spec)) == whole
    assert old() == []
