"""I5: 500 requests at once on one key, from several processes' doors, spend exactly the budget and never wait
for each other in a ring.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import cycle

import pytest

from accounts.models import APIKey
from tests.usage.conftest import completed, limit
from usage.books import credit, ledger
from usage.books.credit import Note
from usage.database.group_commit import GroupCommit
from usage.errors import BudgetExceeded
from usage.models import Budget, Generation, LedgerEntry
from usage.verification import verify

Ask = Callable[..., ledger.Admission]
HELD = 50_000
CHARGED = 50_000
REQUESTS = 500
ROOM = 123

pytestmark = pytest.mark.django_db(transaction=True)


async def live(doors: Sequence[GroupCommit], admission: ledger.Admission) -> ledger.Charge:
    """Ask, run and end, each by another door."""
    first, second, third = doors
    await first.write(ledger.admit, admission)
    claimed = await second.write(ledger.claim, ledger.Claim(admission.id, "hot worker", 60_000))
    return await third.write(ledger.settle, completed(claimed))


async def live_all(admissions: Sequence[ledger.Admission]) -> list[ledger.Charge | BaseException]:
    doors = [GroupCommit(read_threads=1) for _ in range(4)]
    turns = cycle([(doors[number], doors[number - 1], doors[number - 2]) for number in range(4)])
    try:
        return await asyncio.gather(
            *(live(next(turns), admission) for admission in admissions), return_exceptions=True
        )
    finally:
        for door in doors:
            await door.close()


@pytest.mark.parametrize("by", ["limit", "credit"])
def test_a_hot_key_spends_exactly_its_budget(key: APIKey, ask: Ask, by: str) -> None:
    if by == "limit":
        limit("key", key.pk, "month", ROOM * HELD)
    else:
        credit.require(key.project.organization)
        credit.grant(key.project.organization, ROOM * HELD, Note("a test", "tests"))
    results = asyncio.run(live_all([ask() for _ in range(REQUESTS)]))
    assert {type(result) for result in results} == {ledger.Charge, BudgetExceeded}
    assert sum(isinstance(result, ledger.Charge) for result in results) == ROOM
    assert Generation.objects.count() == LedgerEntry.objects.filter(kind="charge").count() == ROOM
    assert set(Budget.objects.values_list("posted_nanodollars", "pending_nanodollars")) == {
        (ROOM * CHARGED, 0)
    }
    assert verify().differences == []
