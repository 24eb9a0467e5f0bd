"""The admin's page of one model's prices: what it cost, costs and will cost."""

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.views.decorators.http import require_safe

from chatapi.models import ServedModel
from chatapi.pages import price_chart, price_timeline
from usage.database.clock import database_now
from usage.models import Price

MAX_PRICES = 100


@require_safe
def prices_page(request: HttpRequest) -> HttpResponse:
    """The timeline of the model that the address names; without one, the list of all prices."""
    if not request.user.has_perm("usage.view_price"):
        raise PermissionDenied
    model = request.GET.get("model", "").replace("\x00", "")
    if not model:
        return redirect("admin:usage_price_changelist")
    known = admin.site.get_model_admin(Price).get_queryset(request).filter(model=model)
    # One more than is shown, so that the oldest one shown has something before it.
    rows = list(known.order_by("-effective_from")[: MAX_PRICES + 1])[::-1]
    now = database_now()
    context = {
        "title": "Prices",
        "model": model,
        "is_served": ServedModel.objects.filter(pk=model).exists(),
        "entries": price_timeline.entries(rows, now)[:MAX_PRICES],
        "chart": price_chart.draw(rows, now),
        "hidden_count": max(known.count() - MAX_PRICES, 0),
    }
    return TemplateResponse(request, "chatapi/prices.html", admin.site.each_context(request) | context)
