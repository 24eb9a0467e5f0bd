"""The write lock: one writer at a time, in small steps, and nobody waits for ever."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from usage.database.sqlite_write_lock import SQLiteWriteLock


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "books.sqlite3")


@pytest.fixture
def first(database: str) -> Iterator[SQLiteWriteLock]:
    with closing(SQLiteWriteLock(database)) as lock:
        yield lock


def test_the_second_writer_waits_for_the_first(database: str, first: SQLiteWriteLock) -> None:
    order: list[str] = []

    def come_second() -> None:
        with closing(SQLiteWriteLock(database)) as lock, lock.held() as is_held:
            order.append("second" if is_held else "in vain")

    thread = threading.Thread(target=come_second)
    with first.held():
        thread.start()
        thread.join(0.05)
        order.append("first")
    thread.join(5)
    assert order == ["first", "second"]


def test_a_writer_that_has_waited_too_long_goes_on_without_the_lock(
    database: str, first: SQLiteWriteLock
) -> None:
    with first.held(), closing(SQLiteWriteLock(database, patience_s=0.01)) as impatient:
        for _ in range(2):
            with impatient.held() as is_held:
                assert not is_held


def test_a_database_that_is_no_file_needs_no_lock() -> None:
    with (
        closing(SQLiteWriteLock("")) as one,
        closing(SQLiteWriteLock("")) as other,
        one.held() as is_first_held,
        other.held() as is_second_held,
    ):
        assert is_first_held
        assert is_second_held


def test_a_lock_that_cannot_be_opened_is_not_waited_for(database: str) -> None:
    Path(f"{database}-turn").mkdir()
    with closing(SQLiteWriteLock(database)) as lock:
        for _ in range(2):
            with lock.held() as is_held:
                assert is_held
