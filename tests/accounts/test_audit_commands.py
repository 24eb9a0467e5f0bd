"""Acts of commands are in the audit log too: under the command's name, not under a signed-in person's."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.test import Client

from accounts.audit import recorder
from accounts.audit.models import AuditEntry
from tests.admin_pages import client_of
from tests.cast import PRICE, Person, run
from usage.books import prices
from usage.models import LedgerEntry
from usage.pricing import Price

PERIOD = ("--from", "2020-01-01", "--to", "2100-01-01")
BOOKING = ("--organization", "Acme", "--reason", "invoice 17", "--usd", "10")


def acts(actor: str) -> list[tuple[str, str]]:
    """Return the acts of this person and their objects."""
    entries = AuditEntry.objects.filter(actor=actor, actor_id=None, address=None).order_by("id")
    return list(entries.values_list("action", "object_name"))


def newest() -> AuditEntry:
    return AuditEntry.objects.latest("id")


def test_a_key_is_recorded_with_what_was_made_for_it(db: None) -> None:
    call_command("createkey", "--organization", "Acme", "--name", "backend")
    created = acts("manage.py createkey")
    assert [(action, name.split(" (")[0]) for action, name in created] == [
        ("created", "Acme"),
        ("created", "Acme / default"),
        ("created", "backend"),
    ]
    assert newest().changes["digest"] == [None, "(hidden)"]


def test_a_catalog_is_recorded_row_by_row_and_only_what_changes(db: None, tmp_path: Path) -> None:
    file = tmp_path / "catalog.toml"
    model = '[[models]]\nid = "small"\ncontext_window = 8192\nmax_output_tokens = 1024\n'
    model += 'price = {{ input_per_mtok = "{}", output_per_mtok = "0.60" }}\n'
    model += 'deployments = [{{ name = "one", engine = "sandbox" }}]\n'
    file.write_text(model.format("0.15"))
    call_command("loadcatalog", str(file))
    assert {entry.object_type for entry in AuditEntry.objects.filter(actor="manage.py loadcatalog")} == {
        "chatapi.servedmodel",
        "chatapi.deployment",
        "usage.price",
    }
    count = AuditEntry.objects.count()
    call_command("loadcatalog", str(file))
    assert AuditEntry.objects.count() == count
    file.write_text(model.format("0.20"))
    call_command("loadcatalog", str(file))
    assert AuditEntry.objects.count() == count + 1
    assert newest().changes["input_per_mtok_nanodollars"] == [None, 200_000_000]


def test_credit_is_recorded_with_its_reason_and_its_organization(alice: Person) -> None:
    call_command("grantcredit", *BOOKING, "--by", "alice", "--require")
    granted = AuditEntry.objects.get(action="granted credit")
    assert (granted.actor, granted.reason, granted.object_name) == (
        "alice (manage.py grantcredit)",
        "invoice 17",
        "Acme",
    )
    assert granted.changes == {
        "balance_nanodollars": [0, 10_000_000_000],
        "ledger_entry": [None, LedgerEntry.objects.get().pk],
    }
    assert granted.organization_id == alice.project.organization_id
    assert newest().changes == {"is_required": [False, True]}
    call_command("refundcredit", *BOOKING)
    assert acts("manage.py refundcredit") == [("refunded credit", "Acme")]


def test_what_is_not_booked_is_not_recorded(alice: Person) -> None:
    with pytest.raises(CommandError, match="unused"):
        call_command("refundcredit", *BOOKING)
    assert not AuditEntry.objects.exists()
    for _ in range(2):
        call_command("grantcredit", *BOOKING, "--reference", "pay_1")
    assert AuditEntry.objects.filter(action="granted credit").count() == 1


def test_a_long_name_is_cut_and_the_command_is_not(alice: Person) -> None:
    call_command("grantcredit", *BOOKING, "--by", "x" * 150)
    actor = newest().actor
    assert (len(actor), actor[-24:]) == (150, "x (manage.py grantcredit)"[-24:])


def test_re_rating_is_recorded_once_a_transaction_and_a_dry_run_is_not(alice: Person) -> None:
    prices.change("small", PRICE, datetime(2020, 1, 1, tzinfo=UTC))
    run(alice)
    prices.change("small", Price(0, 0, 600_000_000), datetime(2021, 1, 1, tzinfo=UTC))
    call_command("rerate", "--model", "small", *PERIOD, "--by", "alice", "--dry-run")
    assert not AuditEntry.objects.exists()
    call_command("rerate", "--model", "small", *PERIOD, "--by", "alice")
    call_command("rerate", "--model", "small", *PERIOD)
    assert [entry.action for entry in AuditEntry.objects.all()] == ["re-rated charges"]
    entry = newest()
    assert (entry.actor, entry.object_type) == ("alice (manage.py rerate)", "usage.price")
    assert (entry.changes["charges"], entry.changes["difference_nanodollars"]) == (
        [None, 1],
        [None, -120_000],
    )


@pytest.mark.parametrize("organization", ["Acme", None])
def test_an_export_is_recorded_with_what_is_in_it(
    alice: Person, tmp_path: Path, organization: str | None
) -> None:
    of = [] if organization is None else ["--organization", organization]
    call_command("exportusage", *PERIOD, *of, "--output", str(tmp_path / "all"))
    assert acts("manage.py exportusage") == [("exported usage", organization or "all organizations")]
    assert newest().changes["folder"] == [None, str(tmp_path / "all")]
    assert newest().organization_id == (alice.project.organization_id if organization else None)


def test_an_export_from_a_read_only_database_succeeds_with_a_warning(
    alice: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OperationalError("attempt to write a readonly database")

    monkeypatch.setattr(recorder, "record", refuse)
    call_command("exportusage", *PERIOD, "--output", str(tmp_path / "all"))
    out, err = capsys.readouterr()
    assert "Wrote" in out
    assert err == "The export is not in the audit log: attempt to write a readonly database\n"


def test_a_command_that_fails_after_its_act_has_recorded_nothing(
    alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("disk I/O error")

    monkeypatch.setattr("usage.books.credit.require", fail)
    with pytest.raises(OperationalError):
        call_command("grantcredit", *BOOKING, "--require")
    assert not AuditEntry.objects.exists()
    assert not LedgerEntry.objects.exists()


def test_the_audit_page_shows_what_commands_did(
    alice: Person, tmp_path: Path, django_user_model: Callable[..., object]
) -> None:
    root: Client = client_of(django_user_model.objects.create_superuser("root"))  # type: ignore[attr-defined]
    call_command("grantcredit", *BOOKING)
    call_command("exportusage", *PERIOD, "--output", str(tmp_path / "all"))
    page = root.get("/admin/audit/").content.decode()
    for shown in ("manage.py grantcredit", "granted credit", "manage.py exportusage", "all organizations"):
        assert shown in page
