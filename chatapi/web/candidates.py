"""The models that may answer a request, with their prices: the requested one, then its fallbacks."""

from collections.abc import Sequence
from dataclasses import dataclass

from accounts.authentication import Caller
from chatapi import errors
from chatapi.catalog import CatalogModel
from chatapi.models import ModelKind
from chatapi.web.services import Services
from chatapi.wire import requests
from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.parsed_request import RequestSummary
from chatapi.wire.protocols import Protocol
from usage import pricing
from usage.errors import NotPriced
from usage.pricing import FREE, Price


@dataclass(frozen=True, slots=True)
class Fallback:
    """Another model that may answer, with the name by which it was chosen, and its price."""

    name: str
    model: CatalogModel
    price: Price


async def usable_model(
    services: Services, caller: Caller, name: str, kind: str, summary: RequestSummary
) -> tuple[CatalogModel, Price]:
    """Return the caller's model of this name and its price.

    Raises `APIError`, `NotPriced` or `InvalidRequest` if the request can't use the model.
    """
    model = await services.model(caller, name)
    if not caller.may_use(name if model is None else model.id):
        raise errors.model_not_allowed(name)
    if model is None:
        raise errors.model_not_found(name)
    if model.kind != kind:
        raise errors.model_of_another_kind(name, model.kind, kind)
    if model.price is None:
        raise NotPriced(name)
    # Otherwise `able` in `chatapi/worker/deployments.py` could exclude all of its deployments.
    if not model.remote_media_allowed:
        requests.refuse_remote_media(summary)
    discount = (await services.discounts.get()).get(caller.organization_id, 0)
    return model, FREE if caller.is_test else pricing.discounted(model.price, discount)


async def fallbacks(
    protocol: Protocol, services: Services, caller: Caller, summary: RequestSummary, first: CatalogModel
) -> tuple[Fallback, ...]:
    """Return the other models that may answer, each once.

    Raises the error of a model that the client has chosen and this request can't use. Such a model of the
    project's list is left out, because the list is for all keys and requests of the project.
    """
    are_chosen = summary.models is not None
    names = summary.models if summary.models is not None else _of_project(caller, summary.model, first)
    if not names or protocol.counts_tokens:
        return ()
    found: dict[str, Fallback] = {}
    for index, name in enumerate(names):
        try:
            model, price = await usable_model(services, caller, name, protocol.model_kind, summary)
        except (errors.APIError, NotPriced, InvalidRequest) as error:
            if are_chosen:
                raise errors.of_parameter(error, f"models[{index}]") from None
        else:
            if model.id != first.id:
                found.setdefault(model.id, Fallback(name, model, price))
    return tuple(found.values())


def _of_project(caller: Caller, name: str, model: CatalogModel) -> Sequence[str]:
    """Return the project's fallbacks for the requested name or, without any, for the model's id."""
    if not caller.model_fallbacks or not ModelKind(model.kind).may_fall_back:
        return ()
    known = caller.model_fallbacks
    return known.get(name) or known.get(model.id, ())
