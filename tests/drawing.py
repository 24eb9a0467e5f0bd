"""Draws tests for CI's leg on PostgreSQL: a pytest plugin, named in pyproject.toml.

With ROWS_SEED, a number, the tests of locks, of commits and of PostgreSQL alone run, and a third of all
others, chosen by this number. The others run on SQLite with each commit.
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
    seed = os.environ.get("ROWS_SEED")
    if seed is None:
        return
    chosen = {item for item in items if needs_postgresql(item) or is_drawn(item, seed)}
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def needs_postgresql(item: pytest.Item) -> bool:
    """Return whether the test must run on PostgreSQL each time: it commits, is skipped on a database, asks a
    whole installation, or is about SQL.
    """
    marker = item.get_closest_marker("django_db")
    uses_commits = "transactional_db" in getattr(item, "fixturenames", ())
    commits = uses_commits or (marker and marker.kwargs.get("transaction"))
    other = item.get_closest_marker("skipif") or item.get_closest_marker("xdist_group")
    return bool(commits or other or item.path.stem in ALWAYS)


def is_drawn(item: pytest.Item, seed: str) -> bool:
    """Return whether this number chooses the test."""
    return crc32(f"{seed} {item.nodeid}".encode()) % 3 == 0
