"""Correcting a charge, granting and refunding credit: a preview that books nothing, then one booking, for
people with the permission.
"""

import re
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts.audit.models import AuditEntry
from accounts.models import Organization
from tests.admin_pages import client_of, shown
from tests.cast import Person, run
from usage.books import credit
from usage.books.credit import Note
from usage.models import Credit, Generation, LedgerEntry
from usage.verification import verify


@pytest.fixture
def charged(alice: Person) -> Generation:
    """Return a request that cost $0.00024."""
    return run(alice)


def address(row: Generation) -> str:
    return f"/admin/ledger/{row.ledger_entries.get(kind='charge').pk}/correct"


def token(response: Any) -> str:
    (found,) = re.findall(r'name="token" value="([^"]+)"', response.content.decode())
    return str(found)


def filled(client: Client, url: str, **values: str) -> dict[str, str]:
    """Return the form as a person sends it."""
    return {
        "direction": "back",
        "amount": "0.00004",
        "reason": "answer was cut off",
        "token": token(client.get(url)),
        **values,
    }


# ---- corrections


def test_a_preview_says_what_would_be_and_books_nothing(root: Client, charged: Generation) -> None:
    page = shown(root.post(address(charged), filled(root, address(charged), step="preview")))
    assert "Charge of this request $0.00024 $0.0002 " in page
    assert "Spent by the organization $0.00024 $0.0002 " in page
    assert "Balance" not in page, "it has no credit"
    assert LedgerEntry.objects.count() == 1
    assert verify().differences == []


def test_a_correction_is_booked_with_its_reason_and_its_person(root: Client, charged: Generation) -> None:
    done = root.post(address(charged), filled(root, address(charged), step="book"), follow=True)
    entry = LedgerEntry.objects.get(kind="correction")
    assert (entry.amount_nanodollars, entry.reason, entry.recorded_by) == (
        -40_000,
        "answer was cut off",
        "root",
    )
    assert done.redirect_chain == [(f"/admin/requests/{charged}", 302)]
    page = shown(done)
    assert "$0.0002 charged $0.00024, corrected since" in page
    assert "answer was cut off -$0.00004 Net $0.0002" in page
    assert verify().differences == []


def test_pressing_twice_books_once(root: Client, charged: Generation) -> None:
    form = filled(root, address(charged), step="book")
    for _ in range(2):
        done = root.post(address(charged), form, follow=True)
    assert LedgerEntry.objects.filter(kind="correction").count() == 1
    assert "booked before" in done.content.decode()
    assert AuditEntry.objects.filter(action="corrected").count() == 1


def test_a_second_preview_after_going_back_is_another_booking(root: Client, charged: Generation) -> None:
    form = filled(root, address(charged), step="book")
    root.post(address(charged), form)
    again = root.post(address(charged), form | {"step": "preview", "amount": "0.00001"})
    assert token(again) != form["token"]
    root.post(address(charged), form | {"amount": "0.00001", "token": token(again)})
    assert list(
        LedgerEntry.objects.filter(kind="correction").values_list("amount_nanodollars", flat=True)
    ) == [-40_000, -10_000]


def test_a_used_form_with_another_amount_is_refused(root: Client, charged: Generation) -> None:
    form = filled(root, address(charged), step="book")
    root.post(address(charged), form)
    assert "belongs to something else" in shown(root.post(address(charged), form | {"amount": "0.00001"}))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"amount": "0.00025"}, "Only $0.00024 of the charge is left to take back."),
        ({"amount": "0"}, "an amount greater than 0"),
        ({"amount": "-1"}, "between 0 and"),
        ({"amount": "1,5"}, "1,5"),
        ({"amount": "0.0000000001"}, "9 decimal places"),
        ({"amount": "9" * 31}, "between 0 and"),
        ({"amount": ""}, "required"),
        ({"reason": "  "}, "required"),
        ({"reason": "x" * 501}, "at most 500"),
        ({"direction": "up"}, "valid choice"),
        ({"token": "x"}, ""),
    ],
)
@pytest.mark.parametrize("step", ["preview", "book"])
def test_an_impossible_booking_is_refused_with_its_reason(
    root: Client, charged: Generation, changed: dict[str, str], message: str, step: str
) -> None:
    response = root.post(address(charged), filled(root, address(charged), step=step) | changed)
    assert message in shown(response).replace("&#x27;", "'")
    assert LedgerEntry.objects.count() == 1


