"""Checks of the books on record: made by people and each hour, and what the Overview says of them."""

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from inspect import get_annotations, isfunction
from itertools import chain
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.db.models import Sum
from django.db.models.signals import post_init
from django.test import Client

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts.models import APIKey
from chatapi.worker.reaper import housekeeping
from tests.admin_pages import text
from tests.cast import Person, admit, run
from usage import insights
from usage.database.clock import database_now
from usage.database.group_commit import GroupCommit
from usage.models import Budget, LedgerCheck, LedgerEntry, LedgerSeal
from usage.models.budget_keys import BudgetKey, LimitKey
from usage.rollups import closing
from usage.verification import checks, invariants, issued_statements, ledger_checks, seals, sum_checks
from usage.verification.invariants import Difference
from usage.verification.ledger_checks import Found

WRONG = Difference("I2 conservation", "key/1/ever/1970-01-01", "posted 1 pending 0", "posted 2 pending 0")
LONG = timedelta(days=36_500)
"""Instead of an hour: none ends while a test runs."""


def set_budget(posted_nanodollars: int) -> None:
    """Set today's budget of alice's key, right or wrong."""
    key = LimitKey("key", APIKey.objects.get().pk, "day")
    assert Budget.rows(key).update(posted_nanodollars=posted_nanodollars) == 1


def record(*differences: Difference, hours: float | None = None, age: timedelta = timedelta()) -> None:
    """Record a check of the last hours, or of everything."""
    now = database_now() - age
    ledger_checks.record(
        now,
        [Found(LedgerCheck(checked_at=now), now - timedelta(hours=hours) if hours else None, 1, differences)],
    )


def found() -> tuple[int, str] | None:
    """Return the result that the Overview gets."""
    last = insights.health().last_check
    return (last.differences, last.first_difference) if last else None


def test_every_check_is_made() -> None:
    found = {
        each
        for module in (invariants, sum_checks, issued_statements, seals)
        for name, each in vars(module).items()
        if isfunction(each) and each.__module__ == module.__name__ and not name.startswith("_")
        and get_annotations(each).get("return") == Iterator[Difference]
    }  # fmt: skip
    made: list[Any] = checks(None, datetime.max)
    assert {getattr(each, "func", each) for each in made} == found


def test_verifyledger_is_on_record(alice: Person) -> None:
    run(alice)
    call_command("verifyledger")
    row = LedgerCheck.objects.get()
    assert (row.since, row.hour, row.generations, row.differences, row.first_difference) == (
        None,
        None,
        1,
        0,
        "",
    )
    assert found() == (0, "")


def test_verifyledger_of_a_part_says_of_which(alice: Person) -> None:
    run(alice)
    since = database_now()
    call_command("verifyledger", "--since", since.isoformat())
    row = LedgerCheck.objects.get()
    assert (row.since, row.generations) == (since, 0)


def test_differences_stay_on_record_until_verifyledger_finds_none(alice: Person) -> None:
    run(alice)
    posted = Budget.rows(LimitKey("key", alice.api_key.pk, "day")).get().posted_nanodollars
    set_budget(posted + 1)
    with pytest.raises(CommandError, match=r"^1 difference in"):
        call_command("verifyledger")
    count, first = found() or (0, "")
    assert (count, first[:15]) == (1, "I2 conservation")
    set_budget(posted)
    call_command("verifyledger")
    assert found() == (0, "")


def test_a_seal_that_is_gone_is_on_record_too(alice: Person) -> None:
    run(alice)
    with pytest.raises(CommandError, match=r"^1 difference in"):
        call_command("verifyledger", "--seal", "f" * 64)
    count, first = found() or (0, "")
    assert (count, first[:9]) == (1, "I6 sealed")


@pytest.mark.parametrize("digest", ["abc", "", "f" * 63, "f" * 65, "g" * 64, "٣" * 64, " " + "f" * 63])
def test_an_invalid_digest_is_a_usage_error_and_no_difference(alice: Person, digest: str) -> None:
    with pytest.raises(CommandError, match=r"--seal: .* is not a digest, which has 64 hexadecimal digits"):
        call_command("verifyledger", "--seal", digest)
    assert not LedgerCheck.objects.exists()


def test_a_digest_may_be_typed_in_capitals(alice: Person) -> None:
    run(alice)
    sealed = seals.seal(timedelta())
    assert sealed
    call_command("verifyledger", "--seal", sealed.digest.upper())
    assert found() == (0, "")


