"""Loads the deployments of all models from the database; `routing/` chooses among them."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from chatapi import upstream_keys
from chatapi.catalog import active_deployments
from chatapi.models import USUAL_RETRIES, Deployment, Engine, OnDisconnect
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.upstream.anthropic_request import lacks
from chatapi.worker.engines import Target, Timeouts


@dataclass(frozen=True, slots=True)
class Route:
    """A deployment with its rules for routing and for clients that leave, all of which `load` sets."""

    target: Target
    weight: int
    priority: int
    on_disconnect: OnDisconnect
    allows_remote_media: bool
    max_concurrent: int | None
    """The most requests of all workers in flight at the deployment; None: no limit."""
    retries: int
    """A request that was repeated this often, at this or another deployment, is not sent here again."""
    model: str

    @property
    def key(self) -> str:
        """Return the deployment's name among those of all models; a model's id has no space."""
        return f"{self.model} {self.target.name}"


# The only route for test keys, for every model. It fetches no media.
SANDBOX = Route(
    target=Target(engine="sandbox", name="sandbox"),
    weight=1,
    priority=0,
    on_disconnect=OnDisconnect.CANCEL,
    allows_remote_media=True,
    max_concurrent=None,
    retries=USUAL_RETRIES,
    model="",
)


def load() -> dict[str, list[Route]]:
    """Return the routes to the active deployments, by model."""
    routes: dict[str, list[Route]] = {}
    for row in active_deployments():
        route = Route(
            target=target_of(row),
            # A row that was written past all checks may have a weight of 0.
            weight=max(row.weight, 1),
            priority=row.priority,
            on_disconnect=OnDisconnect(row.on_disconnect),
            allows_remote_media=row.allow_remote_media,
            max_concurrent=row.max_concurrent,
            retries=row.retries,
            model=row.model_id,
        )
        routes.setdefault(row.model_id, []).append(route)
    return routes


def target_of(row: Deployment) -> Target:
    """Return what the engine needs to know of the deployment."""
    return Target(
        engine=row.engine,
        name=row.name,
        upstream_model=row.upstream_model or row.model_id,
        base_url=row.base_url,
        api_key=upstream_keys.key_of(row),
        timeouts=msgspec.convert(row.timeouts, Timeouts),
        extra_parameters=frozenset(row.extra_parameters),
        streaming=row.streaming,
    )


def able(routes: Sequence[Route], request: GenerationRequest) -> list[Route]:
    """Return the routes that may receive the request, without those that can't answer it if others can.

    URLs of media go only to deployments that allow remote media, because the upstream would fetch them. At
    admission all of the model's deployments allowed it (`usable_model` in `chatapi/web/candidates.py`).
    """
    allowed = [route for route in routes if route.allows_remote_media or request.remote_media_param is None]
    fitting = [route for route in allowed if route.target.engine != Engine.ANTHROPIC or not lacks(request)]
    # If none can answer, one is asked all the same: its error says what it does not support.
    return fitting or allowed
