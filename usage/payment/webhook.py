"""Webhooks of Stripe: each one only says which payment is to be looked at now.

They carry no key and no session, but a signature of their body.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from usage.database.clock import database_now
from usage.payment import configuration, stripe_api
from usage.payment.models import Payment
from usage.payment.stripe_api import METADATA

# Objects of a payment, and how they name its session or payment intent.
_NAMES = {
    "checkout.session": ("session_id", "id"),
    "charge": ("payment_intent", "payment_intent"),
    "dispute": ("payment_intent", "payment_intent"),
    "refund": ("payment_intent", "payment_intent"),
}


@csrf_exempt
@require_POST
@never_cache
def receive(request: HttpRequest) -> HttpResponse:
    """Answer 200 to a message that Stripe has signed lately, and 400 to any other."""
    if not configuration.is_on():
        raise Http404
    try:
        event = stripe_api.verified(request.body, request.headers.get("Stripe-Signature", ""))
    except stripe_api.WrongSignature:
        return HttpResponse("The signature is wrong or too old.\n", status=400, content_type="text/plain")
    _note(event)
    return HttpResponse(status=200)


def _note(event: Any) -> None:
    """Have the payment looked at that a verified event is about; all other events are ignored."""
    data = event.get("data") if isinstance(event, Mapping) else None
    thing = data.get("object") if isinstance(data, Mapping) else None
    if not isinstance(thing, Mapping) or str(thing.get("object")) not in _NAMES:
        return
    column, member = _NAMES[str(thing["object"])]
    stripe_id, payment_id = thing.get(member), _payment_id(thing)
    found = Q(pk=payment_id) if payment_id else Q()
    if stripe_id and isinstance(stripe_id, str):
        found |= Q(**{column: stripe_id})
    if not found:
        return
    with transaction.atomic():
        if payment_id and column == "session_id":
            # A process that died after it made the session has not noted its id.
            Payment.objects.filter(pk=payment_id, session_id="").update(session_id=stripe_id)
        Payment.objects.filter(found).update(look_at=database_now())


def _payment_id(thing: Mapping[str, Any]) -> UUID | None:
    metadata = thing.get("metadata")
    text = metadata.get(METADATA) if isinstance(metadata, Mapping) else None
    try:
        return UUID(text)
    except (TypeError, ValueError, AttributeError):
        return None