@pytest.mark.parametrize(
    ("looked", "later", "is_resolved"),
    [(None, None, True), (1, 1, True), (1, 2, True), (2, 1, False), (1, None, True), (None, 1, False)],
)
def test_a_seal_that_is_gone_is_open_until_a_run_of_as_much_finds_nothing(
    alice: Person, looked: int | None, later: int | None, is_resolved: bool
) -> None:
    def since(days: float | None) -> list[str]:
        return [] if days is None else ["--since", (database_now() - timedelta(days=days)).isoformat()]

    with pytest.raises(CommandError):
        call_command("verifyledger", "--seal", "f" * 64, *since(looked))
    call_command("verifyledger", *since(later and later + 0.01))
    assert (found() == (0, "")) is is_resolved


def test_the_hours_check_makes_no_lost_seal_good(db: None) -> None:
    now = database_now()
    since = now - timedelta(hours=1)
    for hour, lost in ((None, [ledger_checks.missing_seal("f" * 64)]), (now, [])):
        check = LedgerCheck(checked_at=now, hour=hour)
        ledger_checks.record(now, [Found(check, since, 1, lost)])
        since -= timedelta(hours=1)
    assert found() == (1, f"I6 sealed: the chain of seals: expected {'f' * 64} in it, found no such seal")


