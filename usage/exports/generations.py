"""The generations of an export: one JSON line each with all columns of its row, in the order in which they
were settled.
"""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from django.db.models import QuerySet

from usage.database.snapshot import pages
from usage.exports import durable_files
from usage.models import Generation, Kind, LedgerEntry

NAME = "generations.ndjson"
COLUMNS = tuple(field.attname for field in Generation._meta.concrete_fields)


def write(path: Path, entries: "QuerySet[LedgerEntry]") -> dict[str, Any]:
    """Write the generations that these entries charge for, a page in memory at once; returns what the
    manifest says of them.

    Raises `LookupError` where one of them is not there.
    """
    count = amount = 0
    with durable_files.writing(path) as file:
        for row in _rows(entries.filter(kind=Kind.CHARGE)):
            count, amount = count + 1, amount + row.amount_nanodollars
            file.write(
                json.dumps({name: _plain(getattr(row, name)) for name in COLUMNS} | {"id": str(row)}) + "\n"
            )
    return {"name": path.name, "columns": COLUMNS, "count": count, "amount_nanodollars": amount}


def recount(path: Path) -> tuple[int, int]:
    """How many generations the file holds, and what they amount to in nanodollars."""
    count = amount = 0
    with path.open(encoding="utf-8") as file:
        for line in file:
            count, amount = count + 1, amount + json.loads(line)["amount_nanodollars"]
    return count, amount


def _rows(charges: "QuerySet[LedgerEntry]") -> Iterator[Generation]:
    for page in pages(charges):
        rows = Generation.objects.in_bulk([charge.generation_id for charge in page])
        yield from (rows[charge.generation_id] for charge in page if charge.generation_id)


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="microseconds")
        case date():
            return value.isoformat()
    return value
