"""Exports: the ledger's entries of a period as a file, with a signed manifest that says what is in it.

usage.csv or usage.ndjson   one line an entry, in the order of their time
generations.ndjson          where they are specified for: one line a generation that was settled in the period
manifest.json               period, whether it was over, columns, counts, sums, the files' SHA-256, the ledger's newest seal
manifest.json.sig           its Ed25519 signature, 64 bytes
public-key.pem              what checks the signature; compare it with one that you had before
"""

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import file_digest
from pathlib import Path
from typing import IO, Any, Literal

from django.db.models import QuerySet

from accounts.models import Organization
from usage.database.clock import database_now
from usage.database.snapshot import pages, snapshot
from usage.exports import durable_files, generations, signature
from usage.models import CHARGED, Kind, LedgerEntry, LedgerSeal
from usage.pricing import to_usd

Format = Literal["csv", "ndjson"]
FORMAT = "chatapi usage export 1"
MANIFEST, SIGNATURE, PUBLIC_KEY = "manifest.json", "manifest.json.sig", "public-key.pem"
COLUMNS = (
    "entry", "kind", "created_at", "generation", "organization_id", "organization", "project_id", "project", "api_key_id", "api_key",
    "model", "outcome", "budget_day", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens",
    "amount_nanodollars", "amount_usd", "corrects", "reason", "recorded_by", "reference",
)  # fmt: skip
LATE_ENTRIES_WITHIN = timedelta(minutes=1)
"""How long after its end a period may still get entries, of transactions that began within it: none is open
for so long.
"""
USER_TEXT_COLUMNS = ("organization", "project", "api_key", "model", "reason", "recorded_by", "reference")
"""Columns with what people have typed."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ExportSpec:
    """What to export: entries from `since` up to, and not including, `until`, of one organization or all;
    with their generations?
    """

    since: datetime
    until: datetime
    organization: Organization | None
    format: Format
    has_generations: bool = False

    @property
    def entries(self) -> "QuerySet[LedgerEntry]":
        """The entries, in no order."""
        found = LedgerEntry.objects.filter(created_at__gte=self.since, created_at__lt=self.until)
        return found if self.organization is None else found.filter(organization=self.organization)


class InvalidExport(Exception):
    """The folder is not an export as it was written; the text says what is wrong."""


def write(spec: ExportSpec, folder: Path) -> dict[str, Any]:
    """Write the export into the folder, a page in memory at once; returns the manifest, when all of it is on
    the disk.

    Raises `FileExistsError`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / MANIFEST).exists():
        raise FileExistsError(f"{folder} holds an export already")
    path = folder / f"usage.{spec.format}"
    sums: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    with snapshot():
        now = database_now()  # before the first read, so that what is missing was written later
        with durable_files.writing(path) as file:
            _WRITERS[spec.format](file, _counted(_rows(spec), counts, sums))
        manifest = _manifest(spec, now, path.name) | {"entries": counts, "amount_nanodollars": sums}
        if spec.has_generations:
            manifest["generations"] = generations.write(folder / generations.NAME, spec.entries)
    for part in _parts(manifest):
        part |= {"bytes": (folder / part["name"]).stat().st_size, "sha256": sha256(folder / part["name"])}
    _sign(folder, json.dumps(manifest, indent=2).encode() + b"\n")
    return manifest


def _sign(folder: Path, manifest: bytes) -> None:
    durable_files.write(folder / PUBLIC_KEY, signature.public_key())
    durable_files.write(folder / SIGNATURE, signature.sign(manifest))
    # The last one: a folder without it is no export.
    durable_files.write(folder / MANIFEST, manifest)
    durable_files.sync_folder(folder)


def check(folder: Path, public_key: bytes | None = None) -> dict[str, Any]:
    """The manifest of an export that is what was signed with our key, or with that one; raises `InvalidExport`."""
    try:
        manifest = _signed_manifest(folder, signature.public_key() if public_key is None else public_key)
        for part in _parts(manifest):
            if sha256(folder / part["name"]) != part["sha256"]:
                raise InvalidExport(f"{part['name']} is not the file that was signed")
    except signature.InvalidPublicKey as error:
        raise InvalidExport("the public key given is none of Ed25519 in PEM") from error
    except OSError as error:
        raise InvalidExport(f"can't read {error.filename}: {error.strerror}") from error
    name = manifest["file"]["name"]
    counts, sums = _recount(folder / name)
    if (dict(counts), dict(sums)) != (manifest["entries"], manifest["amount_nanodollars"]):
        raise InvalidExport(
            f"{name} holds {dict(counts)} entries of {dict(sums)} n$, its manifest says otherwise"
        )
    if "generations" in manifest:
        _check_generations(
            folder / manifest["generations"]["name"], counts[Kind.CHARGE], sum(sums[kind] for kind in CHARGED)
        )
    return manifest


