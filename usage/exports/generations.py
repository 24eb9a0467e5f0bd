"""The generations of an export: one JSON line each with all columns, in the order of settlement."""

import json
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
    """Write the generations that these entries charge for, one page in memory at a time; return their part of
    the manifest.

    Raises `LookupError` if a generation is missing.
    """
    count = amount = 0
    with durable_files.writing(path) as file:
        for page in pages(entries.filter(kind=Kind.CHARGE)):
            rows = Generation.objects.in_bulk([charge.generation_id for charge in page])
            for row in (rows[charge.generation_id] for charge in page if charge.generation_id):
                count, amount = count + 1, amount + row.amount_nanodollars
                values = {name: _json_value(getattr(row, name)) for name in COLUMNS}
                file.write(json.dumps(values | {"id": str(row)}) + "\n")
    return {"name": path.name, "columns": COLUMNS, "count": count, "amount_nanodollars": amount}


def recount(path: Path) -> tuple[int, int]:
    """Return the number of generations in the file, and their amount in nanodollars."""
    count = amount = 0
    with path.open(encoding="utf-8") as file:
        for line in file:
            count, amount = count + 1, amount + json.loads(line)["amount_nanodollars"]
    return count, amount


def _json_value(value: Any) -> Any:
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="microseconds")
        case date():
            return value.isoformat()
    return value
