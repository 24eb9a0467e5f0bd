"""Exports: the ledger's entries of a period as a file, with a signed manifest that says what is in it.

usage.csv or usage.ndjson   one line per entry, in the order of time
generations.ndjson          optional: one line per generation that was settled in the period
manifest.json               period, columns, counts, sums, SHA-256 of the files, the ledger's newest seal
manifest.json.sig           its Ed25519 signature, 64 bytes
public-key.pem              the key that checks the signature; compare it with a copy from elsewhere
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
    "entry", "kind", "created_at", "generation", "organization_id", "organization", "project_id", "project",
    "api_key_id", "api_key", "model", "outcome", "budget_day", "prompt_tokens", "cached_tokens",
    "completion_tokens", "reasoning_tokens", "amount_nanodollars", "amount_usd", "corrects", "reason",
    "recorded_by", "reference", "cache_write_tokens", "cache_write_1h_tokens",
)  # fmt: skip
# How long after its end a period may still get entries, from transactions that began within it.
LATE_ENTRIES_WITHIN = timedelta(minutes=1)
# Columns with text that people have typed.
USER_TEXT_COLUMNS = ("organization", "project", "api_key", "model", "reason", "recorded_by", "reference")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ExportSpec:
    """Which entries to export: from `since` up to, not including, `until`, of one organization or all."""

    since: datetime
    until: datetime
    organization: Organization | None
    format: Format
    has_generations: bool = False

    @property
    def entries(self) -> "QuerySet[LedgerEntry]":
        """Return the entries, in no order."""
        found = LedgerEntry.objects.filter(created_at__gte=self.since, created_at__lt=self.until)
        return found if self.organization is None else found.filter(organization=self.organization)


class InvalidExport(Exception):
    """The folder is not an export as it was signed; the text says what is wrong."""


def write(spec: ExportSpec, folder: Path) -> dict[str, Any]:
    """Write the export into the folder, one page in memory at a time. Return the manifest when all is on the
    disk.

    Raises `FileExistsError`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / MANIFEST).exists():
        raise FileExistsError(f"{folder} holds an export already")
    path = folder / f"usage.{spec.format}"
    sums: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    with snapshot():
        now = database_now()  # before the first read, so that missing entries were written later
        with durable_files.writing(path) as file:
            found = pages(spec.entries.select_related("organization", "project", "api_key", "generation"))
            _WRITERS[spec.format](
                file, _counted((row(entry) for page in found for entry in page), counts, sums)
            )
        manifest = _manifest(spec, now, path.name) | {"entries": counts, "amount_nanodollars": sums}
        if spec.has_generations:
            manifest["generations"] = generations.write(folder / generations.NAME, spec.entries)
    for part in _parts(manifest):
        part |= {"bytes": (folder / part["name"]).stat().st_size, "sha256": sha256(folder / part["name"])}
    text = json.dumps(manifest, indent=2).encode() + b"\n"
    durable_files.write(folder / PUBLIC_KEY, signature.public_key())
    durable_files.write(folder / SIGNATURE, signature.sign(text))
    # The manifest comes last: a folder without it is not an export.
    durable_files.write(folder / MANIFEST, text)
    durable_files.sync_folder(folder)
    return manifest


def check(folder: Path, public_key: bytes | None = None) -> dict[str, Any]:
    """Return the manifest of an export signed with this key, by default ours; raises `InvalidExport`."""
    try:
        manifest = _signed_manifest(folder, signature.public_key() if public_key is None else public_key)
        for part in _parts(manifest):
            if sha256(folder / part["name"]) != part["sha256"]:
                raise InvalidExport(f"{part['name']} is not the file that was signed")
    except signature.InvalidPublicKey as error:
        raise InvalidExport("the public key is not an Ed25519 key in PEM") from error
    except OSError as error:
        raise InvalidExport(f"can't read {error.filename}: {error.strerror}") from error
    name = manifest["file"]["name"]
    # The hashes prove that the files are those that were signed; recounting proves that they agree with
    # each other.
    counts, sums = _recount(folder / name)
    if (dict(counts), dict(sums)) != (manifest["entries"], manifest["amount_nanodollars"]):
        raise InvalidExport(
            f"{name} holds {dict(counts)} entries of {dict(sums)} n$, its manifest says otherwise"
        )
    if "generations" in manifest:
        expected = (counts[Kind.CHARGE], sum(sums[kind] for kind in CHARGED))
        path = folder / manifest["generations"]["name"]
        if (found := generations.recount(path)) != expected:
            raise InvalidExport(
                f"{path.name} holds {found[0]} generations of {found[1]} n$, "
                f"its ledger has {expected[0]} charges of {expected[1]} n$"
            )
    return manifest


def _signed_manifest(folder: Path, public_key: bytes) -> dict[str, Any]:
    text, signed = (folder / MANIFEST).read_bytes(), (folder / SIGNATURE).read_bytes()
    if not signature.is_signed(text, signed, public_key):
        raise InvalidExport(f"{MANIFEST} is not signed with this key")
    manifest = json.loads(text)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InvalidExport(f"{MANIFEST} is not of the format {FORMAT!r}: another version wrote it")
    return manifest


def _parts(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the manifest's description of each file."""
    return [manifest[part] for part in ("file", "generations") if part in manifest]


def row(entry: LedgerEntry) -> Row:
    """Return the entry's values by `COLUMNS`; its organization, project and key have been read already."""
    project, api_key = entry.project, entry.api_key
    values = (
        entry.pk, entry.kind, entry.created_at.astimezone(UTC).isoformat(timespec="microseconds"),
        entry.request_id,
        entry.organization_id, entry.organization.name, entry.project_id, project and project.name,
        entry.api_key_id, api_key and api_key.name, entry.model, entry.outcome, entry.budget_day.isoformat(),
        entry.prompt_tokens, entry.cached_tokens, entry.completion_tokens, entry.reasoning_tokens,
        entry.amount_nanodollars, to_usd(entry.amount_nanodollars),
        entry.corrects_id, entry.reason, entry.recorded_by, entry.reference,
        entry.cache_write_tokens, entry.cache_write_1h_tokens,
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
    """Return the text such that a spreadsheet does not run it as a formula (OWASP, "CSV Injection")."""
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
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
