"""The console's page of prepaid credit: paying at Stripe, coming back, and the payments before."""

import re
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts.audit.models import AuditEntry
from accounts.models import Member, Organization, Role
from tests.admin_pages import client_of, text
from tests.cast import Person, admit, run
from tests.fake_stripe import Stripe
from usage.books import credit, outbox
from usage.books.credit import Note
from usage.database.clock import database_now
from usage.payment import metered_usage, payments, stripe_api
from usage.payment.models import Payment, State


@pytest.fixture
def owner(alice: Person) -> Client:
    return client_of(alice.user)


@pytest.fixture
def path(acme: Organization) -> str:
    return f"/console/{acme.pk}/credit"


def book() -> None:
    """Do what the reaper does, now."""
    Payment.objects.exclude(session_id="").update(look_at=database_now())
    for claimed in payments.claim():
        payments.book(claimed, stripe_api.payment_state(claimed.session_id))


def pay_in(client: Client, path: str, stripe: Stripe, **amount: str) -> str:
    """Pay by the form and at Stripe; return the path to which Stripe sends the person back."""
    answer: Any = client.post(path, amount)
    assert answer.status_code == 302, text(answer, answer.status_code)
    session_id = answer["location"].rpartition("/")[2]
    stripe.pay(session_id)
    back = urlsplit(stripe.sessions[session_id]["success_url"])
    return f"{back.path}?{back.query}"


def test_start_says_where_to_pay(stripe: Stripe, owner: Client, path: str, acme: Organization) -> None:
    credit.require(acme)
    start = owner.get(f"/console/{acme.pk}/start")
    assert "until you pay some in at Credit" in text(start)
    assert f'<a href="{path}">Credit</a>' in start.content.decode()


def test_enter_in_the_amount_pays_this_amount_and_no_button_s(
    stripe: Stripe, owner: Client, path: str
) -> None:
    """Enter presses the first button of the field's form, with the name and value of that button."""
    forms = re.findall(r"<form.*?</form>", owner.get(path).content.decode(), re.DOTALL)
    [form] = [each for each in forms if 'name="amount"' in each]
    [button, *_] = re.findall(r"<button[^>]*type=\"submit\"[^>]*>", form)
    assert "preset" not in button


def test_a_founder_pays_in_and_is_served(
    stripe: Stripe, owner: Client, path: str, acme: Organization, alice: Person
) -> None:
    credit.require(acme)
    with pytest.raises(AssertionError, match=r"organization/.*/ever"):
        admit(alice)
    pay_in(owner, path, stripe, preset="20")
    book()
    assert "no credit" not in text(owner.get(f"/console/{acme.pk}/start"))
    assert run(alice).amount_nanodollars > 0


def test_a_person_pays_and_sees_the_credit(
    stripe: Stripe, owner: Client, path: str, acme: Organization
) -> None:
    assert "No payments yet." in text(owner.get(path))
    back = pay_in(owner, path, stripe, preset="20")
    shown = text(owner.get(back))
    assert "Your credit is added when Stripe" in shown
    assert "Balance $0.00" in shown
    book()
    response = owner.get(back)
    assert "The payment is booked." in text(response)
    assert "Balance $20.00" in text(response)
    assert re.search(r"\$20\.00 .* paid alice Receipt", text(response))
    assert 'href="https://pay.stripe.com/receipts/' in response.content.decode()
    assert credit.balance(acme).nanodollars == 20 * 10**9


def test_the_payment_is_in_the_audit_log(stripe: Stripe, owner: Client, path: str) -> None:
    pay_in(owner, path, stripe, amount="12.34")
    book()
    begun, booked = AuditEntry.objects.filter(object_type__in=["payment.payment", "usage.credit"]).order_by(
        "pk"
    )
    assert (begun.action, begun.actor, begun.changes["amount_cents"]) == ("created", "alice", [None, 1_234])
    assert (booked.action, booked.actor) == ("granted credit", "Stripe")


@pytest.mark.parametrize("amount", ["5", "$5.00", "5000", "7.05"])
def test_amounts_within_the_bounds_are_taken(stripe: Stripe, owner: Client, path: str, amount: str) -> None:
    assert owner.post(path, {"amount": amount}).status_code == 302
    (session,) = stripe.sessions.values()
    assert session["amount_total"] == round(float(amount.lstrip("$")) * 100)


