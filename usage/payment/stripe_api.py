"""The calls of Stripe's API, and the check of a webhook's signature. Each call blocks for a bounded time.

Stripe's package is imported by the first call, so only installations with a key need it.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import msgspec
from django.conf import settings

from usage.errors import StripeRefused, StripeUnavailable
from usage.payment.models import MeterEvent, Payment

TIMEOUT_S = 10.0
CURRENCY = "usd"
# How long a person may take to pay.
OPEN_FOR = timedelta(hours=1)
# After this, a payment is neither paid nor refused any more: a bank takes two weeks at most for a debit.
PENDING_FOR = timedelta(days=30)
# The name under which objects of Stripe carry our payment's id.
METADATA = "chatapi_payment"
# A part of the message with which Stripe refuses an event that it has already; it has no code of its own.
_DUPLICATE = "event already exists with identifier"
# The states of the payment of a completed session that a bank has refused later, such as a debit.
_FAILED = {"requires_payment_method", "canceled"}
# Disputes in these states have taken no money, or have given it back.
_HARMLESS = {"warning_needs_response", "warning_under_review", "warning_closed", "won", "prevented"}


class Checkout(NamedTuple):
    """A Checkout Session, with the page that the person is sent to."""

    session_id: str
    url: str


class PaymentState(NamedTuple):
    """The state of a payment at Stripe."""

    reference: str
    currency: str
    amount_cents: int
    is_paid: bool
    is_over: bool
    """Whether it ended without a payment."""
    payment_intent: str
    returned_cents: int
    """Refunded, or held or taken by a bank because of a dispute."""
    receipt_url: str


class WrongSignature(Exception):
    """The webhook is not Stripe's, or too old."""


def begin_checkout(payment: Payment, return_url: str) -> Checkout:
    """Make a Checkout Session for the payment; raises `StripeUnavailable` or `StripeRefused`."""
    metadata = {METADATA: str(payment.pk)}
    product = {"name": f"Prepaid credit of {payment.organization}"}
    price = {"currency": CURRENCY, "unit_amount": payment.amount_cents, "product_data": product}
    parameters = {
        "mode": "payment",
        # Otherwise Stripe may ask for another currency, and refunds would be in it, too.
        "adaptive_pricing": {"enabled": False},
        "client_reference_id": str(payment.pk),
        "line_items": [{"quantity": 1, "price_data": price}],
        "success_url": f"{return_url}?payment={payment.pk}",
        "cancel_url": return_url,
        "expires_at": int((payment.created_at + OPEN_FOR).timestamp()),
        "metadata": metadata,
        "payment_intent_data": {"metadata": metadata},
    }
    # The package repeats a lost call with the same idempotency key, so that there is one session.
    options = {"max_network_retries": 1}
    session = _call(lambda client: client.v1.checkout.sessions.create(parameters, options))
    return Checkout(session.id, session.url)


def payment_state(session_id: str) -> PaymentState:
    """Ask for the session's payment; raises `StripeUnavailable` or `StripeRefused`."""
    expanded = {"expand": ["payment_intent.latest_charge"]}
    session = _call(lambda client: client.v1.checkout.sessions.retrieve(session_id, expanded))
    intent = session.payment_intent
    charge = intent.latest_charge if intent else None
    has_failed = intent is not None and intent.status in _FAILED
    return PaymentState(
        reference=session.client_reference_id or "",
        currency=session.currency,
        amount_cents=session.amount_total,
        is_paid=session.payment_status == "paid",
        is_over=session.status == "expired" or (session.status == "complete" and has_failed),
        payment_intent=intent.id if intent else "",
        returned_cents=charge.amount_refunded + _disputed_cents(intent.id, charge) if charge else 0,
        receipt_url=(charge.receipt_url or "") if charge else "",
    )


def _disputed_cents(payment_intent: str, charge: Any) -> int:
    if not charge.disputed:
        return 0
    parameters = {"payment_intent": payment_intent, "limit": 100}
    disputes = _call(lambda client: client.v1.disputes.list(parameters))
    return sum(each.amount for each in disputes.data if each.status not in _HARMLESS)


def send(event: MeterEvent) -> None:
    """Send the event, unless Stripe knows its identifier; raises `StripeUnavailable` or `StripeRefused`."""
    parameters = {
        "event_name": event.meter,
        "identifier": event.identifier,
        "timestamp": int(event.stamped_at.timestamp()),
        "payload": {"stripe_customer_id": event.customer_id, "value": str(event.value)},
    }
    try:
        _call(lambda client: client.v1.billing.meter_events.create(parameters))
    except StripeRefused as error:
        if _DUPLICATE not in str(error):
            raise


def minute_sum(customer_id: str, meter: str, minute: datetime) -> int:
    """Return the sum of the customer's events in the minute.

    Raises `StripeUnavailable` or `StripeRefused`.
    """
    start = int(minute.timestamp())
    parameters = {"customer": customer_id, "start_time": start, "end_time": start + 60}
    meter_id = _meter_id(meter)
    found = _call(lambda client: client.v1.billing.meters.event_summaries.list(meter_id, parameters))
    return sum(int(each.aggregated_value) for each in found.data)


def _meter_id(name: str) -> str:
    meters = _call(lambda client: client.v1.billing.meters.list({"limit": 100, "status": "active"}))
    for meter in meters.data:
        if meter.event_name == name:
            return str(meter.id)
    raise StripeRefused(f"There is no active meter with the event name {name!r}.")


def verified(payload: bytes, signature: str) -> Any:
    """Return the event of a webhook; raises `WrongSignature`."""
    stripe = _package()
    # The package's comparison raises TypeError for text that is not ASCII.
    if not signature.isascii():
        raise WrongSignature
    with suppress(stripe.SignatureVerificationError, ValueError):
        secret = settings.STRIPE_WEBHOOK_SECRET
        stripe.WebhookSignature.verify_header(payload, signature, secret, stripe.Webhook.DEFAULT_TOLERANCE)
        return msgspec.json.decode(payload)
    raise WrongSignature


def _call(function: Callable[[Any], Any]) -> Any:
    stripe = _package()
    try:
        return function(_client(settings.STRIPE_API_KEY, settings.STRIPE_API_URL))
    except stripe.InvalidRequestError as error:
        raise StripeRefused(error.user_message or str(error)) from error
    except stripe.StripeError as error:
        raise StripeUnavailable(str(error)) from error


@lru_cache(maxsize=1)
def _client(api_key: str, url: str) -> Any:
    stripe = _package()
    return stripe.StripeClient(
        api_key,
        base_addresses={"api": url},
        max_network_retries=0,
        http_client=stripe.RequestsClient(timeout=TIMEOUT_S),
    )


def _package() -> Any:
    stripe: Any = import_module("stripe")
    # Otherwise it would send the duration of each call with the next one.
    stripe.enable_telemetry = False
    return stripe
