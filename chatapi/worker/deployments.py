"""Which deployment serves a request next: by priority, then by weight, those in cool-down last."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from chatapi.catalog import active_deployments
from chatapi.models import Deployment, OnDisconnect
from chatapi.wire.generation_request import GenerationRequest
from chatapi.worker.engines import Target, Timeouts

COOL_DOWN_S = 10.0
"""How long a deployment that failed before its first delta is asked last."""


@dataclass(frozen=True, slots=True)
class Route:
    """A deployment as a run needs it."""

    target: Target
    weight: int = 1
    priority: int = 0
    on_disconnect: OnDisconnect = OnDisconnect.CANCEL
    allows_remote_media: bool = False


SANDBOX = Route(Target(engine="sandbox", name="sandbox"), allows_remote_media=True)
"""All that a test key reaches, whatever model it names. It fetches nothing."""


def load() -> dict[str, list[Route]]:
    """The active deployments of each model."""
    routes: dict[str, list[Route]] = {}
    for row in active_deployments():
        routes.setdefault(row.model_id, []).append(_route(row))
    return routes


def _route(row: Deployment) -> Route:
    return Route(
        target_of(row), row.weight, row.priority, OnDisconnect(row.on_disconnect), row.allow_remote_media
    )


def target_of(row: Deployment) -> Target:
    """The deployment as its engine needs to know it."""
    return Target(
        engine=row.engine,
        name=row.name,
        upstream_model=row.upstream_model or row.model_id,
        base_url=row.base_url,
        api_key_env=row.api_key_env,
        timeouts=msgspec.convert(row.timeouts, Timeouts),
        extra_parameters=frozenset(row.extra_parameters),
    )


def able(routes: Sequence[Route], request: GenerationRequest) -> list[Route]:
    """The routes that may receive the request: an address that an upstream would fetch goes only where that
    is allowed.
    """
    return [route for route in routes if route.allows_remote_media or request.remote_media_param is None]


class Health:
    """Remembers which deployments failed lately; of this process only, so a wrong memory costs little."""

    def __init__(self) -> None:
        self._cool_until: dict[Target, float] = {}

    def failed(self, target: Target) -> None:
        """Ask this deployment last for a while."""
        self._cool_until[target] = time.monotonic() + COOL_DOWN_S

    def in_order(self, routes: Sequence[Route]) -> list[Route]:
        """The routes in the order to try them: healthy before cooling, low priority number first, then drawn
        by weight.
        """
        now = time.monotonic()
        # Efraimidis and Spirakis: sorting by u^(1/w) draws without replacement in proportion to the weights.
        drawn = {id(route): random.random() ** (1 / max(route.weight, 1)) for route in routes}  # noqa: S311  no secret
        return sorted(
            routes,
            key=lambda route: (
                self._cool_until.get(route.target, 0) > now,
                route.priority,
                -drawn[id(route)],
            ),
        )
