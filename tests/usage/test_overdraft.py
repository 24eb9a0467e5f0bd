"""Two processes see the same room in a budget at the same moment: only one of them gets it (I5)."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from uuid import UUID

import pytest
from django.db import connection

from accounts.models import APIKey
from tests.usage.conftest import limit
from usage.books import ledger
from usage.database.group_commit import GroupCommit
from usage.errors import BudgetExceeded, UsageError
from usage.models import Budget

pytestmark = pytest.mark.django_db(transaction=True)

Ask = Callable[..., ledger.Admission]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
def test_of_two_that_find_the_same_room_one_gets_it(key: APIKey, ask: Ask) -> None:
    held = ask().reserved_nanodollars
    limit("key", key.pk, "ever", 2 * held)
    asyncio.run(_admit_at_once([ask()]))  # so that the budgets are there
    results = asyncio.run(_admit_at_once([ask(), ask()]))
    assert {type(result) for result in results} == {UUID, BudgetExceeded}
    assert set(Budget.objects.values_list("pending_nanodollars", flat=True)) == {2 * held}


async def _admit_at_once(admissions: Sequence[ledger.Admission]) -> list[UUID | BaseException]:
    """Admit each in a transaction of its own, which commits when the others have admitted too, or wait for
    it.
    """
    have_begun, have_admitted = threading.Barrier(len(admissions)), threading.Barrier(len(admissions))

    def admit(now: datetime, items: Sequence[ledger.Admission]) -> Sequence[UUID | UsageError]:
        have_begun.wait(10)
        results = ledger.admit(now, items)
        with suppress(threading.BrokenBarrierError):
            have_admitted.wait(0.5)
        return results

    doors = [GroupCommit() for _ in admissions]
    try:
        return await asyncio.gather(
            *map(lambda door, item: door.write(admit, item), doors, admissions), return_exceptions=True
        )
    finally:
        for door in doors:
            await door.close()
