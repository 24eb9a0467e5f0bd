"""The served models with their prices; callers cache them for a second."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime

from django.conf import settings
from django.db.models import BooleanField, Exists, ExpressionWrapper, OrderBy, OuterRef

from chatapi.models import (
    Deployment,
    Engine,
    OnDisconnect,
    Streaming,
    choice_mistake,
    extra_parameters_mistake,
    timeouts_mistake,
)
from chatapi.wire.upstream.anthropic_request import FORWARDED_EXTRAS, UNSUPPORTED
from usage.books import prices
from usage.pricing import Price

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """The properties of a served model that requests need."""

    id: str
    kind: str
    """One of `ModelKind`."""
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
    unsupported_parameters: frozenset[str] = frozenset()
    """OpenAI's request parameters that none of its deployments takes."""
    has_anthropic: bool = False
    """Whether one of its deployments has Anthropic's API."""
    is_sandbox: bool = False
    """Whether only the sandbox serves it."""

    @property
    def is_listed(self) -> bool:
        """Return whether lists of models show it: it has a price, and the settings do not hide it."""
        return self.price is not None and not (self.is_sandbox and settings.HIDE_SANDBOX_MODELS)


def load(now: datetime | None = None) -> dict[str, CatalogModel]:
    """Return the active models with an active deployment, by id and by each alias. `now` is the database's
    time, if it is known already.
    """
    current = prices.current(now)
    served: dict[str, CatalogModel] = {}
    for deployment in active_deployments():
        row, known = deployment.model, served.get(deployment.model_id)
        extra_parameters, allows_media = frozenset(deployment.extra_parameters), deployment.allow_remote_media
        is_sandbox = deployment.engine == Engine.SANDBOX
        has_anthropic = deployment.engine == Engine.ANTHROPIC
        if has_anthropic:
            extra_parameters &= FORWARDED_EXTRAS
        unsupported = UNSUPPORTED if has_anthropic else frozenset()
        if known is not None:
            # Any deployment may be chosen, so all must accept extra parameters and media. A parameter of
            # OpenAI's is unsupported only if no deployment takes it: otherwise workers choose one that does.
            extra_parameters &= known.extra_parameters
            allows_media &= known.remote_media_allowed
            unsupported &= known.unsupported_parameters
            has_anthropic |= known.has_anthropic
            is_sandbox &= known.is_sandbox
        served[row.id] = CatalogModel(
            id=row.id,
            kind=row.kind,
            context_window=row.context_window,
            max_output_tokens=row.max_output_tokens,
            price=current.get(row.id),
            extra_parameters=extra_parameters,
            remote_media_allowed=allows_media,
            deprecated_on=row.deprecated_on,
            aliases=tuple(row.aliases),
            unsupported_parameters=unsupported,
            has_anthropic=has_anthropic,
            is_sandbox=is_sandbox,
        )
    return {alias: model for model in served.values() for alias in model.aliases} | served


def sandbox_last() -> list[OrderBy | str]:
    """Return the order of `ServedModel` by id; models that only the sandbox serves come last."""
    own = Deployment.objects.filter(model=OuterRef("pk"), is_active=True)
    is_sandbox = Exists(own) & ~Exists(own.exclude(engine=Engine.SANDBOX))
    return [ExpressionWrapper(is_sandbox, BooleanField()).asc(), "id"]


def active_deployments() -> Iterator[Deployment]:
    """Yield the active deployments of active models; log and leave out invalid rows."""
    for row, mistake in checked_deployments():
        if mistake:
            log.error("deployment %s is left out: %s", row, mistake)
        else:
            yield row


def checked_deployments() -> Iterator[tuple[Deployment, str | None]]:
    """Yield the active deployments of active models, each with the mistake for which it is left out."""
    for row in Deployment.objects.filter(is_active=True, model__is_active=True).select_related("model"):
        yield (
            row,
            choice_mistake("engine", row.engine, Engine)
            or choice_mistake("on_disconnect", row.on_disconnect, OnDisconnect)
            or choice_mistake("streaming", row.streaming, Streaming)
            or timeouts_mistake(row.timeouts)
            or extra_parameters_mistake(row.extra_parameters),
        )
