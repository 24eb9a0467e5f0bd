"""Top-ups: what Stripe says was paid, less what was given back, is in the ledger, however webhooks come."""

import json
import logging
import random
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from accounts.audit.models import AuditEntry
from accounts.models import Organization
from tests import fake_stripe
from tests.fake_stripe import Stripe
from usage.books import credit
from usage.books.credit import Note
from usage.database.clock import database_now
from usage.errors import NotBooked, StripeRefused, StripeUnavailable
from usage.models import Budget, Credit, Kind, LedgerEntry
from usage.payment import payments, stripe_api
from usage.payment.models import Payment, State
from usage.payment.payments import NANODOLLARS_PER_CENT

BACK = "https://chat.example.com/console/1/credit"
DOLLAR = 10**9


@pytest.fixture
def payer(db: None) -> Organization:
    return Organization.objects.create(name="Payer")


def begin(payer: Organization, cents: int = 1_000) -> Payment:
    payments.begin(payer, cents, "alice", BACK)
    return Payment.objects.filter(organization=payer).latest("created_at")


def look() -> None:
    """Do what the reaper does with payments that are due."""
    for claimed in payments.claim():
        payments.book(claimed, stripe_api.payment_state(claimed.session_id))


def look_at_all() -> None:
    """Let all payments be due, as they are after a while without any webhook."""
    Payment.objects.exclude(session_id="").update(look_at=database_now())
    look()


def deliver(body: bytes, signature: str) -> int:
    """Send a webhook; return the status."""
    answer = Client(enforce_csrf_checks=True).post(
        "/stripe/webhook", body, "application/json", headers={"stripe-signature": signature}
    )
    return answer.status_code


def credited(payer: Organization) -> int:
    return credit.balance(payer).credited_nanodollars


def shown_session(stripe: Stripe, payment: Payment) -> dict[str, Any]:
    """Return the session as webhooks have it."""
    return stripe.sessions[payment.session_id]


@pytest.mark.parametrize("deliveries", [0, 1, 2])
def test_a_payment_is_booked_once_however_often_its_webhook_comes(
    stripe: Stripe, payer: Organization, deliveries: int
) -> None:
    payment = begin(payer)
    stripe.pay(payment.session_id)
    look()
    assert credited(payer) == 0, "it was not due"
    for _ in range(deliveries):
        body, signature = stripe.webhook("checkout.session.completed", shown_session(stripe, payment))
        assert deliver(body, signature) == 200
        look()
    if not deliveries:
        look_at_all()
    assert credited(payer) == 10 * DOLLAR
    entry = LedgerEntry.objects.get()
    payment.refresh_from_db()
    assert (entry.kind, entry.reference, entry.recorded_by) == (Kind.GRANT, payment.payment_intent, "Stripe")
    assert (payment.state, payment.booked_cents) == (State.PAID, 1_000)
    assert payment.receipt_url.startswith("https://pay.stripe.com/")
    audited = AuditEntry.objects.get(action="granted credit")
    assert (audited.actor, audited.organization_id) == ("Stripe", payer.pk)


def test_without_a_webhook_a_payment_is_looked_at_within_a_quarter_of_its_age(
    stripe: Stripe, payer: Organization
) -> None:
    payment = begin(payer)
    for _ in range(3):
        payment.refresh_from_db()
        assert payment.look_at is not None
        age = database_now() - payment.created_at
        assert payment.look_at - database_now() <= max(timedelta(seconds=30), age / 4)
        Payment.objects.update(created_at=database_now() - timedelta(minutes=20), look_at=database_now())
        look()
    stripe.expire(payment.session_id)
    look_at_all()
    payment.refresh_from_db()
    assert (payment.state, payment.look_at) == (State.EXPIRED, None)


def test_a_debit_that_the_bank_refuses_days_later_ends_without_a_payment(
    stripe: Stripe, payer: Organization
) -> None:
    payment = begin(payer)
    intent = stripe.pay_by_debit(payment.session_id)
    deliver(*stripe.webhook("checkout.session.completed", shown_session(stripe, payment)))
    look()
    payment.refresh_from_db()
    assert payment.state == State.OPEN
    intent["status"] = "requires_payment_method"
    deliver(*stripe.webhook("checkout.session.async_payment_failed", shown_session(stripe, payment)))
    look()
    payment.refresh_from_db()
    assert (payment.state, payment.look_at, credited(payer)) == (State.EXPIRED, None, 0)


