"""Retention: generations are exported, then dropped; the books stay as they are, and verification finds
all else that is missing.
"""

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts.audit.models import AuditEntry
from tests.usage.books_to_drop import BEFORE, TODAY, drop, old, tidy_up, write
from tests.usage.range_reads import first_token_ms
from tests.usage.triggers import without_triggers
from usage import insights, rollups
from usage.books import corrections, ledger, rerating
from usage.books.credit import Note
from usage.database.clock import database_now
from usage.database.snapshot import pages
from usage.errors import NotBooked
from usage.exports import durable_files, generations
from usage.insights import Filters, Range
from usage.insights.buckets import BucketQuery, buckets
from usage.management import seeding
from usage.management.seeding import Plan
from usage.models import (
    Budget,
    ClosedDay,
    DailyFirstTokens,
    DailyTotals,
    DailyUsage,
    Generation,
    HourlyUsage,
    Kind,
    LedgerEntry,
    LedgerSeal,
    RetentionHorizon,
    State,
)
from usage.retention import dropping
from usage.rollups import retention_horizon
from usage.rollups.closed_days import DAY, midnight
from usage.verification import verify

Ask = Callable[..., ledger.Admission]


@pytest.fixture
def books(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the old books, and make a drop take several batches."""
    monkeypatch.setattr(dropping, "BATCH", 4)
    write(ask)


@pytest.fixture
def seeded_books(db: None) -> None:
    """Seed a month with overages, discounts, test keys and failures."""
    with transaction.atomic():
        seeding.seed(Plan(400, 30, 1, midnight(TODAY - 30 * DAY)), lambda done: None)
    tidy_up()


def tables() -> list[object]:
    """Return all rows that a rebuild makes anew, and the times to first token."""
    found: list[object] = []
    for table in (HourlyUsage, DailyUsage, DailyTotals, DailyFirstTokens, ClosedDay):
        names = [field.attname for field in table._meta.concrete_fields if field.name != "id"]
        found.append(sorted(table.objects.values_list(*names), key=str))
    return found


def shown() -> list[object]:
    """Return those days as pages, the usage API and the books show them."""
    over = Range(midnight(TODAY - 61 * DAY), midnight(TODAY - 30 * DAY), "day")
    found: list[object] = [
        insights.totals(over),
        first_token_ms(over),
        first_token_ms(over, Filters(outcome="completed")),
    ]
    found += [
        insights.series(over, group_by) for group_by in ("organization", "project", "key", "model", "outcome")
    ]
    organization = LedgerEntry.objects.values_list("organization_id", flat=True)[0]
    for width in ("minute", "hour", "day"):
        found.append(buckets(BucketQuery(organization, width, over.start, over.end, ("model",))))
    found += [list(table.objects.order_by("pk").values()) for table in (LedgerEntry, LedgerSeal, Budget)]
    return found


# ---- what stays


def test_the_books_say_the_same_before_and_after(seeded_books: None, tmp_path: Path) -> None:
    newer = list(Generation.objects.filter(settled_at__gte=midnight(BEFORE)).order_by("id").values())
    count, before, made = len(old()), [shown(), tables()], Generation.objects.count()
    assert 0 < count < made == 400
    said = drop(tmp_path / "export", BEFORE, "--by=alice")
    assert f"Dropped {count} generations settled before {BEFORE}" in said
    assert list(Generation.objects.order_by("id").values()) == newer
    assert [shown(), tables()] == before
    report = verify(now=database_now())
    assert (report.differences, report.generations, report.dropped_generations) == ([], made - count, count)
    assert verify(since=midnight(BEFORE - DAY)).differences == []


def test_rebuilding_makes_the_same_tables_without_the_generations(books: None, tmp_path: Path) -> None:
    before = tables()
    drop(tmp_path / "export")
    call_command("rollup", stdout=StringIO())
    assert tables() == before
    assert rollups.rebuild().days_before == len(before[1])  # type: ignore[arg-type]
    assert verify().differences == []


def test_times_of_days_that_are_counted_while_they_are_dropped_stay(
    books: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, job = tables(), dropping.DropJob(BEFORE, tmp_path / "export", "alice")
    spec = dropping.period_of(job)
    assert spec is not None
    ready = dropping.prepare(spec)
    assert ready is not None
    manifest = dropping.export(ready.spec, job.folder)
    rollups.rebuild()  # by someone else, when all was found to be ready
    ask = retention_horizon.horizon

    def ask_and_drop() -> datetime | None:
        """Drop rows between a question and its use."""
        monkeypatch.setattr(retention_horizon, "horizon", ask)
        horizon = ask()
        dropping.drop(dropping.record(job, ready.spec, manifest), lambda done: None)
        return horizon

    monkeypatch.setattr(retention_horizon, "horizon", ask_and_drop)
    call_command("rollup", stdout=StringIO())
    assert tables() == before


def test_the_export_has_every_row_with_all_its_columns(books: None, tmp_path: Path) -> None:
    rows = {str(row): row for row in Generation.objects.filter(pk__in=old())}
    drop(tmp_path / "export")
    lines = [
        json.loads(line) for line in (tmp_path / "export" / "generations.ndjson").read_text().splitlines()
    ]
    assert sorted(line["id"] for line in lines) == sorted(rows)
    for line in lines:
        row = rows[line["id"]]
        assert line.keys() == set(generations.COLUMNS)
        assert datetime.fromisoformat(line["settled_at"]) == row.settled_at
        assert (line["amount_nanodollars"], line["first_token_ms"]) == (
            row.amount_nanodollars,
            row.first_token_ms,
        )


def test_a_changed_byte_of_the_export_is_found(books: None, tmp_path: Path) -> None:
    drop(tmp_path / "export")
    for name in ("usage.ndjson", "generations.ndjson", "manifest.json"):
        call_command("verifyexport", str(tmp_path / "export"), stdout=StringIO())
        path = tmp_path / "export" / name
        written = path.read_bytes()
        path.write_bytes(written.replace(b"1", b"2", 1))
        with pytest.raises(CommandError, match="signed"):
            call_command("verifyexport", str(tmp_path / "export"))
        path.write_bytes(written)


def test_the_audit_log_has_the_person_and_the_dropped_generations(books: None, tmp_path: Path) -> None:
    count = len(old())
    drop(tmp_path / "export", BEFORE, "--by=alice")
    row, entry = RetentionHorizon.objects.get(), AuditEntry.objects.get(object_type="usage.retentionhorizon")
    assert (row.day, row.generations_count, row.dropped_count, row.recorded_by) == (
        BEFORE,
        count,
        count,
        "alice",
    )
    assert row.finished_at is not None
    assert (entry.actor, entry.action, entry.object_name) == (
        "alice (manage.py dropgenerations)",
        "dropped generations",
        str(BEFORE),
    )
    assert entry.changes["export_digest"] == [None, row.export_digest]


def test_the_next_run_goes_on_where_the_last_one_ended(books: None, tmp_path: Path) -> None:
    first, all_old = BEFORE - DAY, len(old())
    drop(tmp_path / "first", first)
    assert "nothing to drop" in drop(tmp_path / "none", first)
    drop(tmp_path / "second")
    counts = [
        json.loads((tmp_path / name / "manifest.json").read_text())["generations"]["count"]
        for name in ("first", "second")
    ]
    assert (sum(counts), min(counts) > 0) == (all_old, True)
    assert old() == []
    assert verify().differences == []


# ---- what stops it


def leave_one_open() -> None:
    row = Generation.objects.filter(pk__in=old())[0]
    row.pk, row.state, row.settled_at = UUID(int=7), State.RUNNING, None
    row.save(force_insert=True)


def reopen_a_day() -> None:
    ClosedDay.objects.filter(pk=BEFORE - DAY).delete()


def leave_one_unsealed() -> None:
    with without_triggers():
        LedgerSeal.objects.all().delete()


def change_an_amount() -> None:
    Generation.objects.filter(pk=old()[0]).update(amount_nanodollars=1)


STOPPING: dict[str, Callable[[], None]] = {
    "1 requests from before .* are not settled": leave_one_open,
    "the sums by day or the times to first token are missing": reopen_a_day,
    "some ledger entries from before .* are not sealed": leave_one_unsealed,
    "The books are not right: I7 exact money": change_an_amount,
}


@pytest.mark.parametrize("reason", STOPPING)
def test_it_refuses_while_the_books_are_not_ready(books: None, tmp_path: Path, reason: str) -> None:
    STOPPING[reason]()
    before = Generation.objects.count()
    with pytest.raises(CommandError, match=f"(?i){reason}"):
        drop(tmp_path / "export")
    assert (Generation.objects.count(), RetentionHorizon.objects.count(), list(tmp_path.iterdir())) == (
        before,
        0,
        [],
    )


def test_it_keeps_the_last_five_weeks(books: None, tmp_path: Path) -> None:
    said, day = StringIO(), TODAY - 34 * DAY
    with pytest.raises(CommandError, match="kept for 35 days at least"):
        call_command("dropgenerations", before=day, to=tmp_path / "export", by="alice", stdout=said)
    assert said.getvalue() == ""  # it has not begun to check the books


@pytest.mark.parametrize(("name", "shown"), [("\udcff", "not UTF-8 text"), ("x/" * 500, "at most 1000")])
def test_a_folder_name_that_fits_no_column_is_refused_at_once(
    books: None, tmp_path: Path, name: str, shown: str
) -> None:
    with pytest.raises(CommandError, match=shown):
        drop(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_it_writes_over_nothing(books: None, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(CommandError, match="is in use"):
        drop(tmp_path)
    call_command(
        "exportusage",
        "--from=2020-01-01",
        "--to=2030-01-01",
        f"--output={tmp_path / 'other'}",
        stdout=StringIO(),
    )
    with pytest.raises(CommandError, match="holds another export"):
        drop(tmp_path / "other")
    assert (tmp_path / "mine").read_text() == "mine"
    assert old()


def test_a_dry_run_writes_nothing(books: None, tmp_path: Path) -> None:
    count = len(old())
    assert f"Would export {count} generations settled before {BEFORE}" in drop(
        tmp_path / "export", BEFORE, "--dry-run"
    )
    assert (len(old()), RetentionHorizon.objects.count(), list(tmp_path.iterdir())) == (count, 0, [])


# ---- killed


class Killed(BaseException):
    """What nobody catches."""


PLACES: list[tuple[Any, str, int]] = [
    (generations, "write", 1),  # the export is half done
    (durable_files, "sync_folder", 1),  # it is whole, and has not its name yet
    (durable_files, "sync_folder", 2),  # nothing knows of it yet
    (dropping, "record", 1),  # nothing is dropped yet
    (dropping, "_drop_batch", 1),  # a batch was not committed
    (dropping, "_drop_batch", 3),
]


@pytest.mark.parametrize(
    ("module", "name", "hit"), PLACES, ids=lambda each: str(getattr(each, "__name__", each))
)
def test_the_next_run_finishes_after_a_crash_at_any_step(
    books: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, hit: int
) -> None:
    real, hits, count = getattr(module, name), 0, len(old())

    def dying(*args: Any) -> Any:
        nonlocal hits
        hits += 1
        found = real(*args)
        if hits == hit:
            raise Killed
        return found

    with monkeypatch.context() as patch:
        patch.setattr(module, name, dying)
        with pytest.raises(Killed):
            drop(tmp_path / "export")
    assert verify().differences == []
    assert (len(old()) < count) == (hit == 3)
    drop(tmp_path / "export")
    row = RetentionHorizon.objects.get()
    assert (row.dropped_count, row.finished_at is None, old()) == (count, False, [])
    assert verify().differences == []
    call_command("verifyexport", str(tmp_path / "export"), stdout=StringIO())


def test_entries_of_dropped_generations_have_ids_without_prefix(books: None, tmp_path: Path) -> None:
    dropped = {each.hex for each in old()}
    drop(tmp_path / "export")
    entries = LedgerEntry.objects.select_related("generation")
    assert {entry.request_id for entry in entries} & dropped == dropped


def test_half_an_export_is_written_anew(books: None, tmp_path: Path) -> None:
    (tmp_path / "export.partial").mkdir()
    (tmp_path / "export.partial" / "generations.ndjson").write_text("{")
    drop(tmp_path / "export")
    call_command("verifyexport", str(tmp_path / "export"), stdout=StringIO())
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


# ---- what is missing that should not be


def test_the_database_refuses_to_delete_generations_after_the_horizon(books: None, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="retention horizon"), transaction.atomic():
        Generation.objects.filter(pk=old()[0])._raw_delete("default")
    drop(tmp_path / "export")
    with pytest.raises(IntegrityError, match="retention horizon"), transaction.atomic():
        Generation.objects.all()._raw_delete("default")


@pytest.mark.parametrize("is_old", [True, False])
def test_a_generation_that_was_not_exported_is_missed(books: None, tmp_path: Path, is_old: bool) -> None:
    drop(tmp_path / "export", BEFORE - DAY)
    RetentionHorizon.objects.create(
        day=BEFORE,
        after=BEFORE - DAY,
        generations_count=len(old()),
        export="",
        export_digest="",
        recorded_by="",
        recorded_at=database_now(),
    )
    assert verify().differences == []
    row = Generation.objects.get(pk=old()[0]) if is_old else Generation.objects.latest("id")
    with without_triggers():
        Generation.objects.filter(pk=row.pk)._raw_delete("default")
    (difference,) = verify().differences
    subject = (
        f"settled from {BEFORE - DAY} to {BEFORE}"
        if is_old
        else f"charge {LedgerEntry.objects.get(generation=row.pk).pk}"
    )
    assert (difference.invariant, difference.subject) == ("I15 kept", subject)


# ---- what needs the rows


def test_operations_that_need_dropped_rows_refuse(books: None, tmp_path: Path) -> None:
    charge = LedgerEntry.objects.filter(kind=Kind.CHARGE, amount_nanodollars__gt=0).order_by("created_at")[0]
    Generation.objects.filter(pk__in=old()).update(deployment="former")
    drop(tmp_path / "export")
    with pytest.raises(NotBooked, match="Grant credit instead"):
        corrections.correct(charge.pk, -1, Note("too late", "alice"))
    period, bill = [f"--from={BEFORE - DAY}", f"--to={TODAY}"], tmp_path / "bill.csv"
    bill.write_text("date,model,requests\n")
    for command in (
        ["rerate", "--model=model-0", *period],
        ["reconcile", str(bill), *period],
        ["reconcile", str(bill), *period, "--deployment=former"],
        ["seedusage", "--add", "--days=60"],
    ):
        with pytest.raises(CommandError, match=f"settled before {BEFORE} .* were exported and dropped"):
            call_command(*command)
    call_command("rerate", "--model=model-0", f"--from={BEFORE}", f"--to={TODAY}", stdout=StringIO())


@pytest.mark.parametrize("is_dry_run", [True, False])
@pytest.mark.parametrize("is_page_read", [True, False])
def test_re_rating_refuses_generations_that_are_dropped_meanwhile(
    books: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_page_read: bool, is_dry_run: bool
) -> None:
    def read_and_drop(charges: Any, size: int) -> Iterator[list[LedgerEntry]]:
        """Drop between a page's read and its locks, or before a page that then has nothing to lock."""
        read = pages(charges, size)
        first = [next(read)] if is_page_read else []
        drop(tmp_path / "export")
        yield from [*first, *read]

    monkeypatch.setattr(rerating, "pages", read_and_drop)
    period = [f"--from={BEFORE - DAY}", f"--to={BEFORE}"]
    with pytest.raises(CommandError, match=f"settled before {BEFORE} .* were exported and dropped"):
        call_command("rerate", "--model=model-0", *period, *["--dry-run"] * is_dry_run, stdout=StringIO())
    assert not LedgerEntry.objects.filter(is_rerating=True).exists()
