"""The admin's pages of payments: what an operator sees when somebody has paid and sees nothing."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from accounts.audit.models import AuditEntry
from accounts.models import Member, Organization, Role
from tests.admin_pages import client_of, page, text
from tests.fake_stripe import Stripe
from tests.usage.test_payment import begin, credited, look, look_at_all
from usage.models import LedgerEntry
from usage.payment.models import Payment, State

LIST = "/admin/payment/payment/"


@pytest.fixture
def payer(db: None) -> Organization:
    return Organization.objects.create(name="Payer")


def listed(client: Client, query: str = "") -> list[Payment]:
    answer: Any = client.get(f"{LIST}?{query}")
    assert answer.status_code == 200
    return list(answer.context["cl"].result_list)


def paid(stripe: Stripe, payer: Organization, cents: int = 1_000) -> Payment:
    """Return a payment that is paid and booked."""
    payment = begin(payer, cents)
    stripe.pay(payment.session_id)
    look_at_all()
    payment.refresh_from_db()
    return payment


def test_a_payment_that_is_open_here_and_paid_at_stripe_is_booked_on_request(
    stripe: Stripe, payer: Organization, root: Client
) -> None:
    payment = begin(payer)
    stripe.pay(payment.session_id)
    shown = root.get(page(payment)).content.decode()
    assert "Stripe has not said yet that it was paid" in shown
    assert f"https://dashboard.stripe.com/test/search?query={payment.session_id}" in shown
    look()
    assert credited(payer) == 0, "it is not due yet"
    answer = root.post(reverse("admin:payment_payment_ask", args=[payment.pk]), follow=True)
    assert "Stripe is asked within seconds" in text(answer)
    look()
    assert credited(payer) == 10**10
    payment.refresh_from_db()
    again = root.get(page(payment)).content.decode()
    assert "Paid, and the ledger agrees with Stripe." in again
    assert f"https://dashboard.stripe.com/test/payments/{payment.payment_intent}" in again
    entry = LedgerEntry.objects.get()
    assert page(entry) in again
    assert AuditEntry.objects.filter(action="asked Stripe", actor="root").count() == 1


def test_a_refund_is_shown_with_both_entries(stripe: Stripe, payer: Organization, root: Client) -> None:
    payment = paid(stripe, payer)
    stripe.refund(payment.payment_intent, 400)
    look_at_all()
    shown = text(root.get(page(payment)))
    assert "Paid, and the ledger agrees with Stripe." in shown
    assert "State Paid" in shown
    assert f"{payment.payment_intent}/2" in shown
    assert "$4.00" in text(root.get(LIST))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"session_id": ""}, "Stripe's page was never made, so nobody can have paid."),
        ({"state": State.EXPIRED}, "Stripe's page ended without a payment. Nothing was charged."),
        ({"state": State.REFUSED}, "Refund it at Stripe."),
        ({"state": State.PAID, "booked_cents": 600}, "Paid, but $4.00 of it is not booked yet."),
        (
            {"state": State.PAID, "booked_cents": 1_000, "returned_cents": 400},
            "Paid, but $4.00 was given back and is still in the credit.",
        ),
    ],
)
def test_a_payment_says_what_happened(
    stripe: Stripe, payer: Organization, root: Client, changes: dict[str, Any], expected: str
) -> None:
    payment = begin(payer)
    Payment.objects.filter(pk=payment.pk).update(**changes)
    assert expected in text(root.get(page(payment))).replace("&#x27;", "'")


def test_payments_are_found_by_state_organization_payer_and_ids(
    stripe: Stripe, payer: Organization, root: Client
) -> None:
    other = paid(stripe, Organization.objects.create(name="Other"), 2_000)
    mine = begin(payer)
    assert listed(root) == [mine, other]
    assert listed(root, "state__exact=paid") == [other]
    assert listed(root, f"organization__id__exact={payer.pk}") == [mine]
    assert listed(root, "organization__name__exact=Payer") == [mine]
    for term in (str(mine.pk), mine.session_id, "Payer"):
        assert listed(root, f"q={term}") == [mine], term
    assert listed(root, f"q={other.payment_intent}") == [other]
    organization_page = root.get(reverse("admin:organization", args=[payer.pk])).content.decode()
    assert f"{LIST}?organization__id__exact={payer.pk}" in organization_page


def test_nobody_changes_a_payment(stripe: Stripe, payer: Organization, root: Client) -> None:
    payment = begin(payer)
    for path in (page(payment), page(payment, "delete"), f"{LIST}add/"):
        assert root.post(path, {"amount_cents": 1}).status_code == 403, path
    assert Payment.objects.get() == payment


def test_an_organizations_people_see_their_payments_without_stripes_dashboard(
    stripe: Stripe, payer: Organization
) -> None:
    owner = User.objects.create(username="owner")
    Member.objects.create(organization=payer, user=owner, role=Role.OWNER)
    mine, theirs = begin(payer), begin(Organization.objects.create(name="Other"))
    client = client_of(owner)
    assert listed(client) == [mine]
    shown = client.get(page(mine)).content.decode()
    assert "dashboard.stripe.com" not in shown
    assert mine.session_id not in shown
    assert "Ask Stripe now" not in shown
    assert client.get(page(theirs)).status_code == 404
    assert client.post(reverse("admin:payment_payment_ask", args=[mine.pk])).status_code == 403


def test_without_stripe_there_is_no_link_and_nothing_to_ask(payer: Organization, root: Client) -> None:
    payment = Payment.objects.create(organization=payer, amount_cents=500, session_id="cs_live_1")
    shown = root.get(page(payment)).content.decode()
    assert "https://dashboard.stripe.com/search?query=cs_live_1" in shown
    assert "Ask Stripe now" not in shown
    assert f'href="{LIST}"' not in root.get("/admin/").content.decode()
    asked = root.post(reverse("admin:payment_payment_ask", args=[payment.pk]), follow=True)
    assert "Stripe can" in text(asked)
    assert Payment.objects.get().look_at is None
