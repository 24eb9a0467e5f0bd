"""The served models with their prices; callers cache them for a second."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date

from chatapi.models import Deployment, extra_parameters_mistake, timeouts_mistake
from usage.books import prices
from usage.pricing import Price

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """The properties of a served model that requests need."""

    id: str
    context_window: int
    max_output_tokens: int
    price: Price | None
    """None if the model has no price and so is not served."""
    extra_parameters: frozenset[str] = frozenset()
    """Request parameters beyond OpenAI's that every one of its deployments accepts."""
    remote_media_allowed: bool = False
    """Whether every deployment may receive URLs of pictures."""
    deprecated_on: date | None = None
    aliases: tuple[str, ...] = ()


def load() -> dict[str, CatalogModel]:
    """Return the active models with an active deployment, by id and by each alias."""
    current = prices.current()
    served: dict[str, CatalogModel] = {}
    for deployment in active_deployments():
        model = _served_by(deployment, current)
        served[model.id] = _served_by_either(served[model.id], model) if model.id in served else model
    return {alias: model for model in served.values() for alias in model.aliases} | served


def active_deployments() -> Iterator[Deployment]:
    """Yield the active deployments of active models; log and leave out invalid rows."""
    for row in Deployment.objects.filter(is_active=True, model__is_active=True).select_related("model"):
        mistake = timeouts_mistake(row.timeouts) or extra_parameters_mistake(row.extra_parameters)
        if mistake:
            log.error("deployment %s is left out: %s", row, mistake)
        else:
            yield row


def _served_by(deployment: Deployment, current: Mapping[str, Price]) -> CatalogModel:
    """Return the model as if this were its only deployment."""
    row = deployment.model
    extra_parameters = frozenset(deployment.extra_parameters)
    price = current.get(row.id)
    return CatalogModel(
        row.id,
        row.context_window,
        row.max_output_tokens,
        price,
        extra_parameters,
        deployment.allow_remote_media,
        row.deprecated_on,
        tuple(row.aliases),
    )


def _served_by_either(one: CatalogModel, other: CatalogModel) -> CatalogModel:
    """Return the model with the abilities that both have, since any deployment may be chosen."""
    return replace(
        one,
        extra_parameters=one.extra_parameters & other.extra_parameters,
        remote_media_allowed=one.remote_media_allowed and other.remote_media_allowed,
    )
