"""Exports: every entry of the period once, harmless in a spreadsheet, and signed for anyone to check."""

import csv
import json
import shutil
import subprocess
from collections.abc import Callable
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from accounts.models import APIKey, Organization
from tests.usage.conftest import NOW, completed, run
from usage.books import corrections, credit, ledger
from usage.books.credit import Note
from usage.database.clock import database_now
from usage.database.snapshot import pages
from usage.exports import exporting, signature
from usage.exports.exporting import ExportSpec, InvalidExport
from usage.models import LedgerEntry
from usage.verification import seals

Ask = Callable[..., ledger.Admission]
EVER = ("--from", "2000-01-01", "--to", "2100-01-01")


@pytest.fixture
def books(key: APIKey, ask: Ask) -> Organization:
    """Return three charges, one corrected, a grant, and a stranger's grant."""
    for _ in range(3):
        ledger.admit(NOW, [admission := ask()])
        ledger.settle(NOW, [completed(run(admission), prompt=10, completion=5)])
    corrections.correct(LedgerEntry.objects.all()[0].pk, -1_000, Note("=HYPERLINK(1)", "+alice"))
    organization = key.project.organization
    credit.grant(organization, 5_000, Note("first", "alice", "@pay"))
    credit.grant(Organization.objects.create(name="Stranger"), 7_000, Note("theirs", "bob"))
    seals.seal()
    return organization


def export(folder: Path, *options: str) -> dict[str, Any]:
    call_command("exportusage", *EVER, "--output", str(folder), *options)
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return manifest


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "usage.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_entry_is_exported_once(books: Organization, tmp_path: Path) -> None:
    manifest = export(tmp_path)
    assert [int(row["entry"]) for row in rows(tmp_path)] == list(
        LedgerEntry.objects.order_by("created_at", "id").values_list("id", flat=True)
    )
    assert manifest["entries"] == {"charge": 3, "correction": 1, "grant": 2}
    assert manifest["amount_nanodollars"] == {"charge": 60_000, "correction": -1_000, "grant": -12_000}
    assert manifest["newest_seal"]["last_entry"] == LedgerEntry.objects.latest("id").pk


def test_pages_leave_nothing_out_and_repeat_nothing(books: Organization) -> None:
    """Entries of one settlement have the same time, and a page may end between them."""
    entries = LedgerEntry.objects.order_by("created_at", "id")
    for size in (1, 2, 4, 6, 7):
        assert list(chain.from_iterable(pages(LedgerEntry.objects.all(), size))) == list(entries)


def test_one_organizations_export_has_nothing_of_others(books: Organization, tmp_path: Path) -> None:
    manifest = export(tmp_path, "--organization", books.name, "--format", "ndjson")
    found = [json.loads(line) for line in (tmp_path / "usage.ndjson").read_text().splitlines()]
    assert {row["organization"] for row in found} == {books.name}
    assert sum(manifest["entries"].values()) == len(found) == 5
    grant = next(row for row in found if row["kind"] == "grant")
    assert (grant["generation"], grant["project"], grant["amount_usd"], grant["reference"]) == (
        None,
        None,
        "-0.000005",
        "@pay",
    )


def test_the_period_ends_before_its_end(books: Organization, tmp_path: Path) -> None:
    exporting.write(ExportSpec(NOW, NOW + timedelta(microseconds=1), None, "csv"), tmp_path / "with")
    exporting.write(ExportSpec(NOW - timedelta(days=1), NOW, None, "csv"), tmp_path / "without")
    assert (
        len(rows(tmp_path / "with")),
        len([row for row in rows(tmp_path / "without") if row["kind"] == "charge"]),
    ) == (3, 0)


def test_a_spreadsheet_finds_no_formula(books: Organization, tmp_path: Path) -> None:
    export(tmp_path)
    correction = next(row for row in rows(tmp_path) if row["kind"] == "correction")
    assert (correction["reason"], correction["recorded_by"]) == ("'=HYPERLINK(1)", "'+alice")
    assert correction["amount_usd"] == "-0.000001"
    assert next(row for row in rows(tmp_path) if row["reference"])["reference"] == "'@pay"


@pytest.mark.parametrize("form", ["csv", "ndjson"])
def test_an_export_as_it_was_written_is_right(
    books: Organization, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    export(tmp_path, "--format", form)
    call_command("verifyexport", str(tmp_path))
    assert "6 entries" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["usage.csv", "manifest.json", "manifest.json.sig"])
def test_each_change_and_each_missing_row_is_noticed(books: Organization, tmp_path: Path, name: str) -> None:
    export(tmp_path)
    path = tmp_path / name
    path.write_bytes(path.read_bytes().replace(b"0", b"1") + b"\n")
    with pytest.raises(CommandError, match="signed"):
        call_command("verifyexport", str(tmp_path))
    path.unlink()
    with pytest.raises(CommandError, match="can't read"):
        call_command("verifyexport", str(tmp_path))