@pytest.mark.parametrize(
    ("fields", "mistake"),
    [
        ({}, "Pay $5.00 to $5,000.00, in whole cents."),
        ({"amount": "4.99"}, "Pay $5.00 to $5,000.00, in whole cents."),
        ({"amount": "5000.01"}, "Pay $5.00 to $5,000.00, in whole cents."),
        ({"amount": "10.001"}, "Pay $5.00 to $5,000.00, in whole cents."),
        ({"amount": "-10"}, "must be between 0 and"),
        ({"amount": "ten"}, "is not an amount of US dollars"),
        ({"preset": "1"}, "Pay $5.00 to $5,000.00, in whole cents."),
        ({"amount": "9" * 50}, "This is too long for an amount."),
    ],
)
def test_other_amounts_are_refused_with_the_bounds(
    stripe: Stripe, owner: Client, path: str, fields: dict[str, str], mistake: str
) -> None:
    assert mistake in text(owner.post(path, fields), 400)
    assert stripe.calls == []
    assert not Payment.objects.exists()


def test_a_stripe_that_is_away_is_an_error_on_the_page(stripe: Stripe, owner: Client, path: str) -> None:
    stripe.fail("500", times=2)
    assert "Stripe can't take the payment now." in text(owner.post(path, {"preset": "10"}), 503).replace(
        "&#x27;", "'"
    )
    assert "No payments yet." in text(owner.get(path)), "there is nothing to pay"


def test_too_many_open_payments_are_refused(
    stripe: Stripe, owner: Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payments, "MAX_OPEN", 1)
    assert owner.post(path, {"preset": "10"}).status_code == 302
    assert "1 payments are open." in text(owner.post(path, {"preset": "10"}), 409)


def test_an_organization_that_stripe_bills_pays_nothing_in_advance(
    stripe: Stripe, owner: Client, path: str, acme: Organization
) -> None:
    metered_usage.bill(acme, "cus_fake1")
    page = text(owner.get(path))
    assert "Stripe bills the usage of this organization" in page
    assert "Add credit" not in page
    assert "Requests beyond the balance are refused" not in page
    assert "pays nothing in advance" in text(owner.post(path, {"preset": "10"}), 409)


def test_nobody_is_sent_to_pay_where_nothing_can_be_paid(
    stripe: Stripe, owner: Client, path: str, acme: Organization
) -> None:
    metered_usage.bill(acme, "cus_fake1")
    credit.require(acme)
    start = owner.get(f"/console/{acme.pk}/start")
    assert "until the operator of this service grants some" in text(start)
    assert f'at <a href="{path}">Credit</a>' not in start.content.decode()
    assert "Requests beyond the balance are refused all the same" in text(owner.get(path))


def test_refunds_and_open_payments_are_shown(stripe: Stripe, owner: Client, path: str) -> None:
    pay_in(owner, path, stripe, preset="20")
    pay_in(owner, path, stripe, preset="50")
    pay_in(owner, path, stripe, amount="30")
    owner.post(path, {"preset": "100"})
    book()
    partly, wholly, disputed = stripe.intents
    stripe.refund(partly, 500)
    stripe.refund(wholly, 5_000)
    stripe.dispute(disputed, 3_000)
    book()
    shown = text(owner.get(path))
    for words in (
        r"\$100\.00 open alice none",
        r"\$30\.00 refunded or disputed alice",
        r"\$50\.00 refunded or disputed alice",
        r"\$20\.00 partly refunded or disputed alice",
    ):
        assert re.search(words, shown), words
    assert "Balance $15.00" in shown


def test_a_refund_that_is_not_booked_yet_is_shown_as_whole(
    stripe: Stripe, owner: Client, path: str, acme: Organization
) -> None:
    pay_in(owner, path, stripe, preset="20")
    book()
    credit.refund(acme, 5 * 10**9, Note("by hand", "alice"))
    [intent] = stripe.intents
    stripe.refund(intent, 2_000)
    book()
    assert Payment.objects.get().booked_cents == 2_000
    assert re.search(r"\$20\.00 refunded or disputed alice", text(owner.get(path)))


def test_a_bank_debit_is_not_called_paid_before_it_is(stripe: Stripe, owner: Client, path: str) -> None:
    owner.post(path, {"preset": "10"})
    payment = Payment.objects.get()
    stripe.pay_by_debit(payment.session_id)
    book()
    shown = text(owner.get(f"{path}?payment={payment.pk}"))
    assert "within seconds by card, within days by bank debit" in shown
    assert "Paid" not in shown


def test_a_payment_that_is_not_what_was_asked_for_is_to_be_given_back(
    stripe: Stripe, owner: Client, path: str
) -> None:
    back = pay_in(owner, path, stripe, preset="10")
    stripe.sessions[Payment.objects.get().session_id]["amount_total"] = 5
    book()
    shown = text(owner.get(back))
    assert "Ask the operator of this service to give it back" in shown
    assert "nothing was charged" not in shown


def test_a_cancelled_payment_is_shown_once_it_has_expired(stripe: Stripe, owner: Client, path: str) -> None:
    owner.post(path, {"preset": "10"})
    payment = Payment.objects.get()
    stripe.expire(payment.session_id)
    book()
    assert "was not completed, and nothing was charged" in text(owner.get(f"{path}?payment={payment.pk}"))


