"""What is served at which price, read from the database at most once a second per process."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from chatapi.models import Deployment, extra_parameters_mistake, timeouts_mistake
from usage.books import prices
from usage.pricing import Price

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A served model as a request needs to know it."""

    id: str
    context_window: int
    max_output_tokens: int
    price: Price | None
    """None: not priced, so not served."""
    extra_parameters: frozenset[str] = frozenset()
    """Request parameters beyond OpenAI's that every deployment receives, so that none of them can get lost.
    """
    remote_media_allowed: bool = False
    """Every deployment may receive addresses of pictures."""


def load() -> dict[str, CatalogModel]:
    """All active models that have an active deployment, by id."""
    current = prices.current()
    served: dict[str, CatalogModel] = {}
    for deployment in active_deployments():
        model = _served_by(deployment, current)
        served[model.id] = _served_by_either(served[model.id], model) if model.id in served else model
    return served


def active_deployments() -> Iterator[Deployment]:
    """Those of active models. One that was written past its checks and can't be read is left out, so that it
    stops only itself.
    """
    for row in Deployment.objects.filter(is_active=True, model__is_active=True).select_related("model"):
        mistake = timeouts_mistake(row.timeouts) or extra_parameters_mistake(row.extra_parameters)
        if mistake:
            log.error("deployment %s is left out: %s", row, mistake)
        else:
            yield row


def _served_by(deployment: Deployment, current: Mapping[str, Price]) -> CatalogModel:
    """The model, if this were its only deployment."""
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
    )


def _served_by_either(one: CatalogModel, other: CatalogModel) -> CatalogModel:
    """The model, when any of its deployments may be chosen: only what all of them can do counts."""
    return replace(
        one,
        extra_parameters=one.extra_parameters & other.extra_parameters,
        remote_media_allowed=one.remote_media_allowed and other.remote_media_allowed,
    )
