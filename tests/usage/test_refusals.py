"""Which budget a refusal names when several have no room: a client that could never fit must not be asked to
try again.
"""

from collections.abc import Callable

import pytest

from accounts.models import APIKey
from tests.usage.conftest import NOW, limit
from usage.books import credit, ledger
from usage.books.credit import Note
from usage.errors import BudgetExceeded

Ask = Callable[..., ledger.Admission]
HELD = 50_000


@pytest.fixture
def held(key: APIKey, ask: Ask) -> None:
    """Fill the key's day, the first budget in order, with the hold of a running request."""
    limit("key", key.pk, "day", HELD)
    ledger.admit(NOW, [ask()])


def refusal(ask: Ask) -> BudgetExceeded:
    (refused,) = ledger.admit(NOW, [ask()])
    assert isinstance(refused, BudgetExceeded)
    return refused


@pytest.mark.parametrize("scope", ["organization", "project", "key"])
@pytest.mark.parametrize("period", ["week", "month", "ever"])
def test_a_refusal_names_the_budget_that_refuses_for_good(
    key: APIKey, held: None, ask: Ask, scope: str, period: str
) -> None:
    scope_id = {"organization": key.project.organization_id, "project": key.project_id, "key": key.pk}[scope]
    limit(scope, scope_id, period, HELD - 1)
    refused = refusal(ask)
    assert refused.budget[:3] == (scope, scope_id, period)
    assert not refused.is_in_flight


def test_a_refusal_names_required_credit_that_refuses_for_good(key: APIKey, held: None, ask: Ask) -> None:
    credit.require(key.project.organization)
    credit.grant(key.project.organization, HELD - 1, Note("paid", "alice"))
    refused = refusal(ask)
    assert refused.is_credit
    assert not refused.is_in_flight


def test_when_running_requests_hold_all_that_is_missing_the_first_budget_is_named(
    key: APIKey, held: None, ask: Ask
) -> None:
    limit("organization", key.project.organization_id, "month", 2 * HELD - 1)
    refused = refusal(ask)
    assert refused.budget[:3] == ("key", key.pk, "day")
    assert refused.is_in_flight


def test_a_budget_with_room_is_never_named(key: APIKey, held: None, ask: Ask) -> None:
    limit("organization", key.project.organization_id, "month", 2 * HELD)
    assert refusal(ask).budget[:3] == ("key", key.pk, "day")


def test_in_a_crowd_each_refusal_names_its_own_budget(key: APIKey, held: None, ask: Ask) -> None:
    limit("project", key.project_id, "ever", HELD)
    small, big = ledger.admit(NOW, [ask(), ask(max_output_tokens=21)])
    assert isinstance(small, BudgetExceeded)
    assert small.is_in_flight
    assert isinstance(big, BudgetExceeded)
    assert not big.is_in_flight