def test_more_can_be_charged_and_the_form_changed_before(root: Client, charged: Generation) -> None:
    form = filled(root, address(charged), step="edit", direction="more", amount="0.5", reason="<b>tools</b>")
    page = root.post(address(charged), form)
    assert page.status_code == 200
    assert 'value="0.5"' in page.content.decode()
    assert "&lt;b&gt;tools&lt;/b&gt;" in page.content.decode()
    root.post(address(charged), form | {"step": "book"})
    assert LedgerEntry.objects.get(kind="correction").amount_nanodollars == 500_000_000


def test_only_what_settling_wrote_is_corrected(root: Client, alice: Person, charged: Generation) -> None:
    entry, _ = credit.grant(alice.project.organization, 5, Note("first", "root"))
    assert root.get(f"/admin/ledger/{entry.pk}/correct").status_code == 404
    for nothing in ("999999999", "9" * 40):
        assert root.get(f"/admin/ledger/{nothing}/correct").status_code == 404
    assert root.get(f"/admin/usage/ledgerentry/{entry.pk}/change/").status_code == 200


def test_the_ways_to_the_form(root: Client, charged: Generation) -> None:
    assert f'href="{address(charged)}"' in root.get(f"/admin/requests/{charged}").content.decode()
    entry = charged.ledger_entries.get()
    page = root.get(f"/admin/usage/ledgerentry/{entry.pk}/change/").content.decode()
    assert f"/admin/usage/ledgerentry/{entry.pk}/correct" in page
    assert root.get(f"/admin/usage/ledgerentry/{entry.pk}/correct/").headers["location"] == address(charged)


@pytest.mark.parametrize("path", ["change/", "correct/"])
def test_an_entry_that_is_none_is_not_found(root: Client, alice: Person, path: str) -> None:
    for client in (root, client_of(alice.user)):
        assert client.get(f"/admin/usage/ledgerentry/abc/{path}").status_code < 500


# ---- credit


def test_credit_is_granted_and_refunded(root: Client, alice: Person) -> None:
    organization = alice.project.organization
    form = {
        "organization": str(organization.pk),
        "amount": "$10.00",
        "reason": "invoice 17",
        "reference": "pay_1",
        "token": "",
    }
    url = f"/admin/credit/grant?organization={organization.pk}"
    form["token"] = token(root.get(url))
    assert 'name="organization" value="Acme"' in root.get(url).content.decode()
    preview = shown(root.post("/admin/credit/grant", form))
    assert (
        "Granted (net) $0.00 $10.00 Balance $0.00 $10.00 Available for new requests $0.00 $10.00" in preview
    )
    assert not Credit.objects.exists()
    assert root.post("/admin/credit/grant", form | {"step": "book"}).status_code == 302
    form |= {
        "token": token(root.get("/admin/credit/refund")),
        "amount": "2.5",
        "reference": "",
        "step": "book",
    }
    assert (
        root.post("/admin/credit/refund", form).headers["location"]
        == f"/admin/usage/credit/{organization.pk}/change/"
    )
    assert credit.balance(organization).nanodollars == 7_500_000_000
    assert list(LedgerEntry.objects.values_list("kind", "recorded_by").order_by("id")) == [
        ("grant", "root"),
        ("refund", "root"),
    ]
    assert verify().differences == []


@pytest.mark.parametrize(
    ("name", "typed"), [("Acme", " Acme "), ("Acme", "{id}"), ("17", "17"), ("{next_id}", "{next_id}")]
)
def test_the_organization_is_typed_by_its_name_or_id(
    root: Client, alice: Person, name: str, typed: str
) -> None:
    organization, other = alice.project.organization, Organization.objects.create(name="Initech")
    ids = {"id": organization.pk, "next_id": other.pk}
    organization.name = name.format(**ids)
    organization.save()
    form = {
        "organization": typed.format(**ids),
        "amount": "1",
        "reason": "paid",
        "token": token(root.get("/admin/credit/grant")),
    }
    assert f"Organization {organization.name} " in shown(root.post("/admin/credit/grant", form))
    root.post("/admin/credit/grant", form | {"step": "book"})
    assert credit.balance(organization).nanodollars == 10**9, "a name counts before an id"


def test_the_form_reads_no_list_of_organizations(root: Client) -> None:
    Organization.objects.bulk_create(Organization(name=f"Number {number}") for number in range(100))
    page = root.get("/admin/credit/grant").content.decode()
    assert "Number 1" not in page
    (search,) = re.findall(r'data-suggest="([^"]+)"', page)
    found = root.get(search.replace("&amp;", "&") + "&term=number 99").json()
    assert [row["text"] for row in found["results"]] == ["Number 99"]


