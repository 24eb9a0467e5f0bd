"""Two processes see the same room in a budget at the same moment: only one of them gets it (I5)."""

import asyncio
from collections.abc import Callable
from uuid import UUID

import pytest
from django.db import connection

from accounts.models import APIKey
from tests.usage.conftest import limit
from tests.usage.simultaneous import admit_at_once
from usage.books import ledger
from usage.errors import BudgetExceeded
from usage.models import Budget

pytestmark = pytest.mark.django_db(transaction=True)

Ask = Callable[..., ledger.Admission]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
def test_of_two_that_find_the_same_room_one_gets_it(key: APIKey, ask: Ask) -> None:
    held = ask().reserved_nanodollars
    limit("key", key.pk, "ever", 2 * held)
    asyncio.run(admit_at_once([ask()]))  # so that the budgets are there
    results = asyncio.run(admit_at_once([ask(), ask()]))
    assert {type(result) for result in results} == {UUID, BudgetExceeded}
    assert set(Budget.objects.values_list("pending_nanodollars", flat=True)) == {2 * held}