def _signed_manifest(folder: Path, public_key: bytes) -> dict[str, Any]:
    text, signed = (folder / MANIFEST).read_bytes(), (folder / SIGNATURE).read_bytes()
    if not signature.is_signed(text, signed, public_key):
        raise InvalidExport(f"{MANIFEST} is not signed with this key")
    manifest = json.loads(text)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InvalidExport(f"{MANIFEST} is not of the format {FORMAT!r}: another version has written it")
    return manifest


def _check_generations(path: Path, count: int, amount: int) -> None:
    """They are as many as the charges, and amount to what was charged for them."""
    found = generations.recount(path)
    if found != (count, amount):
        raise InvalidExport(
            f"{path.name} holds {found[0]} generations of {found[1]} n$, its ledger has {count} charges of {amount} n$"
        )


def _parts(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """What the manifest says of each file."""
    return [manifest[part] for part in ("file", "generations") if part in manifest]


def _rows(spec: ExportSpec) -> Iterator[Row]:
    for page in pages(spec.entries.select_related("organization", "project", "api_key")):
        yield from map(row, page)


def row(entry: LedgerEntry) -> Row:
    """The entry's values by `COLUMNS`; its organization, project and key are read already."""
    project, api_key = entry.project, entry.api_key
    values = (
        entry.pk, entry.kind, entry.created_at.astimezone(UTC).isoformat(timespec="microseconds"),
        entry.request_id,
        entry.organization_id, entry.organization.name, entry.project_id, project and project.name,
        entry.api_key_id, api_key and api_key.name, entry.model, entry.outcome, entry.budget_day.isoformat(),
        entry.prompt_tokens, entry.cached_tokens, entry.completion_tokens, entry.reasoning_tokens,
        entry.amount_nanodollars, to_usd(entry.amount_nanodollars),
        entry.corrects_id, entry.reason, entry.recorded_by, entry.reference,
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def _counted(rows: Iterable[Row], counts: Counter[str], sums: Counter[str]) -> Iterator[Row]:
    for row in rows:
        counts[row["kind"]] += 1
        sums[row["kind"]] += int(row["amount_nanodollars"])
        yield row


def _manifest(spec: ExportSpec, now: datetime, name: str) -> dict[str, Any]:
    seal = LedgerSeal.objects.order_by("-id").first()
    return {
        "format": FORMAT,
        "from": spec.since.isoformat(),
        "to": spec.until.isoformat(),
        "organization": spec.organization and spec.organization.name,
        "exported_at": now.isoformat(),
        "is_over": spec.until <= now - LATE_ENTRIES_WITHIN,
        "columns": COLUMNS,
        "newest_seal": seal and {"last_entry": seal.last_id, "digest": seal.digest},
        "file": {"name": name},
    }


def _write_csv(file: IO[str], rows: Iterable[Row]) -> None:
    writer = csv.DictWriter(file, COLUMNS)
    writer.writeheader()
    writer.writerows(row | {name: without_formula(row[name]) for name in USER_TEXT_COLUMNS} for row in rows)


def without_formula(text: str | None) -> str | None:
    """Not a formula when a spreadsheet opens it (OWASP, "CSV Injection"; the last four are full-width)."""
    return f"'{text}" if text and text.startswith(_FORMULAS) else text


_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def _write_ndjson(file: IO[str], rows: Iterable[Row]) -> None:
    for row in rows:
        file.write(json.dumps(row) + "\n")


_WRITERS: dict[Format, Callable[[IO[str], Iterable[Row]], None]] = {
    "csv": _write_csv,
    "ndjson": _write_ndjson,
}


def _recount(path: Path) -> tuple[Counter[str], Counter[str]]:
    counts: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    with path.open(encoding="utf-8", newline="") as file:
        rows: Iterable[Row] = csv.DictReader(file) if path.suffix == ".csv" else map(json.loads, file)
        for _ in _counted(rows, counts, sums):
            pass
    return counts, sums


def sha256(path: Path) -> str:
    """The file's digest, in hexadecimal."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
