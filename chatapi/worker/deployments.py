"""Orders the deployments of a model: by priority, then at random by weight, those in cool-down last."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from chatapi.catalog import active_deployments
from chatapi.models import Deployment, OnDisconnect
from chatapi.wire.generation_request import GenerationRequest
from chatapi.worker.engines import Target, Timeouts

# How long a deployment is asked last after a retryable failure.
COOL_DOWN_S = 10.0


@dataclass(frozen=True, slots=True)
class Route:
    """A deployment with its rules for routing and for clients that leave."""

    target: Target
    weight: int = 1
    priority: int = 0
    on_disconnect: OnDisconnect = OnDisconnect.CANCEL
    allows_remote_media: bool = False


# The only route for test keys, for every model. It fetches no media.
SANDBOX = Route(Target(engine="sandbox", name="sandbox"), allows_remote_media=True)


def load() -> dict[str, list[Route]]:
    """Return the routes to the active deployments, by model."""
    routes: dict[str, list[Route]] = {}
    for row in active_deployments():
        on_disconnect = OnDisconnect(row.on_disconnect)
        route = Route(target_of(row), row.weight, row.priority, on_disconnect, row.allow_remote_media)
        routes.setdefault(row.model_id, []).append(route)
    return routes


def target_of(row: Deployment) -> Target:
    """Return what the engine needs to know of the deployment."""
    return Target(
        engine=row.engine,
        name=row.name,
        upstream_model=row.upstream_model or row.model_id,
        base_url=row.base_url,
        api_key_env=row.api_key_env,
        timeouts=msgspec.convert(row.timeouts, Timeouts),
        extra_parameters=frozenset(row.extra_parameters),
        streaming=row.streaming,
    )


def able(routes: Sequence[Route], request: GenerationRequest) -> list[Route]:
    """Return the routes that may receive the request.

    URLs of media go only to deployments that allow remote media: their upstream would fetch them.
    """
    return [route for route in routes if route.allows_remote_media or request.remote_media_param is None]


class Health:
    """Remembers which deployments have failed lately. Each process has its own memory."""

    def __init__(self) -> None:
        self._cool_until: dict[Target, float] = {}

    def failed(self, target: Target) -> None:
        """Ask this deployment last for `COOL_DOWN_S`."""
        self._cool_until[target] = time.monotonic() + COOL_DOWN_S

    def is_healthy(self, route: Route) -> bool:
        """Return whether the deployment is not in cool-down."""
        return self._cool_until.get(route.target, 0) <= time.monotonic()

    def in_order(self, routes: Sequence[Route]) -> list[Route]:
        """Return the routes in the order to try them.

        Healthy ones come before those in cool-down, low priority numbers first, the rest at random by weight.
        """
        now = time.monotonic()
        # Efraimidis and Spirakis: sorting by u^(1/w) draws without replacement in proportion to the weights.
        # A weighted choice needs no cryptographic randomness.
        drawn = {id(route): random.random() ** (1 / max(route.weight, 1)) for route in routes}  # noqa: S311
        return sorted(
            routes,
            key=lambda route: (
                self._cool_until.get(route.target, 0) > now,
                route.priority,
                -drawn[id(route)],
            ),
        )