def test_a_check_that_can_not_be_on_record_is_made_all_the_same(
    alice: Person, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(now: datetime, items: list[Found]) -> None:
        raise OperationalError("attempt to write a readonly database")

    monkeypatch.setattr(ledger_checks, "record", refuse)
    call_command("verifyledger")
    out, err = capsys.readouterr()
    assert "The books are right" in out
    assert "readonly" in err


@pytest.mark.parametrize(("hours", "is_resolved"), [(None, True), (48, True), (2, False)])
def test_a_difference_is_open_until_a_check_of_as_much_finds_none(
    db: None, hours: float | None, is_resolved: bool
) -> None:
    record(WRONG, hours=47, age=timedelta(minutes=5))
    record(hours=hours)
    assert found() == ((0, "") if is_resolved else (1, str(WRONG)))


def test_an_older_check_resolves_nothing(db: None) -> None:
    record(WRONG)
    record(age=timedelta(minutes=1))
    assert found() == (1, str(WRONG))


def test_the_newest_checks_and_the_open_ones_are_kept(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_checks, "KEEP", 3)
    record(WRONG, age=timedelta(hours=10))
    for hours in range(9, 1, -1):
        record(hours=1, age=timedelta(hours=hours))
    assert LedgerCheck.objects.count() == 4
    assert found() == (1, str(WRONG))


def test_of_all_processes_one_makes_the_hours_check(db: None) -> None:
    now = database_now().replace(minute=10)
    first, *others = [
        *ledger_checks.begin(now, [None]),
        *ledger_checks.begin(now + timedelta(minutes=49), [None, None]),
    ]
    assert first is not None
    assert others == [None, None]
    assert ledger_checks.begin(now + timedelta(minutes=50), [None]) != [None]


def test_a_check_that_was_given_up_says_nothing(db: None) -> None:
    ledger_checks.begin(database_now(), [None])
    assert insights.health().last_check is None


# ---- the hour's check


def keep_house(times: int = 2) -> None:
    """Run the housekeeping of this number of processes at once, until the hour's check is done."""

    async def until_checked() -> None:
        commits = [GroupCommit() for _ in range(times)]
        keeping = [asyncio.create_task(housekeeping.keep_house(each)) for each in commits]
        while not await commits[0].read(LedgerCheck.objects.filter(differences__isnull=False).exists):
            await asyncio.sleep(0.02)
        for task in keeping:
            task.cancel()
        for each in commits:
            await each.close()

    asyncio.run(asyncio.wait_for(until_checked(), 30))


@pytest.fixture
def one_hour(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_checks, "EVERY", LONG)


def test_the_housekeeping_checks_the_books_once(one_hour: None, alice: Person) -> None:
    run(alice)
    keep_house()
    row = LedgerCheck.objects.get()
    assert (row.generations, row.differences, row.first_difference) == (1, 0, "")
    assert row.since == row.checked_at - ledger_checks.WINDOWS[0]


def test_the_housekeeping_seals_all_there_is(
    one_hour: None, alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seals, "BLOCK", 2)
    for _ in range(5):
        run(alice)
    keep_house(times=1)
    assert (
        LedgerSeal.objects.aggregate(entries=Sum("entries_count"))["entries"]
        == LedgerEntry.objects.count()
        >= 5
    )


def test_a_duty_of_the_house_that_fails_keeps_no_other_from_being_done(
    one_hour: None, alice: Person, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run(alice)
    monkeypatch.setattr(closing, "next_day", [].pop)
    keep_house(times=1)
    assert LedgerCheck.objects.get().differences == 0
    assert "housekeeping: _close_days failed" in caplog.messages


def test_the_housekeeping_logs_differences(
    one_hour: None, alice: Person, caplog: pytest.LogCaptureFixture
) -> None:
    run(alice)
    set_budget(1)
    keep_house(times=1)
    (row,) = LedgerCheck.objects.all()
    assert row.differences
    (error,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert row.first_difference in error.getMessage()


def test_a_slow_invariant_is_checked_for_a_shorter_time(
    one_hour: None, alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(alice)
    set_budget(1)
    usual = seals.check

    def slow(since: datetime) -> Iterator[Difference]:
        if database_now() - since > timedelta(hours=24):
            raise OperationalError("interrupted")
        return usual(since)

    monkeypatch.setattr(seals, "check", slow)
    keep_house(times=1)
    row = LedgerCheck.objects.get()
    assert row.since == row.checked_at - ledger_checks.WINDOWS[1]
    assert row.differences  # of the day's budget, which needs the longer time


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL's own limit is its server's")
def test_a_check_takes_no_longer_than_reads_may(
    settings: object, alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "DATABASE_TIMEOUT_MS", 1)
    monkeypatch.setattr("usage.database.time_limit._STEPS", 1)
    slow = checks(None)[0]
    with pytest.raises(OperationalError, match="interrupted"):
        ledger_checks.look(lambda: chain.from_iterable(slow() for _ in range(10_000)))


# ---- the Overview


@pytest.mark.parametrize(
    ("differences", "said"),
    [(None, "never"), ((), "no difference"), ((WRONG,), '<span class="badge bad">1 difference</span>')],
)
def test_the_overview_shows_the_result_of_the_last_check(
    root: Client, differences: tuple[Difference, ...] | None, said: str
) -> None:
    if differences is not None:
        record(*differences)
    page = root.get("/admin/").content.decode()
    shown = page[page.index("Ledger last checked") :]
    shown = " ".join(shown[: shown.index("</dd>")].split())  # as a browser shows the template's line breaks
    assert said in shown
    assert (str(WRONG) in shown) is bool(differences)


@pytest.mark.parametrize(("bound", "said"), [(3, "2 entries wait"), (2, "2 or more entries wait")])
def test_the_overview_counts_unsealed_entries_up_to_a_bound(
    root: Client, alice: Person, monkeypatch: pytest.MonkeyPatch, bound: int, said: str
) -> None:
    monkeypatch.setattr("usage.insights.service_health.MAX_UNSEALED", bound)
    for _ in range(2):
        run(alice)
    assert f"Ledger last sealed never ({said})" in text(root.get("/admin/"))


def check_budgets() -> list[str]:
    """Check the budgets as the hour's check does; return what differs."""
    since = database_now() - ledger_checks.WINDOWS[0]
    return [str(each) for each in ledger_checks.look(partial(sum_checks.budgets_conserve, since))]


def old_budget(days: int, **columns: int) -> Budget:
    """Return the budget that a key had this number of days ago, not saved."""
    key = BudgetKey("key", 7, "day", database_now().date() - timedelta(days=days))
    return Budget.new(key, id=str(key), **columns)


def test_the_hours_check_reads_no_budgets_of_days_long_gone(alice: Person) -> None:
    run(alice)
    Budget.objects.bulk_create(old_budget(days, posted_nanodollars=1) for days in range(10, 400))
    read: list[str] = []

    def note(instance: Budget, **_: Any) -> None:
        read.append(instance.id)

    post_init.connect(note, sender=Budget)
    try:
        assert check_budgets() == []
    finally:
        post_init.disconnect(note, sender=Budget)
    assert len(read) < 20


def test_the_hours_check_compares_the_holds_of_all_budgets(alice: Person) -> None:
    held = admit(alice).reserved_nanodollars
    stale = old_budget(40, pending_nanodollars=5)
    stale.save(force_insert=True)
    ever = f"key/{alice.api_key.pk}/ever/1970-01-01"
    assert Budget.objects.filter(pk=ever).update(pending_nanodollars=0) == 1
    assert check_budgets() == [
        f"I2 conservation: {stale.id}: expected posted 0 pending 0, found posted 0 pending 5",
        f"I2 conservation: {ever}: expected pending {held}, found pending 0",
    ]