def test_the_history_has_pages(
    stripe: Stripe, owner: Client, path: str, acme: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatapi.console.credit_page.PAGE", 3)
    for number in range(7):
        Payment.objects.create(
            organization=acme, amount_cents=500 + number, session_id=f"cs_{number}", requested_by="alice",
            created_at=database_now(),
        )  # fmt: skip
    amounts: list[str] = []
    url = path
    while url:
        response: Any = owner.get(url)
        amounts += re.findall(r"\$5\.0\d", text(response).partition("Receipt")[2])
        url = response.context["older_url"]
    assert amounts == [f"$5.0{number}" for number in range(6, -1, -1)]
    for wrong in ("x", "", "0" * 32):
        assert owner.get(path, {"after": wrong}).status_code == 404


def test_anothers_payment_looks_like_one_that_never_was(
    stripe: Stripe, owner: Client, path: str, charlie: Person
) -> None:
    theirs = Payment.objects.create(
        organization=charlie.project.organization, amount_cents=500, session_id="cs_1", state=State.PAID
    )
    pages = [owner.get(f"{path}?payment={each}") for each in (theirs.pk, "0" * 32, "nonsense", "")]
    assert len({text(page) for page in pages}) == 1
    assert "booked" not in text(pages[0])


@pytest.mark.parametrize("role", [Role.VIEWER, Role.MEMBER])
def test_only_admins_and_owners_see_payments(
    stripe: Stripe, path: str, acme: Organization, role: Role
) -> None:
    eve = User.objects.create_user("eve")
    Member.objects.create(organization=acme, user=eve, role=role)
    client = client_of(eve)
    assert client.get(path).status_code == client.post(path, {"preset": "10"}).status_code == 403
    assert "Credit" not in text(client.get(f"/console/{acme.pk}/start")).partition("Sign out")[2][:200]


def test_the_redirect_to_stripe_is_allowed_on_this_page_only(
    stripe: Stripe, owner: Client, path: str, settings: Any
) -> None:
    def form_action(path: str) -> list[str]:
        policy: str = owner.get(path)["content-security-policy"]
        return str(re.findall(r"form-action ([^;]*)", policy)[0]).split()

    assert form_action(path) == ["'self'", stripe.url]
    settings.STRIPE_API_URL = "https://api.stripe.com"
    assert form_action(path) == ["'self'", "https://checkout.stripe.com"]
    assert form_action(path.replace("credit", "statements")) == ["'self'"]


def test_without_stripe_and_credit_there_is_no_page_and_no_entry_in_the_menu(
    owner: Client, path: str, acme: Organization
) -> None:
    assert owner.get(path).status_code == owner.post(path, {"preset": "10"}).status_code == 404
    assert path not in owner.get(f"/console/{acme.pk}/start").content.decode()


@pytest.mark.parametrize("who", ["owner", "operator"])
def test_without_stripe_the_page_has_what_the_operator_granted(
    owner: Client, root: Client, path: str, acme: Organization, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatapi.console.credit_page.PAGE", 2)
    for dollars in (5, 20):
        credit.grant(acme, dollars * 10**9, Note(f"invoice {dollars}", "olga"))
    credit.refund(acme, 10**9, Note("paid twice", "olga"))
    client = {"owner": owner, "operator": root}[who]
    assert f'href="{path}"' in client.get(f"/console/{acme.pk}/start").content.decode()
    page: Any = client.get(path)
    shown = text(page)
    assert "Balance $24.00" in shown
    assert re.search(r"Refunded -\$1\.00 paid twice .* Granted \$20\.00 invoice 20", shown)
    assert "To add credit, ask the operator of this service." in shown
    assert "Stripe" not in shown
    assert "Granted $5.00 invoice 5" in text(client.get(page.context["older_url"]))
    for wrong in ("x", "", "9" * 30):
        assert client.get(path, {"after": wrong}).status_code == 404
    assert client.post(path, {"preset": "10"}).status_code == 404


@pytest.mark.parametrize("has_credit", [False, True])
def test_low_credit_leads_to_the_page_if_there_is_one(
    owner: Client, path: str, acme: Organization, has_credit: bool
) -> None:
    if has_credit:
        credit.require(acme)
    outbox.write(database_now(), [outbox.low_credit(acme.pk, 10**9, 5, 10)])
    shown = owner.get(f"/console/{acme.pk}/notifications").content.decode()
    assert "of credit is left" in shown
    # In the menu, too.
    assert shown.count(f'href="{path}"') == 2 * has_credit


def test_the_menu_asks_for_credit_in_a_query_that_is_made_anyway(
    owner: Client, path: str, acme: Organization, django_assert_num_queries: Any
) -> None:
    page = f"/console/{acme.pk}/members"
    with CaptureQueriesContext(connection) as before:
        owner.get(page)
    credit.require(acme)
    with django_assert_num_queries(len(before)):
        assert path in owner.get(page).content.decode()
