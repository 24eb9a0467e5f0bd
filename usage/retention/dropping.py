"""Exports the generations that were settled before a day, and drops them: each step is done by a run, or by
the next one.

1. `prepare`: what speaks against it, and how much it is. Nothing is written.
2. `export`: an export of the period with its generations, made in a folder beside the wanted one, which gets its name when all of it is
   on the disk. Then it is checked, as `verifyexport` does, and compared with the books.
3. `record`: the horizon and an entry in the audit log, in one transaction. From now on nobody relies on the rows.
4. `drop`: the rows, in batches. Each is a transaction that also says how far it is.

Killed before the third step, nothing has happened but a folder, which the next run takes up; after it, the
next run drops what is left.
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
from usage.database.sqlite_write_lock import WriteTurn, database_file
from usage.errors import NotDropped
from usage.exports import durable_files, exporting
from usage.exports.exporting import ExportSpec
from usage.models import Generation, Kind, LedgerEntry, RetentionHorizon
from usage.retention.readiness import MIN_AGE, reasons_against
from usage.rollups.closed_days import midnight

BATCH = 100
"""Generations in a transaction: some milliseconds."""
BEGINNING = date(1970, 1, 1)
"""What the first horizon has as the one before."""
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Order:
    """Drop what was settled before the day, once it is in the folder; and who asked for it."""

    day: date
    folder: Path
    recorded_by: str


@dataclass(frozen=True, slots=True)
class Preparation:
    """What would be exported, and how much of it dropped."""

    spec: ExportSpec
    generations: int
    entries: int


def unfinished() -> RetentionHorizon | None:
    """What an earlier run has exported and recorded, and not dropped to the end."""
    return RetentionHorizon.objects.filter(finished_at=None).order_by("day").first()


def prepare(order: Order) -> Preparation | None:
    """What the order would do; None: nothing is left to drop. Raises `NotDropped` with all that speaks
    against it.
    """
    newest = (database_now() - MIN_AGE).date()
    if order.day > newest:
        raise NotDropped(
            f"Requests are kept for {MIN_AGE.days} days at least: give {newest} or an earlier day."
        )
    last = RetentionHorizon.objects.order_by("-day").first()
    after = last.day if last else BEGINNING
    if order.day <= after:
        return None
    _check_folder(order.folder)
    spec = ExportSpec(midnight(after), midnight(order.day), None, "ndjson", has_generations=True)
    with snapshot():
        generations = spec.entries.filter(kind=Kind.CHARGE).count()
        if not generations:
            return None
        if against := list(reasons_against(spec)):
            raise NotDropped("\n".join(["Nothing was dropped:", *against]))
        return Preparation(spec, generations, spec.entries.count())


def _check_folder(folder: Path) -> None:
    """It is free, or has an export, which an earlier run may have written."""
    is_used = folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))
    if is_used and not (folder / exporting.MANIFEST).exists():
        raise NotDropped(f"{folder} is in use: give a folder that is not there yet.")


def export(spec: ExportSpec, folder: Path) -> dict[str, Any]:
    """Write the export and check it, or check the one that an earlier run has written; returns its manifest.

    Raises `NotDropped` when the folder has anything else, or the file is not what the books say.
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
    # The system itself refuses to put it in the place of a folder that is not empty.
    partial.rename(folder)
    durable_files.sync_folder(folder.parent)


def _is_of(spec: ExportSpec, manifest: dict[str, Any]) -> bool:
    """Whether it is an export of just that, and has what the books have: entries never change, and their
    generations follow them.
    """
    specified = (spec.since.isoformat(), spec.until.isoformat(), None, True)
    with snapshot():
        by_kind = list(
            spec.entries.order_by().values_list("kind").annotate(Count("id"), Sum("amount_nanodollars"))
        )
    counts, sums = {kind: count for kind, count, _ in by_kind}, {kind: amount for kind, _, amount in by_kind}
    is_as_specified = (
        manifest["from"],
        manifest["to"],
        manifest["organization"],
        "generations" in manifest,
    ) == specified
    return is_as_specified and (manifest["entries"], manifest["amount_nanodollars"]) == (counts, sums)


def record(order: Order, spec: ExportSpec, manifest: dict[str, Any]) -> RetentionHorizon:
    """Write the horizon down, and in the audit log who moved it; raises `NotDropped` when another run has
    just done so.
    """
    row = RetentionHorizon(
        day=order.day,
        after=spec.since.date(),
        generations_count=manifest["generations"]["count"],
        export=str(order.folder),
        export_digest=exporting.sha256(order.folder / exporting.MANIFEST),
        recorded_by=order.recorded_by,
        recorded_at=database_now(),
    )
    told = {
        "generations": row.generations_count,
        "settled_from": row.after,
        "export": row.export,
        "export_digest": row.export_digest,
    }
    try:
        with transaction.atomic():
            row.save(force_insert=True)
            actor = commands.actor_of("dropgenerations", order.recorded_by)
            recorder.write(
                actor, "dropped generations", row, {name: [None, each] for name, each in told.items()}
            )
    except IntegrityError as error:
        raise NotDropped("Another run has recorded a horizon at the same moment: run it again.") from error
    return RetentionHorizon.objects.get(pk=row.pk)


def drop(row: RetentionHorizon, progress: Progress) -> None:
    """Drop what the horizon says and is not dropped yet; `progress` is told after each batch how many are
    dropped by then.
    """
    since, until = row.dropped_until or midnight(row.after), midnight(row.day)
    charges = LedgerEntry.objects.filter(kind=Kind.CHARGE, created_at__gte=since, created_at__lt=until)
    turn = WriteTurn(database_file())
    try:
        for page in pages(charges, BATCH):
            began = time.monotonic()
            with turn.taken(), transaction.atomic():
                _drop(row, page)
            row.refresh_from_db()
            progress(row.dropped_count)
            # As long as it took others have the database to themselves.
            time.sleep(time.monotonic() - began)
    finally:
        turn.close()
    RetentionHorizon.objects.filter(pk=row.pk, finished_at=None).update(finished_at=database_now())


def _drop(row: RetentionHorizon, charges: list[LedgerEntry]) -> None:
    # Locked in id order, as by a re-rating: a deletion has no order of its own, and the two would wait for
    # each other.
    generations = Generation.objects.filter(id__in=[charge.generation_id for charge in charges])
    list(generations.select_for_update().order_by("id").values_list("id"))
    ids = [db_value(charge.generation_id) for charge in charges]
    with connection.cursor() as cursor:
        # Not the ORM, which would protect what the ledger's entries name.
        cursor.execute(f"DELETE FROM usage_generation WHERE id IN ({', '.join(['%s'] * len(ids))})", ids)  # noqa: S608  the text is ours
        dropped = cursor.rowcount
    reached: datetime = charges[-1].created_at
    RetentionHorizon.objects.filter(pk=row.pk).update(
        dropped_count=F("dropped_count") + dropped, dropped_until=reached
    )
