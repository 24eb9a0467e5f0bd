"""The write turn: one at a time, in small steps, and never a reason to wait for ever."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from usage.database.sqlite_write_lock import WriteTurn


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "books.sqlite3")


@pytest.fixture
def first(database: str) -> Iterator[WriteTurn]:
    with closing(WriteTurn(database)) as turn:
        yield turn


def test_whoever_comes_second_waits_for_the_first(database: str, first: WriteTurn) -> None:
    order: list[str] = []

    def come_second() -> None:
        with closing(WriteTurn(database)) as turn, turn.taken() as is_mine:
            order.append("second" if is_mine else "in vain")

    thread = threading.Thread(target=come_second)
    with first.taken():
        thread.start()
        thread.join(0.05)
        order.append("first")
    thread.join(5)
    assert order == ["first", "second"]


def test_whoever_waits_in_vain_goes_on_and_takes_nothing_away(database: str, first: WriteTurn) -> None:
    with first.taken(), closing(WriteTurn(database, patience_s=0.01)) as impatient:
        for _ in range(2):
            with impatient.taken() as is_mine:
                assert not is_mine


def test_a_database_with_a_queue_of_its_own_needs_no_turn() -> None:
    with (
        closing(WriteTurn("")) as one,
        closing(WriteTurn("")) as other,
        one.taken() as is_mine,
        other.taken() as is_others,
    ):
        assert is_mine
        assert is_others


def test_who_cant_open_the_queue_writes_without_a_turn(database: str) -> None:
    Path(f"{database}-turn").mkdir()
    with closing(WriteTurn(database)) as turn:
        for _ in range(2):
            with turn.taken() as is_mine:
                assert is_mine
