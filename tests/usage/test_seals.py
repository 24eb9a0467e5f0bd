"""The ledger's seals: verification names each change that the service did not make."""

import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from accounts.models import APIKey
from tests.usage.conftest import NOW, completed, run
from tests.usage.triggers import without_triggers
from usage.books import ledger
from usage.database.clock import database_now
from usage.models import Kind, LedgerEntry, LedgerSeal
from usage.pricing import Tokens
from usage.verification import seals, verify

Ask = Callable[..., ledger.Admission]
AT_ONCE = timedelta(0)


@pytest.fixture
def charge(ask: Ask) -> Callable[[int], list[int]]:
    """Make this number of charges; return their ids."""

    def make(count: int) -> list[int]:
        with transaction.atomic():
            for _ in range(count):
                ledger.admit(NOW, [admission := ask()])
                ledger.settle(NOW, [completed(run(admission))])
        return list(LedgerEntry.objects.order_by("id").values_list("id", flat=True))

    return make


def tamper(statement: str, *parameters: Any) -> None:
    with without_triggers(), connection.cursor() as cursor:
        cursor.execute(statement, parameters)


def found() -> list[str]:
    return [f"{each.subject}: {each.found}" for each in seals.check()]


def test_seals_chain_all_entries(charge: Callable[[int], Sequence[int]]) -> None:
    charge(3)
    first = seals.seal(AT_ONCE)
    charge(2)
    second = seals.seal(AT_ONCE)
    assert first
    assert second
    assert (first.entries_count, second.entries_count, second.first_id) == (3, 2, first.last_id + 1)
    assert (first.previous_digest, second.previous_digest) == (seals.BEGINNING, first.digest)
    assert second.sum_nanodollars == 100_000
    assert found() == []
    assert verify().newest_seal == second.digest


def test_nothing_new_is_no_seal_and_a_young_seal_is_enough(charge: Callable[[int], Sequence[int]]) -> None:
    assert seals.seal() is None
    charge(1)
    assert seals.seal()
    charge(1)
    assert seals.seal() is None
    assert seals.seal(AT_ONCE)
    assert seals.seal(AT_ONCE) is None


def test_a_seal_of_a_clock_that_was_ahead_does_not_end_sealing(
    charge: Callable[[int], Sequence[int]],
) -> None:
    charge(1)
    assert seals.seal()
    tamper("UPDATE usage_ledgerseal SET sealed_at = %s", database_now() + timedelta(days=400))
    charge(2)
    sealed = seals.seal()
    assert sealed
    assert sealed.entries_count == 2
    charge(1)
    assert seals.seal() is None
    assert found() == []


