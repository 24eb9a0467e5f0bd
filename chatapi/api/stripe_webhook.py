"""The route that Stripe's webhooks call: they carry no key and no session, but a signature of their body."""

from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from usage.payment import configuration, stripe_api, webhook


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
    webhook.note(event)
    return HttpResponse(status=200)
