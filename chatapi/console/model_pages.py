"""Models and prices: what the organization can call, and code that calls it."""

from dataclasses import dataclass

from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from chatapi.console.model_measures import DAYS, measures
from chatapi.console.offers import Offer, offers
from chatapi.console.tenancy import Console, page, render
from chatapi.model_kinds import MODEL_KINDS
from chatapi.models import ModelKind
from chatapi.pages import price_timeline
from chatapi.snippets import base_url, written
from chatapi.wire.request_body import client_parameters


@dataclass(frozen=True, slots=True)
class Tab:
    """One protocol's snippets."""

    id: str
    title: str
    snippets: list[tuple[str, str, str]]
    """The id, title and text of each."""
    parameters: list[str]
    """The parameters of the protocol that a deployment accepts."""
    is_whole: bool
    """Whether these are all parameters of the protocol."""


@require_safe
@page("accounts.view_organization", keeps_to_projects=True)
def list_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the models with their windows and prices."""
    context = {"title": "Models", "offers": offers(console)}
    return render(request, console, "models.html", context)


@require_safe
@page("accounts.view_organization", keeps_to_projects=True)
def model_page(request: HttpRequest, console: Console, model: str) -> HttpResponse:
    """Show one model: prices, how its requests went, accepted parameters, and snippets with the base URL of
    this request.
    """
    offer = next((each for each in offers(console) if each.id == model), None)
    if offer is None:
        raise Http404("There is no such model.")
    origin = base_url(request)
    context = {
        "title": offer.id,
        "offer": offer,
        "starts": [start for start, _ in offer.announced],
        "prices": _prices(offer),
        "days": DAYS,
        "measures": measures(request, console, offer) if console.may("usage.view_hourlyusage") else None,
        "tabs": _tabs(offer, origin),
        "keys_url": console.url("keys") if console.may("accounts.view_apikey") else "",
        "may_play": offer.kind == ModelKind.CHAT and console.may("accounts.add_apikey"),
    }
    return render(request, console, "model.html", context)


def _prices(offer: Offer) -> list[tuple[str, list[str]]]:
    """Return each part of the price with its amounts: now, and from each announced start on."""
    all_prices = [offer.price, *(price for _, price in offer.announced)]
    return [
        (name, [price_timeline.written(price, field) for price in all_prices])
        for field, name in price_timeline.NAMES.items()
        if any(getattr(price, field) is not None for price in all_prices)
    ]


def _tabs(offer: Offer, origin: str) -> list[Tab]:
    tabs = []
    for api in MODEL_KINDS[offer.kind].apis:
        code = [
            (each.id, each.title, written(each.text, origin=origin, key="YOUR_KEY", model=offer.id))
            for each in api.code
        ]
        names = client_parameters(api.body)
        taken = [name for name in names if name not in offer.unsupported_parameters]
        tabs.append(Tab(api.name.lower(), api.name, code, taken, taken == names))
    return tabs