@pytest.mark.parametrize("manifest", ["[]", "{}", '{"format": "chatapi usage export 2"}'])
def test_an_export_of_another_version_is_an_error(books: Organization, tmp_path: Path, manifest: str) -> None:
    export(tmp_path)
    (tmp_path / "manifest.json").write_text(manifest)
    (tmp_path / "manifest.json.sig").write_bytes(signature.sign(manifest.encode()))
    with pytest.raises(CommandError, match="another version"):
        call_command("verifyexport", str(tmp_path))


def test_another_installations_export_needs_its_public_key(
    books: Organization, tmp_path: Path, settings: Any
) -> None:
    export(tmp_path)
    settings.SECRET_KEY = "another installation's"
    with pytest.raises(InvalidExport, match="not signed with this key"):
        exporting.check(tmp_path)
    call_command("verifyexport", str(tmp_path), "--public-key", str(tmp_path / "public-key.pem"))
    with pytest.raises(InvalidExport):
        exporting.check(tmp_path, b"no key")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_a_third_party_needs_only_openssl(books: Organization, tmp_path: Path) -> None:
    export(tmp_path)
    files = "-inkey public-key.pem -rawin -in manifest.json -sigfile manifest.json.sig"
    command = f"openssl pkeyutl -verify -pubin {files}"
    assert subprocess.run(command.split(), cwd=tmp_path, capture_output=True, check=False).returncode == 0
    (tmp_path / "manifest.json").write_text("{}")
    assert subprocess.run(command.split(), cwd=tmp_path, capture_output=True, check=False).returncode == 1


def test_an_export_is_not_written_over_another(books: Organization, tmp_path: Path) -> None:
    export(tmp_path)
    with pytest.raises(CommandError, match="holds an export already"):
        export(tmp_path)


def test_a_folder_that_can_t_be_made_is_named(books: Organization, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, reason in [("file/november", "Not a directory"), ("file", "File exists")]:
        with pytest.raises(CommandError, match=rf"/{folder}: can't be written: {reason}$"):
            export(tmp_path / folder)


NO_KEYS = {
    "empty": b"",
    "not PEM": b"no key",
    # A curve that nobody has: OID 1.3.132.0.99.
    "unknown curve": b"-----BEGIN PUBLIC KEY-----\n"
    b"MBgwEAYHKoZIzj0CAQYFK4EEAGMDBAAEAQI=\n-----END PUBLIC KEY-----\n",
    "RSA": b"-----BEGIN PUBLIC KEY-----\nMFwwDQYJKoZIhvcNAQEBBQADSwAwSAJBALqbHeRLCyOdykC5SDLqI49ArYGYG1mq\n"
    b"aH9/GnWjGavZM02fos4lc2w6tCchcUBNtJvGqKwhC5JEnx3RYoSX2ucCAwEAAQ==\n-----END PUBLIC KEY-----\n",
}


@pytest.mark.parametrize("pem", NO_KEYS.values(), ids=NO_KEYS)
def test_what_is_no_public_key_has_signed_nothing(books: Organization, tmp_path: Path, pem: bytes) -> None:
    export(tmp_path)
    (tmp_path / "theirs.pem").write_bytes(pem)
    with pytest.raises(CommandError, match="the public key is not an Ed25519 key in PEM"):
        call_command("verifyexport", str(tmp_path), "--public-key", str(tmp_path / "theirs.pem"))


@pytest.mark.parametrize("period", [("2026-12-01", "2026-11-01"), ("2026-11-01", "2026-11-01")])
def test_a_period_that_ends_before_it_begins_is_refused(
    books: Organization, tmp_path: Path, period: tuple[str, str]
) -> None:
    with pytest.raises(CommandError, match="--from must be before --to"):
        call_command("exportusage", "--from", period[0], "--to", period[1], "--output", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_time_after_all_times_is_refused(books: Organization, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="argument --to: '9999-12-31T23:59:59-12:00' is not a date"):
        call_command(
            "exportusage",
            "--from",
            "2026-11-01",
            "--to",
            "9999-12-31T23:59:59-12:00",
            "--output",
            str(tmp_path),
        )


def test_an_export_of_an_unfinished_period_says_so(
    books: Organization, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, until, is_over in (
        ("all", "2100-01-01", False),
        ("last", "9999-12-31T23:59:59Z", False),
        ("some", "2020-01-01", True),
    ):
        call_command("exportusage", "--from", "2000-01-01", "--to", until, "--output", str(tmp_path / name))
        call_command("verifyexport", str(tmp_path / name))
        manifest = json.loads((tmp_path / name / "manifest.json").read_text())
        assert manifest["is_over"] is is_over
        notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Note: the period")]
        assert [note.endswith(f"has the entries until {manifest['exported_at']}.") for note in notes] == (
            [] if is_over else [True, True]
        )


def test_a_period_that_has_just_ended_may_still_get_entries(books: Organization, tmp_path: Path) -> None:
    now = database_now()
    for ago_s, is_over in ((-1, False), (1, False), (3_600, True)):
        wish = ExportSpec(NOW - timedelta(days=9_000), now - timedelta(seconds=ago_s), None, "csv")
        assert exporting.write(wish, tmp_path / str(ago_s))["is_over"] is is_over


def test_nothing_is_an_export_too(db: None, tmp_path: Path) -> None:
    assert export(tmp_path)["entries"] == {}
    call_command("verifyexport", str(tmp_path))
