"""Each part of a budget's key is wherever budgets are set, listed, exported, or sent to clients."""

import chatapi.urls  # noqa: F401  it loads the admin's pages
from chatapi.api import resources
from chatapi.console.budget_forms import BudgetForm
from tests.cast import Person
from usage.books.outbox import budget_events
from usage.models import Period, Scope
from usage.models.budget_keys import BUDGET_PARTS, LIMIT_PARTS, BudgetKey
from usage.pages.budget_admin import BudgetAdmin, BudgetLimitAdmin
from usage.pages.forms import NewLimitForm
from usage.pricing import NANODOLLARS


def test_each_part_of_a_limit_is_in_the_forms_and_in_the_list() -> None:
    assert set(NewLimitForm.base_fields) >= set(LIMIT_PARTS)
    assert set(BudgetForm.base_fields) >= set(LIMIT_PARTS)
    assert set(BudgetLimitAdmin.list_display) >= set(LIMIT_PARTS)


def test_each_part_of_a_budget_is_in_the_list_the_file_and_the_answer() -> None:
    assert set(BudgetAdmin.list_display) >= set(BUDGET_PARTS)
    assert set(BudgetAdmin.fields) >= set(BUDGET_PARTS)
    assert set(BudgetAdmin.export_columns) >= set(BudgetKey._fields)
    assert set(resources.Budget.__struct_fields__) >= set(BUDGET_PARTS)


def test_each_part_of_a_budget_is_in_its_events(alice: Person) -> None:
    key = BudgetKey.at(Scope.API_KEY, alice.api_key.pk, Period.MONTH, alice.api_key.created_at.date())
    (event,) = budget_events(str(key), ["80"], 80 * NANODOLLARS, 100 * NANODOLLARS)
    assert set(event.data) >= set(BudgetKey._fields)
