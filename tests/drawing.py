"""Draws tests for two steps of CI: a pytest plugin, named in pyproject.toml.

With ROWS_SEED, a number, the tests of locks, of commits and of PostgreSQL alone run, and a fifth of all
others, chosen by this number. The others run on SQLite with each commit. With PAGES_SEED, half of the tests
in a browser run.
"""

import os
from zlib import crc32

import pytest

ALWAYS = {
    *("test_credit", "test_events", "test_idempotency_keys", "test_immutable", "test_largest_amounts"),
    *("test_ledger", "test_ledger_checks", "test_ledger_machine", "test_money", "test_payment"),
    *("test_rate_limit_rows", "test_scale", "test_seals", "test_snapshot", "test_sql"),
}
"""The modules whose subject is SQL itself."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that are not drawn."""
    chosen = {item for item in items if is_chosen(item)}
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def is_chosen(item: pytest.Item) -> bool:
    """Return whether the seeds leave the test in."""
    if rows_seed := os.environ.get("ROWS_SEED"):
        return needs_postgresql(item) or is_drawn(item, rows_seed, 5)
    if (pages_seed := os.environ.get("PAGES_SEED")) and item.path.parent.name == "browser":
        # It draws from its pages.
        return item.path.stem == "test_every_page" or is_drawn(item, pages_seed, 2)
    return True


def needs_postgresql(item: pytest.Item) -> bool:
    """Return whether the test must run on PostgreSQL each time: it commits, is skipped on a database, asks a
    whole installation, or is about SQL.
    """
    marker = item.get_closest_marker("django_db")
    uses_commits = "transactional_db" in getattr(item, "fixturenames", ())
    commits = uses_commits or (marker and marker.kwargs.get("transaction"))
    other = item.get_closest_marker("skipif") or item.get_closest_marker("xdist_group")
    return bool(commits or other or item.path.stem in ALWAYS)


def is_drawn(item: pytest.Item, seed: str, one_of: int) -> bool:
    """Return whether this number chooses the test, as it does one of so many."""
    return crc32(f"{seed} {item.nodeid}".encode()) % one_of == 0
