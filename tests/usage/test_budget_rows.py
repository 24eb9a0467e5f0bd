"""Rows of budgets are found and made by their typed keys, so that no place forgets another part of a key."""

import ast
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import pytest

from usage.database.sql import fetch_all
from usage.models import Period, Scope
from usage.models.budget_keys import BudgetKey, LimitKey

ROOT = Path(__file__).parents[2]
KEYS = ROOT / "usage/models/budget_keys.py"

# A keyword of None is `**`. `unlimited` asks for all limits of some owners, by their scope, without a key.
OF_KEYS = {None, *BudgetKey._fields} - {"scope"}


def makes_a_key(source: str) -> Iterator[str]:
    """Yield the calls that make a key of an iterable, whose length the type checker does not know."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"BudgetKey._make", "LimitKey._make"}:
            yield ast.unparse(node)


def by_columns(source: str) -> Iterator[str]:
    """Yield the calls that find budgets or limits, or make limits, by columns of their keys."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and OF_KEYS & {keyword.arg for keyword in node.keywords}:
            called = ast.unparse(node.func)
            if called == "BudgetLimit" or called.startswith(("Budget.objects.", "BudgetLimit.objects.")):
                yield ast.unparse(node)


def found_in(package: str, find: Callable[[str], Iterator[str]]) -> dict[str, list[str]]:
    """Return the calls in each module of the package, without modules that have none."""
    paths = [path for path in (ROOT / package).rglob("*.py") if "migrations" not in path.parts]
    found = {str(path.relative_to(ROOT)): list(find(path.read_text())) for path in paths}
    return {path: calls for path, calls in found.items() if calls}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("key", "text"),
    [
        # Events that were sent have it as their subject: with another text they would be sent again.
        (LimitKey(Scope.API_KEY.value, 7, Period.MONTH.value), "key/7/month"),
        (LimitKey(Scope.API_KEY.value, 7, ""), "key/7"),
        (LimitKey("", 7, Period.MONTH.value), "7/month"),
    ],
)
def test_the_text_of_a_limits_key_is_the_same_in_sql_and_leaves_out_what_is_blank(
    key: LimitKey, text: str
) -> None:
    columns = ", ".join(f"{value!r} AS {name}" for name, value in key._asdict().items())
    ((in_sql,),) = fetch_all(f"SELECT {LimitKey.text_in_sql('b')} FROM (SELECT {columns}) AS b", [])
    assert str(key) == in_sql == text


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("period", Period)
def test_the_id_of_a_budget_is_its_limits_key_and_its_first_day(scope: Scope, period: Period) -> None:
    start = period.start(date(2026, 11, 28))
    key = BudgetKey.at(scope, 7, period, date(2026, 11, 28))
    # Rows of budgets have it: with another text, spending would begin at zero.
    assert str(key) == f"{scope.value}/7/{period.value}/{start}" == f"{LimitKey.of(key)}/{start}"
    assert BudgetKey.parse(str(key)) == key
    assert LimitKey.parse(str(LimitKey.of(key))) == LimitKey.of(key)


@pytest.mark.parametrize("package", ["accounts", "usage", "chatapi"])
def test_no_code_finds_budgets_by_their_columns(package: str) -> None:
    assert found_in(package, by_columns) == {}


@pytest.mark.parametrize("package", ["accounts", "usage", "chatapi"])
def test_keys_are_made_so_that_the_type_checker_finds_a_missing_field(package: str) -> None:
    found = found_in(package, makes_a_key)
    # The columns of a row, and `OuterRef` of each field, follow the fields by themselves.
    found.pop(str(KEYS.relative_to(ROOT)), None)
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "Budget.objects.filter(scope=scope, scope_id=1)",
        "Budget.objects.exclude(pk=1).get(period='day')",
        "BudgetLimit.objects.filter(**key._asdict())",
        "BudgetLimit(scope=scope, scope_id=1)",
    ],
)
def test_the_test_finds_them(source: str) -> None:
    assert any(by_columns(source))


def test_the_test_finds_keys_of_any_number_of_values() -> None:
    assert any(makes_a_key("key = BudgetKey._make((scope, 1, 'month', month))"))
    assert any(makes_a_key(KEYS.read_text().replace("cls._make", "BudgetKey._make")))
