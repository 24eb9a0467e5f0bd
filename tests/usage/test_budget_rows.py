"""Rows of budgets are found and made by their typed keys, so that no place forgets another part of a key."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from usage.models.budget_keys import BudgetKey

ROOT = Path(__file__).parents[2]


# A keyword of None is `**`. `unlimited` asks for all limits of some owners, by their scope, without a key.
OF_KEYS = {None, *BudgetKey._fields} - {"scope"}


def by_columns(source: str) -> Iterator[str]:
    """Yield the calls that find budgets or limits, or make limits, by columns of their keys."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and OF_KEYS & {keyword.arg for keyword in node.keywords}:
            called = ast.unparse(node.func)
            if called == "BudgetLimit" or called.startswith(("Budget.objects.", "BudgetLimit.objects.")):
                yield ast.unparse(node)


@pytest.mark.parametrize("package", ["accounts", "usage", "chatapi"])
def test_no_code_finds_budgets_by_their_columns(package: str) -> None:
    paths = [path for path in (ROOT / package).rglob("*.py") if "migrations" not in path.parts]
    found = {str(path.relative_to(ROOT)): list(by_columns(path.read_text())) for path in paths}
    assert {path: calls for path, calls in found.items() if calls} == {}


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