def test_the_webhook_names_the_session_of_a_process_that_died(stripe: Stripe, payer: Organization) -> None:
    payment = begin(payer)
    stripe.pay(payment.session_id)
    session = shown_session(stripe, payment)
    Payment.objects.update(session_id="", look_at=None)
    deliver(*stripe.webhook("checkout.session.completed", session))
    look()
    assert credited(payer) == 10 * DOLLAR


def test_refunds_and_disputes_take_credit_back_and_a_won_dispute_returns_it(
    stripe: Stripe, payer: Organization
) -> None:
    payment = begin(payer)
    intent = stripe.pay(payment.session_id)["id"]
    look_at_all()
    expected = []
    for step in (
        lambda: stripe.refund(intent, 300),
        lambda: stripe.refund(intent, 100),
        lambda: stripe.dispute(intent, 600),
        lambda: stripe.disputes[0].update(status="won"),
        lambda: stripe.dispute(intent, 600, "lost"),
    ):
        step()
        charge = stripe.intents[intent]["latest_charge"]
        for _ in range(2):
            deliver(*stripe.webhook("charge.refunded", charge))
            look()
        expected.append(credited(payer) // DOLLAR)
    assert expected == [7, 6, 0, 6, 0]
    references = list(LedgerEntry.objects.order_by("pk").values_list("reference", flat=True))
    assert references == [intent, *(f"{intent}/{number}" for number in range(2, 7))]


def test_credit_that_is_spent_is_taken_back_too(stripe: Stripe, payer: Organization) -> None:
    payment = begin(payer)
    intent = stripe.pay(payment.session_id)["id"]
    look_at_all()
    row = Credit.objects.get(organization=payer)
    Budget.objects.create(
        id=row.budget_id, scope="organization", scope_id=payer.pk, period="ever",
        period_start="2000-01-01", posted_nanodollars=9 * DOLLAR,
    )  # fmt: skip
    stripe.refund(intent, 1_000)
    look_at_all()
    assert credit.balance(payer).nanodollars == -9 * DOLLAR


def test_a_refund_that_the_operator_booked_by_hand_is_an_error_in_the_log(
    stripe: Stripe, payer: Organization, caplog: pytest.LogCaptureFixture
) -> None:
    payment = begin(payer)
    intent = stripe.pay(payment.session_id)["id"]
    look_at_all()
    credit.refund(payer, 4 * DOLLAR, Note("by hand", "alice"))
    stripe.refund(intent, 1_000)
    with caplog.at_level(logging.ERROR):
        look_at_all()
    assert "Only $6 of the credit is there." in caplog.text
    assert credited(payer) == 6 * DOLLAR
    credit.grant(payer, 4 * DOLLAR, Note("the mistake", "alice"))
    look_at_all()
    assert credited(payer) == 0


def test_a_payment_that_was_booked_by_hand_is_granted_once(stripe: Stripe, payer: Organization) -> None:
    payment = begin(payer)
    intent = stripe.pay(payment.session_id)["id"]
    credit.grant(payer, 10 * DOLLAR, Note("by hand", "alice", reference=intent))
    look_at_all()
    payment.refresh_from_db()
    assert (credited(payer), payment.booked_cents) == (10 * DOLLAR, 1_000)
    assert not AuditEntry.objects.filter(actor="Stripe").exists()


@pytest.mark.parametrize(
    "forged",
    [
        {"amount_total": 5},
        {"currency": "jpy"},
        {"client_reference_id": "00000000-0000-0000-0000-000000000000"},
    ],
)
def test_a_session_that_is_not_what_was_asked_for_is_not_booked(
    stripe: Stripe, payer: Organization, forged: dict[str, Any]
) -> None:
    payment = begin(payer)
    stripe.pay(payment.session_id)
    stripe.sessions[payment.session_id].update(forged)
    look_at_all()
    payment.refresh_from_db()
    assert (credited(payer), payment.state) == (0, State.REFUSED)


def test_what_a_slow_process_saw_before_a_later_look_is_not_booked(
    stripe: Stripe, payer: Organization
) -> None:
    payment = begin(payer)
    intent = stripe.pay(payment.session_id)["id"]
    look_at_all()
    Payment.objects.update(look_at=database_now())
    (slow,) = payments.claim()
    seen = stripe_api.payment_state(slow.session_id)
    stripe.refund(intent, 400)
    look_at_all()
    payments.book(slow, seen)
    assert credited(payer) == 6 * DOLLAR


def test_a_webhook_that_comes_during_a_look_is_not_forgotten(stripe: Stripe, payer: Organization) -> None:
    payment = begin(payer)
    Payment.objects.update(look_at=database_now())
    (claimed,) = payments.claim()
    seen = stripe_api.payment_state(claimed.session_id)
    stripe.pay(payment.session_id)
    deliver(*stripe.webhook("checkout.session.completed", shown_session(stripe, payment)))
    payments.book(claimed, seen)
    look()
    assert credited(payer) == 10 * DOLLAR


class History:
    """People that pay and banks that give back, with webhooks that come in any order, often or never."""

    def __init__(self, stripe: Stripe, payer: Organization, chance: random.Random) -> None:
        self.stripe, self.payer, self.chance = stripe, payer, chance
        self.webhooks: list[tuple[bytes, str]] = []
        self.paid: dict[str, int] = {}

    def begin(self) -> None:
        begin(self.payer, self.chance.randrange(500, 9_000))

    def pay(self) -> None:
        for session in self.stripe.sessions.values():
            if session["status"] == "open" and self.chance.random() < 0.5:
                intent = self.stripe.pay(session["id"])["id"]
                self.paid[intent] = session["amount_total"]
                self.webhooks.append(self.stripe.webhook("checkout.session.completed", session))

    def refund(self) -> None:
        for intent, cents in self._unreturned():
            self.webhooks.append(self.stripe.webhook("charge.refunded", self.stripe.refund(intent, cents)))

    def dispute(self) -> None:
        for intent, cents in self._unreturned():
            dispute = self.stripe.dispute(intent, cents)
            self.webhooks.append(self.stripe.webhook("charge.dispute.created", dispute))

    def decide(self) -> None:
        for dispute in self.stripe.disputes:
            if dispute["status"] == "needs_response" and self.chance.random() < 0.5:
                dispute["status"] = self.chance.choice(["won", "lost"])
                self.webhooks.append(self.stripe.webhook("charge.dispute.closed", dispute))

    def deliver(self) -> None:
        for webhook in self.webhooks:
            if self.chance.random() < 0.3:
                assert deliver(*webhook) == 200
        look()

    def look_and_die(self) -> None:
        payments.claim()

    def left_cents(self, intent: str) -> int:
        """Return what was paid less what was given back."""
        disputes = [row for row in self.stripe.disputes if row["payment_intent"] == intent]
        disputed = sum(row["amount"] for row in disputes if row["status"] != "won")
        charge = self.stripe.intents[intent]["latest_charge"]
        return self.paid[intent] - int(charge["amount_refunded"]) - int(disputed)

    def _unreturned(self) -> Iterator[tuple[str, int]]:
        """Yield payments with a part of what is left of them."""
        for intent in self.paid:
            left = self.left_cents(intent)
            if left and self.chance.random() < 0.3:
                yield intent, self.chance.randrange(1, left + 1)


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_end_with_what_was_paid_less_what_was_given_back(
    stripe: Stripe, payer: Organization, seed: int
) -> None:
    chance = random.Random(seed)
    history = History(stripe, payer, chance)
    steps = [
        history.begin, history.pay, history.refund, history.dispute, history.decide, history.deliver,
        history.look_and_die,
    ]  # fmt: skip
    for _ in range(40):
        chance.choice(steps)()
    look_at_all()
    right = sum(map(history.left_cents, history.paid)) * NANODOLLARS_PER_CENT
    assert right, "nothing was paid"
    assert credited(payer) == right
    assert -sum(LedgerEntry.objects.values_list("amount_nanodollars", flat=True)) == right


def test_a_lost_answer_is_the_same_session(stripe: Stripe, payer: Organization) -> None:
    stripe.fail("lost", "/checkout/sessions")
    begin(payer)
    assert len(stripe.sessions) == 1
    assert [call[1] for call in stripe.calls] == ["/v1/checkout/sessions"] * 2


@pytest.mark.parametrize("mode", ["500", "429", "401"])
def test_a_stripe_that_is_away_is_an_error_and_nothing_is_lost(
    stripe: Stripe, payer: Organization, mode: fake_stripe.Mode
) -> None:
    stripe.fail(mode, times=2)
    with pytest.raises(StripeUnavailable):
        begin(payer)
    stripe.stop_failing()
    payment = begin(payer)
    stripe.pay(payment.session_id)
    stripe.fail(mode)
    with pytest.raises(StripeUnavailable):
        look_at_all()
    look_at_all()
    assert credited(payer) == 10 * DOLLAR


def test_a_session_that_stripe_does_not_know_is_looked_at_later(stripe: Stripe, payer: Organization) -> None:
    payment = begin(payer)
    Payment.objects.update(session_id="cs_test_of_another_account", look_at=database_now())
    (claimed,) = payments.claim()
    with pytest.raises(StripeRefused):
        stripe_api.payment_state(claimed.session_id)
    payments.postpone(claimed)
    payment.refresh_from_db()
    assert payment.look_at is not None
    assert payment.look_at - database_now() > timedelta(hours=5)


def test_an_organization_has_a_bounded_number_of_open_payments(stripe: Stripe, payer: Organization) -> None:
    """Beginnings that failed do not count: nobody can finish them."""
    stripe.fail("500", times=2)
    with pytest.raises(StripeUnavailable):
        begin(payer)
    for _ in range(payments.MAX_OPEN):
        begin(payer)
    with pytest.raises(NotBooked, match="20 payments are open"):
        begin(payer)


# ---- the route


def test_only_what_stripe_signed_lately_is_taken(stripe: Stripe, payer: Organization) -> None:
    payment = begin(payer)
    stripe.pay(payment.session_id)
    body, good = stripe.webhook("checkout.session.completed", shown_session(stripe, payment))
    now = int(time.time())
    digest = good.partition("v1=")[2]
    wrong = [
        "",
        "t=,v1=",
        "nonsense",
        "é",
        f"t={now},v1=é",
        f"t={now},v1={'0' * 64}",
        f"t={now},v0={digest}",
        f"t={now + 1},v1={digest}",
        fake_stripe.signature(body, now, "whsec_another0000"),
        fake_stripe.signature(body, now - 400),
        fake_stripe.signature(body + b" ", now),
    ]
    for signature in wrong:
        assert deliver(body, signature) == 400, signature
    payment.refresh_from_db()
    assert payment.look_at is not None
    assert payment.look_at > database_now(), "nothing made it due"
    assert deliver(body, f"t={now},v1={'0' * 64},{good.replace(f't={now},', '')}") == 200


@pytest.mark.parametrize(
    "thing",
    [
        {}, [], None, 7, "text", {"object": []}, {"object": "customer", "id": "cus_1"},
        {"object": "charge"}, {"object": "charge", "payment_intent": {"id": "pi_1"}},
        {"object": "charge", "payment_intent": "pi_of_a_shop"},
        {"object": "checkout.session", "id": 5, "metadata": {"chatapi_payment": 7}},
        {"object": "checkout.session", "id": "cs_1", "metadata": {"chatapi_payment": "no uuid"}},
        {"object": "checkout.session", "id": "cs_1", "metadata": []},
    ],
)  # fmt: skip
def test_events_about_anything_else_are_taken_and_ignored(
    stripe: Stripe, payer: Organization, thing: Any
) -> None:
    begin(payer)
    before = list(Payment.objects.values())
    assert deliver(*stripe.webhook("something.else", thing)) == 200
    for body in (b"[]", b"7", b'"text"', b"null", json.dumps({"data": thing}).encode()):
        assert deliver(body, fake_stripe.signature(body, int(time.time()))) == 200
    assert list(Payment.objects.values()) == before


def test_a_signed_body_that_is_not_json_is_refused(stripe: Stripe, db: None) -> None:
    for body in (b"", b"{", b"\xff\xfe"):
        assert deliver(body, fake_stripe.signature(body, int(time.time()))) == 400


def test_without_a_key_there_is_no_route(db: None) -> None:
    assert deliver(b"{}", fake_stripe.signature(b"{}", int(time.time()))) == 404
    assert Client().get("/stripe/webhook").status_code == 405
