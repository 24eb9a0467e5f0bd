"""Exporting and dropping of the generations that were settled before a day, in steps that can be resumed.

1. `period_of` and `prepare` check that nothing speaks against it. Nothing is written.
2. `export` writes an export of the period with its generations into a folder beside the final one, and
   renames it when all of it is on the disk. Then it checks the export, as `verifyexport` does, and compares
   it with the books.
3. `record` writes the horizon and an audit entry in one transaction. From now on nobody relies on the rows.
4. `drop` deletes the rows in batches. Each is a transaction that also records the progress.

A run that was killed before the third step leaves only a folder, which the next run uses. After the third
step, the next run drops the rows that are left.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from django.db import IntegrityError, connection, transaction
from django.db.models import Count, F, Sum

from accounts.audit import commands, recorder
from usage.database.clock import database_now
from usage.database.snapshot import pages, snapshot
from usage.database.sql import db_value
from usage.database.sqlite_write_lock import SQLiteWriteLock, database_file
from usage.errors import NotDropped
from usage.exports import durable_files, exporting
from usage.exports.exporting import ExportSpec
from usage.models import Generation, Kind, LedgerEntry, RetentionHorizon
from usage.retention.readiness import MIN_AGE, reasons_against
from usage.rollups.closed_days import midnight

# Generations in a transaction: some milliseconds.
BATCH = 100
# The horizon before the first one.
BEGINNING = date(1970, 1, 1)
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class DropJob:
    """Which generations to drop: those settled before the day. They are exported to the folder first."""

    day: date
    folder: Path
    recorded_by: str


@dataclass(frozen=True, slots=True)
class Preparation:
    """The export to write, and how many generations and entries it has."""

    spec: ExportSpec
    generations: int
    entries: int


def unfinished() -> RetentionHorizon | None:
    """Return the horizon of an earlier run that has not dropped all of its rows."""
    return RetentionHorizon.objects.filter(finished_at=None).order_by("day").first()


def period_of(job: DropJob) -> ExportSpec | None:
    """Return what the job would export, None if it is dropped already; raises `NotDropped` for a day that is
    too late, and for a folder that is in use.
    """
    newest = (database_now() - MIN_AGE).date()
    if job.day > newest:
        raise NotDropped(
            f"Requests are kept for {MIN_AGE.days} days at least: give {newest} or an earlier day."
        )
    last = RetentionHorizon.objects.order_by("-day").first()
    after = last.day if last else BEGINNING
    if job.day <= after:
        return None
    folder = job.folder
    is_used = folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))
    # An export in the folder may be one of an earlier run, which `export` then compares with the books.
    if is_used and not (folder / exporting.MANIFEST).exists():
        raise NotDropped(f"{folder} is in use: give a folder that is not there yet.")
    return ExportSpec(midnight(after), midnight(job.day), None, "ndjson", has_generations=True)


def prepare(spec: ExportSpec) -> Preparation | None:
    """Return what would be dropped, None if it is nothing; raises `NotDropped` with reasons."""
    with snapshot():
        generations = spec.entries.filter(kind=Kind.CHARGE).count()
        if not generations:
            return None
        if against := list(reasons_against(spec)):
            raise NotDropped("\n".join(["Nothing was dropped:", *against]))
        return Preparation(spec, generations, spec.entries.count())


def export(spec: ExportSpec, folder: Path) -> dict[str, Any]:
    """Write the export, unless an earlier run has, check it and return its manifest.

    Raises `NotDropped` when the folder holds anything else, or the export differs from the books.
    """
    try:
        if not (folder / exporting.MANIFEST).exists():
            _write(spec, folder)
        manifest = exporting.check(folder)
    except (OSError, exporting.InvalidExport) as error:
        raise NotDropped(f"The export failed: {error}") from error
    if not _is_of(spec, manifest):
        raise NotDropped(f"{folder} holds another export: choose another folder.")
    return manifest


def _write(spec: ExportSpec, folder: Path) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    if not (partial / exporting.MANIFEST).exists():
        exporting.write(spec, partial)
    # The operating system refuses to replace a folder that is not empty.
    partial.rename(folder)
    durable_files.sync_folder(folder.parent)


def _is_of(spec: ExportSpec, manifest: dict[str, Any]) -> bool:
    """Return whether the export is of this spec and has the counts and sums of the books."""
    period = {"from": spec.since.isoformat(), "to": spec.until.isoformat(), "organization": None}
    by_kind = spec.entries.order_by().values_list("kind")
    with snapshot():
        sums = dict(by_kind.annotate(Sum("amount_nanodollars")))
        expected = {**period, "entries": dict(by_kind.annotate(Count("id"))), "amount_nanodollars": sums}
    return "generations" in manifest and all(manifest[name] == value for name, value in expected.items())


def record(job: DropJob, spec: ExportSpec, manifest: dict[str, Any]) -> RetentionHorizon:
    """Write the horizon and its audit entry; raises `NotDropped` when another run has just done so."""
    row = RetentionHorizon(
        day=job.day,
        after=spec.since.date(),
        generations_count=manifest["generations"]["count"],
        export=str(job.folder),
        export_digest=exporting.sha256(job.folder / exporting.MANIFEST),
        recorded_by=job.recorded_by,
        recorded_at=database_now(),
    )
    changes = {
        "generations": row.generations_count,
        "settled_from": row.after,
        "export": row.export,
        "export_digest": row.export_digest,
    }
    try:
        with transaction.atomic():
            row.save(force_insert=True)
            actor = commands.actor_of("dropgenerations", job.recorded_by)
            recorder.write(
                actor, "dropped generations", row, {name: [None, each] for name, each in changes.items()}
            )
    except IntegrityError as error:
        raise NotDropped("Another run has recorded a horizon at the same moment: run it again.") from error
    return RetentionHorizon.objects.get(pk=row.pk)


def drop(row: RetentionHorizon, progress: Progress) -> None:
    """Drop the horizon's generations that are left; after each batch, `progress` gets the number dropped."""
    since, until = row.dropped_until or midnight(row.after), midnight(row.day)
    charges = LedgerEntry.objects.filter(kind=Kind.CHARGE, created_at__gte=since, created_at__lt=until)
    write_lock = SQLiteWriteLock(database_file())
    try:
        for page in pages(charges, BATCH):
            began = time.monotonic()
            with write_lock.held(), transaction.atomic():
                _drop_batch(row, page)
            row.refresh_from_db()
            progress(row.dropped_count)
            # Leave the database to others for as long as the batch took.
            time.sleep(time.monotonic() - began)
    finally:
        write_lock.close()
    RetentionHorizon.objects.filter(pk=row.pk, finished_at=None).update(finished_at=database_now())


def _drop_batch(row: RetentionHorizon, charges: list[LedgerEntry]) -> None:
    # Locked in id order, as by a re-rating, to avoid a deadlock: a DELETE locks in no particular order.
    generations = Generation.objects.filter(id__in=[charge.generation_id for charge in charges])
    list(generations.select_for_update().order_by("id").values_list("id"))
    ids = [db_value(charge.generation_id) for charge in charges]
    with connection.cursor() as cursor:
        # Not by the ORM, which protects rows that ledger entries refer to.
        places = ", ".join(["%s"] * len(ids))
        cursor.execute(f"DELETE FROM usage_generation WHERE id IN ({places})", ids)  # noqa: S608  our text
        dropped = cursor.rowcount
    reached: datetime = charges[-1].created_at
    RetentionHorizon.objects.filter(pk=row.pk).update(
        dropped_count=F("dropped_count") + dropped, dropped_until=reached
    )