def test_a_backlog_is_sealed_in_blocks(
    charge: Callable[[int], Sequence[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seals, "BLOCK", 2)
    charge(5)
    sealed = [seal.entries_count for _ in range(4) if (seal := seals.seal())]
    assert sealed == [2, 2, 1]
    assert found() == []


def test_a_changed_entry_is_named(charge: Callable[[int], Sequence[int]]) -> None:
    ids = charge(5)
    seals.seal(AT_ONCE)
    tamper("UPDATE usage_ledgerentry SET reason = 'x' WHERE id = %s", ids[2])
    assert found() == [f"ledger entry {ids[2]}: it was changed"]
    assert [each.subject for each in verify().differences] == [f"ledger entry {ids[2]}"]


def test_tokens_written_to_a_cache_are_sealed(ask: Ask) -> None:
    _charge_cache_writes(ask)
    seals.seal(AT_ONCE)
    assert found() == []
    (entry,) = LedgerEntry.objects.all()
    tamper("UPDATE usage_ledgerentry SET cache_write_tokens = 5")
    assert found() == [f"ledger entry {entry.pk}: it was changed"]


def test_a_seal_of_a_process_that_does_not_know_cache_writes_is_right(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    _charge_cache_writes(ask)
    canonical = seals.canonical
    with monkeypatch.context() as older:
        older.setattr(seals, "canonical", lambda entry: canonical(entry[:-2]))
        seals.seal(AT_ONCE)
    assert found() == []
    (entry,) = LedgerEntry.objects.all()
    tamper("UPDATE usage_ledgerentry SET cached_tokens = 5")
    assert found() == [f"ledger entry {entry.pk}: it was changed"]


def _charge_cache_writes(ask: Ask) -> None:
    with transaction.atomic():
        ledger.admit(NOW, [admission := ask()])
        tokens = Tokens(10, 1, cache_write_tokens=6, cache_write_1h_tokens=2)
        ledger.settle(NOW, [completed(run(admission), tokens=tokens)])


@pytest.mark.parametrize(
    ("position", "shown"),
    [(1, "ledger entry {next}: an entry before it is gone"), (4, "the entry after {before}")],
)
def test_a_deleted_entry_is_named(charge: Callable[[int], Sequence[int]], position: int, shown: str) -> None:
    ids = charge(5)
    seals.seal(AT_ONCE)
    tamper("DELETE FROM usage_ledgerentry WHERE id = %s", ids[position])
    (difference,) = found()
    next_id = ids[position + 1] if position < 4 else 0
    assert difference.startswith(shown.format(next=next_id, before=f"ledger entry {ids[position - 1]}"))


def test_an_entry_that_slipped_in_is_named(charge: Callable[[int], Sequence[int]]) -> None:
    ids = charge(4)
    with transaction.atomic():
        seals.seal(AT_ONCE)
        hidden = LedgerEntry.objects.get(id=ids[1])
    tamper("UPDATE usage_ledgerentry SET id = %s WHERE id = %s", 10**9, ids[3])
    tamper("UPDATE usage_ledgerentry SET id = %s WHERE id = %s", ids[3], 10**9)
    assert found() == []
    tamper("DELETE FROM usage_ledgerseal")
    tamper("UPDATE usage_ledgerentry SET id = %s WHERE id = %s", 10**9, hidden.pk)
    seals.seal(AT_ONCE)
    tamper("UPDATE usage_ledgerentry SET id = %s WHERE id = %s", hidden.pk, 10**9)
    assert found() == [f"ledger entry {hidden.pk}: it was not there"]


@pytest.mark.parametrize(
    "change",
    [
        "digest = 'ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff'",
        "sum_nanodollars = 1",
        "last_id = last_id + 100000",
        "first_id = first_id + 1",
        "entries_count = entries_count + 1",
    ],
)
def test_a_changed_seal_is_named(charge: Callable[[int], Sequence[int]], change: str) -> None:
    charge(2)
    seals.seal(AT_ONCE)
    tamper(f"UPDATE usage_ledgerseal SET {change}")
    assert found() == [f"seal {LedgerSeal.objects.get().pk}: the seal itself was changed"]


def test_entries_between_two_seals_are_named(charge: Callable[[int], Sequence[int]]) -> None:
    charge(2)
    first = seals.seal(AT_ONCE)
    charge(2)
    assert first
    seals.seal(AT_ONCE)
    tamper(
        "UPDATE usage_ledgerseal SET last_id = last_id - 1, entries_count = entries_count - 1 WHERE id = %s",
        first.pk,
    )
    between = f"ledger entry {first.last_id}"
    assert found() == [
        f"the entry after ledger entry {first.first_id}: it is gone",
        f"{between}: it was not there",
    ]


@pytest.mark.parametrize("entry_id", [-1, 0])
@pytest.mark.parametrize("since", [None, NOW + timedelta(days=1)])
def test_an_entry_before_all_seals_is_named(
    charge: Callable[[int], Sequence[int]], key: APIKey, entry_id: int, since: datetime | None
) -> None:
    charge(2)
    seals.seal(AT_ONCE)
    owed = {"organization": key.project.organization, "amount_nanodollars": -5}
    LedgerEntry.objects.create(pk=entry_id, kind=Kind.GRANT, budget_day=NOW.date(), created_at=NOW, **owed)
    assert seals.seal(AT_ONCE) is None
    shown = f"I6 sealed: ledger entry {entry_id}: expected an id above 0, found it is in no seal"
    assert [str(each) for each in seals.check(since)] == [shown]
    assert verify().sealed_entries == 2


def test_a_missing_seal_breaks_the_chain(charge: Callable[[int], Sequence[int]]) -> None:
    for _ in range(3):
        charge(2)
        seals.seal(AT_ONCE)
    middle = LedgerSeal.objects.order_by("id")[1]
    tamper("DELETE FROM usage_ledgerseal WHERE id = %s", middle.pk)
    assert found()[0] == f"seal {middle.pk + 1}: after {middle.digest[:16]}"


def test_only_seals_since_then_are_recomputed(charge: Callable[[int], Sequence[int]]) -> None:
    ids = charge(1)
    first = seals.seal(AT_ONCE)
    assert first
    tamper("UPDATE usage_ledgerseal SET sealed_at = %s", first.sealed_at - timedelta(days=1))
    tamper("UPDATE usage_ledgerentry SET reason = 'x' WHERE id = %s", ids[0])
    charge(1)
    seals.seal(AT_ONCE)
    assert list(seals.check(first.sealed_at - timedelta(hours=1))) == []
    assert len(list(seals.check())) == 1


def test_the_hashed_bytes_are_the_same_on_every_database() -> None:
    """The bytes never change: a seal of today must be right in ten years."""
    from datetime import UTC, date
    from uuid import UUID

    key = UUID("0190a5b4-7e2f-7c3d-8a1b-2c3d4e5f6a7b")
    moment = datetime(2026, 11, 21, 12, 0, 0, 1000, UTC)
    entry = [
        7,
        "charge",
        key,
        1,
        2,
        3,
        "small",
        "completed",
        date(2026, 11, 21),
        moment,
        1,
        2,
        3,
        4,
        5,
        None,
        False,
        "ü",
        "",
        "",
    ]
    assert canonical(entry) == (
        '[7,"charge","0190a5b47e2f7c3d8a1b2c3d4e5f6a7b",1,2,3,"small","completed","2026-11-21",'
        '"2026-11-21T12:00:00.001000+00:00",1,2,3,4,5,null,false,"\\u00fc","",""]'
    )


def canonical(entry: Sequence[object]) -> str:
    return seals.canonical(entry).decode()


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
@pytest.mark.django_db(transaction=True)
def test_an_entry_whose_transaction_is_still_open_is_waited_for(
    charge: Callable[[int], Sequence[int]],
) -> None:
    charge(1)
    is_written, may_commit = threading.Event(), threading.Event()

    def write_slowly() -> None:
        with transaction.atomic():
            charge(1)
            is_written.set()
            may_commit.wait(10)
        connection.close()

    writer = threading.Thread(target=write_slowly)
    writer.start()
    is_written.wait(10)
    assert seals.seal(AT_ONCE) is None
    may_commit.set()
    writer.join()
    sealed = seals.seal(AT_ONCE)
    assert sealed
    assert sealed.entries_count == 2
