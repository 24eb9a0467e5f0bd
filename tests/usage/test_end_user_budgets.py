"""Budgets of end users: made by the first request, exact when very many come at once, each project's own."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from accounts.models import APIKey, EndUser, Organization, Project
from tests.usage.conftest import NOW, completed, limit
from tests.usage.triggers import without_triggers
from usage import rollups
from usage.books import corrections, ledger
from usage.books.credit import Note
from usage.database.group_commit import GroupCommit
from usage.errors import BudgetExceeded
from usage.models import Budget, BudgetLimit, DailyEndUserUsage, Generation, LedgerEntry
from usage.models.budget_keys import LimitKey
from usage.pricing import FREE
from usage.verification import seals, verify

pytestmark = pytest.mark.django_db(transaction=True)

Ask = Callable[..., ledger.Admission]
HELD = 50_000
CHARGED = 50_000


@pytest.fixture
def ann(ask: Ask) -> Ask:
    """Makes requests for an end user in a project that counts them."""
    return partial(ask, end_user="ann", counts_end_user=True)


async def admitted(admissions: Sequence[ledger.Admission]) -> list[Any]:
    """Admit all at once, by the doors of four processes."""
    doors = [GroupCommit(read_threads=1) for _ in range(4)]
    try:
        return await asyncio.gather(
            *(doors[at % 4].write(ledger.admit, item) for at, item in enumerate(admissions)),
            return_exceptions=True,
        )
    finally:
        for door in doors:
            await door.close()


def admit(*admissions: ledger.Admission) -> list[Any]:
    with transaction.atomic():
        return list(ledger.admit(NOW, admissions))


def live(admission: ledger.Admission) -> None:
    """Admit, claim and settle it."""
    with transaction.atomic():
        ledger.admit(NOW, [admission])
        (claimed,) = ledger.claim(NOW, [ledger.Claim(admission.id, "worker", 60_000)])
        assert isinstance(claimed, ledger.Claimed)
        ledger.settle(NOW, [completed(claimed)])


@pytest.mark.parametrize("period", ["day", "week"])
@pytest.mark.parametrize("scope", ["project_user", "org_user"])
def test_of_100_first_requests_of_one_end_user_as_many_pass_as_fit(
    key: APIKey, ann: Ask, scope: str, period: str
) -> None:
    owner = key.project_id if scope == "project_user" else key.project.organization_id
    limit(scope, owner, period, 7 * HELD)
    results = asyncio.run(admitted([ann() for _ in range(100)]))
    refusals = [each for each in results if isinstance(each, BudgetExceeded)]
    assert len(refusals) == 93
    assert {(each.budget.scope, each.is_in_flight) for each in refusals} == {("end_user", True)}
    person = EndUser.objects.get(name="ann")
    held = Budget.objects.filter(scope="end_user", scope_id=person.pk)
    assert set(held.values_list("period", "pending_nanodollars")) == {
        (each, 7 * HELD) for each in ("day", "month", "ever")
    }
    assert Budget.rows(LimitKey("key", key.pk, "ever")).get().pending_nanodollars == 7 * HELD
    assert verify().differences == []


def test_100_end_users_have_a_budget_each(key: APIKey, ask: Ask) -> None:
    limit("project_user", key.project_id, "month", HELD)
    names = [f"user {number}" for number in range(50)]
    asking = [ask(end_user=name, counts_end_user=True) for name in names * 2]
    results = asyncio.run(admitted(asking))
    assert sum(isinstance(each, BudgetExceeded) for each in results) == 50
    assert set(Generation.objects.values_list("end_user", flat=True)) == set(names)


@pytest.mark.parametrize("period", ["day", "week"])
def test_the_own_limit_comes_first_then_the_projects_then_the_organizations(
    key: APIKey, ann: Ask, period: str
) -> None:
    limit("org_user", key.project.organization_id, period, 0)
    assert [type(each) for each in admit(ann())] == [BudgetExceeded]
    limit("project_user", key.project_id, period, HELD)
    assert not isinstance(admit(ann())[0], BudgetExceeded)
    assert isinstance(admit(ann())[0], BudgetExceeded)
    person = EndUser.objects.get(name="ann")
    limit("end_user", person.pk, period, 2 * HELD)
    assert not isinstance(admit(ann())[0], BudgetExceeded)
    (refused,) = admit(ann())
    assert (refused.budget.scope, refused.budget.scope_id) == ("end_user", person.pk)
    BudgetLimit.objects.filter(scope="end_user").update(limit_nanodollars=None, soft_limit_nanodollars=1)
    assert not isinstance(admit(ann())[0], BudgetExceeded)  # an own limit lifts the others
    BudgetLimit.objects.filter(scope="end_user").delete()
    assert isinstance(admit(ann())[0], BudgetExceeded)


def test_the_same_name_in_another_project_is_someone_else(key: APIKey, ann: Ask) -> None:
    other = Project.objects.create(organization=Organization.objects.create(name="Others"))
    stranger = APIKey.objects.create(project=other, public="stranger1234", digest="1" * 64)
    limit("project_user", key.project_id, "ever", HELD)
    admit(ann())
    assert isinstance(admit(ann())[0], BudgetExceeded)
    theirs = {"organization_id": other.organization_id, "project_id": other.pk, "api_key_id": stranger.pk}
    assert not isinstance(admit(ann(**theirs))[0], BudgetExceeded)


def test_only_counted_end_users_cost_more_statements(ask: Ask, ann: Ask) -> None:
    admit(ask(), ann())

    def statements(admission: ledger.Admission) -> int:
        with CaptureQueriesContext(connection) as queries:
            admit(admission)
        return len(queries)

    usual = statements(ask())
    assert statements(ask(end_user="ann")) == statements(ask(counts_end_user=True)) == usual
    assert statements(ann()) == usual + 1
    assert EndUser.objects.count() == 1


def test_a_charge_and_its_correction_count_for_the_end_user(ask: Ask, ann: Ask) -> None:
    for admission in (ann(), ann(model="large"), ask(end_user="bob", counts_end_user=True), ask()):
        live(admission)
    person = EndUser.objects.get(name="ann")
    entry = LedgerEntry.objects.filter(end_user_id=person.pk).earliest("id")
    with transaction.atomic():
        corrections.correct(entry.pk, -1_000, Note("a test", "tests"))
    month = Budget.rows(LimitKey("end_user", person.pk, "month")).get()
    assert (month.posted_nanodollars, month.pending_nanodollars) == (2 * CHARGED - 1_000, 0)
    counted = DailyEndUserUsage.objects.filter(end_user=person).values_list("model", "requests")
    assert set(counted) >= {("story", 1), ("large", 1)}
    assert verify().differences == []
    days = DailyEndUserUsage.objects.order_by("end_user", "day", "model").values_list("model", "requests")
    before = list(days)
    rollups.rebuild()
    assert list(days.all()) == before
    assert verify().differences == []
    DailyEndUserUsage.objects.update(requests=7)
    assert {each.invariant for each in verify().differences} == {"I2 rollup"}


def test_another_end_user_of_an_entry_is_a_difference_of_sums_and_not_of_seals(ask: Ask, ann: Ask) -> None:
    live(ann())
    live(ask(end_user="bob", counts_end_user=True))
    bob = EndUser.objects.get(name="bob")
    seals.seal(timedelta(0))
    with without_triggers():
        LedgerEntry.objects.filter(kind="charge").update(end_user_id=bob.pk)
    found = {each.invariant for each in verify().differences}
    assert found == {"I2 conservation", "I2 rollup", "I11 sent = charged"}
    hashed, columns = set(seals.COLUMNS), {each.attname for each in LedgerEntry._meta.concrete_fields}
    assert columns - hashed == {"end_user_id"}


def test_a_test_key_holds_nothing_and_is_counted(ann: Ask) -> None:
    live(ann(price=FREE, is_test=True))
    assert Budget.objects.count() == 0
    assert DailyEndUserUsage.objects.get().requests == 1
