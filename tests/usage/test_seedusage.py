"""`manage.py seedusage`: right books, the same for the same seed, and never by accident among real ones."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db.models import Count

from accounts.models import Organization
from tests.cast import Person, run
from usage import insights
from usage.database.clock import database_now
from usage.insights import Range
from usage.management import seeding
from usage.management.seeding import MODELS, Key, Plan
from usage.models import BudgetLimit, ClosedDay, Generation, LedgerEntry, LedgerSeal
from usage.verification import verify


def seed(**options: Any) -> str:
    """Make some usage; what the command says."""
    said = StringIO()
    call_command("seedusage", stdout=said, **{"generations": 300, "days": 4} | options)
    return said.getvalue()


def test_the_books_are_right(db: None) -> None:
    assert "Made 300 generations" in seed()
    report = verify(now=database_now())
    assert (report.generations, report.open_generations, report.differences, report.notes) == (300, 0, [], [])
    assert report.sealed_entries == report.entries >= 300
    assert insights.totals(Range.last(6, database_now())).requests == 300
    assert ClosedDay.objects.filter(has_first_tokens=True).count() >= 3


def test_there_is_something_of_everything(db: None) -> None:
    seed(generations=4_000)
    outcomes = Counter(Generation.objects.values_list("outcome", flat=True))
    assert outcomes["completed"] > 3_500
    assert outcomes["failed"] > 10
    kinds = dict(LedgerEntry.objects.values_list("kind").annotate(Count("id")))
    assert kinds["charge"] == 4_000
    assert kinds["overage"] > 0
    assert Generation.objects.filter(is_test=True).exists()
    assert BudgetLimit.objects.exists()
    assert not Organization.objects.filter(created_at__gt=database_now() - timedelta(days=3)).exists()


def test_the_same_seed_makes_the_same_requests(db: None) -> None:
    keys = [Key(number, 1, 1, number % 20 == 19, MODELS) for number in range(200)]
    plan = Plan(300, 4, 7, database_now())
    (first,), (again,), (other,) = (
        list(seeding.batches(each, keys)) for each in (plan, plan, replace(plan, seed=8))
    )
    assert first == again != other
    assert len(first[0]) == 300


def test_it_refuses_where_there_is_usage_unless_forced(alice: Person) -> None:
    run(alice)
    with pytest.raises(CommandError, match="add --add"):
        seed()
    assert Generation.objects.count() == 1
    seed(add=True)
    assert Generation.objects.count() == 301
    assert verify().differences == []


def test_it_refuses_what_makes_no_sense(db: None) -> None:
    for options in ({"generations": 0}, {"days": 0}, {"until": database_now() + timedelta(hours=1)}):
        with pytest.raises(CommandError, match="not in the future"):
            seed(**options)


@pytest.mark.parametrize("days", [30_000, 900_000, 99_999_999_999])
def test_it_refuses_days_that_no_id_can_have(db: None, days: int) -> None:
    with pytest.raises(CommandError, match="fewer --days"):
        seed(days=days)
    assert not Generation.objects.exists()


@pytest.mark.parametrize("number", [-1, 100_000])
def test_it_refuses_seeds_whose_keys_another_one_has(db: None, number: int) -> None:
    with pytest.raises(CommandError, match="from 0 to 99999"):
        seed(seed=number)


def test_one_seed_is_sown_once(db: None) -> None:
    seed(generations=10, days=1)
    with pytest.raises(CommandError, match="another --seed"):
        seed(generations=10, days=1, add=True)
    assert Organization.objects.count() == 20
    assert LedgerSeal.objects.count() == 1
