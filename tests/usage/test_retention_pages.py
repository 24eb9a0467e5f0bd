"""What pages and routes say of requests that were dropped."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts import keys
from accounts.models import APIKey, Organization
from tests.usage.books_to_drop import BEFORE, drop, old, write
from usage.books import ledger
from usage.models import Kind, LedgerEntry
from usage.rollups import retention_horizon
from usage.rollups.closed_days import DAY, midnight


@pytest.fixture
def books(ask: Callable[..., ledger.Admission]) -> None:
    """Write the old books, some of which are to be dropped."""
    write(ask)


def test_pages_name_the_dropped_period(books: None, tmp_path: Path, root: Client) -> None:
    charge = LedgerEntry.objects.filter(
        generation__in=old(), kind=Kind.CHARGE, amount_nanodollars__gt=0
    ).order_by("created_at")[0]
    drop(tmp_path / "export")
    notice = f"finished before {BEFORE} (UTC) were exported and dropped"
    assert (
        notice in root.get(f"/admin/requests/?start={BEFORE - 3 * DAY}&end={BEFORE - DAY}").content.decode()
    )
    assert notice not in root.get(f"/admin/requests/?start={BEFORE}").content.decode()
    found = root.get("/admin/requests/", {"id": str(charge.request_id)}, follow=True)
    assert (found.status_code, found.redirect_chain[0][0]) == (200, f"/admin/requests/{charge.request_id}")
    assert notice in found.content.decode()
    assert f"/admin/usage/ledgerentry/{charge.pk}/change/" in found.content.decode()
    for path in ("", f"{charge.pk}/change/"):
        assert (
            str(charge.request_id)
            in root.get(
                f"/admin/usage/ledgerentry/{path}", {"kind__exact": "charge"} if not path else {}
            ).content.decode()
        )


def test_the_form_says_why_a_dropped_charge_is_not_corrected(
    books: None, tmp_path: Path, root: Client
) -> None:
    charge = LedgerEntry.objects.filter(
        generation__in=old(), kind=Kind.CHARGE, amount_nanodollars__gt=0
    ).order_by("created_at")[0]
    drop(tmp_path / "export")
    url = f"/admin/ledger/{charge.pk}/correct"
    kept = LedgerEntry.objects.filter(kind=Kind.CHARGE, generation__settled_at__gte=midnight(BEFORE))[0]
    pages = {
        entry: root.get(f"/admin/usage/ledgerentry/{entry.pk}/change/").content.decode()
        for entry in (kept, charge)
    }
    assert ["/correct" in page for page in pages.values()] == [True, False]
    (token,) = re.findall(r'name="token" value="([^"]+)"', root.get(url).content.decode())
    form = {"direction": "back", "amount": "0.00000001", "reason": "late", "token": token}
    for step in ("preview", "book"):
        assert "Grant credit instead" in root.post(url, form | {"step": step}).content.decode()


def test_clients_get_no_receipt_of_dropped_requests(books: None, tmp_path: Path) -> None:
    charge = LedgerEntry.objects.filter(generation__in=old()).order_by("created_at")[0]
    key: APIKey = APIKey.objects.get(pk=charge.api_key_id or 0)
    _, secret = keys.create_key(key.project, name="reader")
    client = Client(headers={"authorization": f"Bearer {secret}"})
    assert client.get(f"/v1/generations/{charge.request_id}").status_code == 200
    drop(tmp_path / "export")
    assert client.get(f"/v1/generations/{charge.request_id}").status_code == 404


def test_a_stranger_sees_nothing_of_dropped_requests(books: None, tmp_path: Path, charlie: Any) -> None:
    charge = LedgerEntry.objects.filter(generation__in=old()).order_by("created_at")[0]
    drop(tmp_path / "export")
    client = Client()
    client.force_login(charlie.user)
    assert client.get(f"/admin/requests/{charge.request_id}").status_code == 404
    assert Organization.objects.filter(pk=charge.organization_id).exists()


def test_kept_generations_begin_at_the_horizon(books: None, tmp_path: Path) -> None:
    assert retention_horizon.horizon() is None
    drop(tmp_path / "export")
    assert retention_horizon.horizon() == midnight(BEFORE)