def test_a_payment_is_granted_once_through_any_form(root: Client, alice: Person) -> None:
    form = {
        "organization": str(alice.project.organization_id),
        "amount": "1",
        "reason": "paid",
        "reference": "pay_1",
        "step": "book",
    }
    for _ in range(2):
        root.post("/admin/credit/grant", form | {"token": token(root.get("/admin/credit/grant"))})
    assert LedgerEntry.objects.count() == 1


@pytest.mark.parametrize(
    ("path", "changed", "message"),
    [
        ("refund", {}, "Only $0 of the credit is unused."),
        ("grant", {"organization": "999999"}, "No organization has this name or id."),
        ("grant", {"organization": "9" * 40}, "No organization has this name or id."),
        ("grant", {"organization": "Acm"}, "No organization has this name or id."),
        ("grant", {"organization": "a\x00b"}, "No organization has this name or id."),
        ("grant", {"reason": "a\x00b"}, "Null characters"),
        ("grant", {"organization": ""}, "required"),
        ("grant", {"reference": "form-1"}, "begin with form-"),
        ("grant", {"reference": "x" * 129}, "at most 128"),
    ],
)
def test_an_impossible_move_of_credit_is_refused_with_its_reason(
    root: Client, alice: Person, path: str, changed: dict[str, str], message: str
) -> None:
    form = {
        "organization": str(alice.project.organization_id),
        "amount": "1",
        "reason": "x",
        "reference": "",
        "step": "book",
    }
    form |= {"token": token(root.get(f"/admin/credit/{path}"))} | changed
    assert message in shown(root.post(f"/admin/credit/{path}", form))
    assert not LedgerEntry.objects.exists()


def test_the_credit_page_leads_to_both_forms(root: Client, alice: Person) -> None:
    organization = alice.project.organization
    credit.grant(organization, 5, Note("first", "root"))
    for act in ("grant", "refund"):
        found = root.get(f"/admin/usage/credit/{organization.pk}/{act}/")
        assert found.headers["location"] == f"/admin/credit/{act}?organization={organization.pk}"
    assert root.get("/admin/usage/credit/grant-any/").headers["location"] == "/admin/credit/grant"


# ---- permissions


def test_a_read_only_operator_books_nothing(charged: Generation) -> None:
    clerk = User.objects.create_user("clerk", is_staff=True)
    clerk.user_permissions.add(
        *Permission.objects.filter(codename__in=["view_generation", "view_ledgerentry", "view_credit"])
    )
    client = Client()
    client.force_login(clerk)
    for path in (address(charged), "/admin/credit/grant", "/admin/credit/refund"):
        assert client.get(path).status_code == 403
        assert client.post(path, {"step": "book"}).status_code == 403
    assert "Correct" not in shown(client.get(f"/admin/requests/{charged}"))


def test_booking_needs_the_forms_own_token_against_forgery(charged: Generation) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("root"))
    assert client.post(address(charged), filled(client, address(charged), step="book")).status_code == 403


# ---- the audit log


def test_what_is_booked_is_in_the_audit_log_before_and_after(
    root: Client, charged: Generation, alice: Person
) -> None:
    root.post(address(charged), filled(root, address(charged), step="book"))
    entry = AuditEntry.objects.get(action="corrected")
    assert (entry.object_type, entry.object_id, entry.reason) == (
        "usage.generation",
        str(charged.pk),
        "answer was cut off",
    )
    assert entry.changes["charge of this request_nanodollars"] == [240_000, 200_000]
    assert entry.organization_id == alice.project.organization_id
    form = {
        "organization": str(alice.project.organization_id),
        "amount": "1",
        "reason": "paid",
        "step": "book",
    }
    root.post("/admin/credit/grant", form | {"token": token(root.get("/admin/credit/grant"))})
    granted = AuditEntry.objects.get(action="granted credit")
    assert granted.changes["balance_nanodollars"] == [-200_000, 999_800_000]
    assert not AuditEntry.objects.filter(action="changed").exists(), "nor is it recorded twice"


# ---- what the client sees


def test_the_clients_receipt_has_the_correction_and_the_net(
    root: Client, charged: Generation, alice: Person
) -> None:
    root.post(address(charged), filled(root, address(charged), step="book"))
    receipt = alice.get(f"/v1/generations/{charged}").json()
    assert (receipt["amount_nanodollars"], receipt["net_nanodollars"], receipt["net_usd"]) == (
        240_000,
        200_000,
        "0.0002",
    )
    (correction,) = receipt["corrections"]
    assert correction | {"created_at": ""} == {
        "created_at": "",
        "amount_usd": "-0.00004",
        "amount_nanodollars": -40_000,
    }
    assert "cut off" not in str(receipt), "the reason is the operator's"
