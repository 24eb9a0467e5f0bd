"""Plans the attempts of a request: other deployments first, then the same ones again, within a budget."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from chatapi.wire.deltas import Failed
from chatapi.wire.upstream.upstream_errors import TRANSIENT
from chatapi.worker.deployments import Route
from chatapi.worker.routing.router import Router

# Repeated attempts that each request adds to its model's budget, and the most that the budget can hold.
SHARE = 0.2
BURST = 10.0
# The largest debt of a budget, for attempts that take over the load of a deployment which cools down: when it
# dies, all requests that wait for it go elsewhere at the same moment.
MAX_DEBT = 1_000.0
# The waits before a deployment is asked again are random: up to the first value, and then up to twice as much
# as before.
BACK_OFF_S = 0.25
# A longer `Retry-After` is left to the client, which can wait without a place in a worker.
MAX_WAIT_S = 5.0


class RetryBudgets:
    """Bounds what attempts after the first one add to the load of each model's upstreams.

    Each process has its own budgets. Requests are spread over the processes, so the sum of the shares is the
    share of the whole, and no request needs a round trip for it.
    """

    def __init__(self) -> None:
        self._left: dict[str, float] = {}

    def earn(self, model: str) -> None:
        """Add one request's share."""
        self._left[model] = min(BURST, self._left.get(model, BURST) + SHARE)

    def spend(self, model: str, max_debt: float = 0.0) -> bool:
        """Take one attempt from the budget, or return False if it would owe more than `max_debt` then."""
        left = self._left.get(model, BURST)
        if left - 1 < -max_debt:
            return False
        self._left[model] = left - 1
        return True


@dataclass(frozen=True, slots=True)
class Step:
    """The next attempt, after a wait."""

    route: Route
    """The deployment, with the time limits that earlier attempts have left."""
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Failure:
    not_before: float
    not_after: float
    """The latest start of a repetition: a later one, if it takes as long as this attempt, would exceed the
    time limit of the first delta.
    """


class AttemptPlan:
    """The attempts of one request, as long as none of its deltas is published."""

    def __init__(
        self,
        router: Router,
        budgets: RetryBudgets,
        model: str,
        routes: Sequence[Route],
        affinity: bytes | None = None,
        fallbacks: Sequence[Sequence[Route]] = (),
    ) -> None:
        """`model`: the requested one, whose budget all attempts share. `fallbacks`: the routes of each other
        model that may answer, in order.
        """
        self._router = router
        self._budgets = budgets
        self._model = model
        self._affinity = affinity
        self._routes = list(routes)
        """The routes of the model that is tried now."""
        self._fresh = list(routes)
        self._later = [list(each) for each in fallbacks]
        self._failures: dict[str, _Failure] = {}
        self._give_up_at: dict[str, float] = {}
        """By deployment: the end of its time limit of the first delta, counted from its first attempt."""
        self._first_at: float | None = None
        """When the first attempt was begun; None before it."""
        self._began_at = 0.0
        self._repetitions = 0
        self._last_failed: Route | None = None

    def next(self) -> Step | None:
        """Return the next attempt; None if there is none, or the budget does not allow it."""
        if self._first_at is None:
            self._budgets.earn(self._model)
        self._postpone_unhealthy()
        while True:
            now = time.monotonic()
            self._fresh = [route for route in self._fresh if self._left_s(route, now) > 0]
            step = self._step_to_another() if self._fresh else self._step_to_the_same()
            if step is not None or not self._later:
                return step
            self._turn_to_next_model()

    def failed(self, route: Route, failure: Failed) -> None:
        """Remember a failure that another attempt may cure."""
        now = time.monotonic()
        self._last_failed = route
        self._failures.pop(route.key, None)
        if failure.code in TRANSIENT:
            not_before = now + (failure.retry_after_ms or 0) / 1_000
            not_after = self._give_up_at[route.key] - (now - self._began_at)
            self._failures[route.key] = _Failure(not_before, not_after)

    def leave_model(self, route: Route) -> None:
        """Remember a failure that every deployment of the route's model, whose turn it is, would repeat."""
        self._last_failed = route
        self._turn_to_next_model()

    def _turn_to_next_model(self) -> None:
        """Leave the model whose turn it is, for the next one; after the last one there is no attempt."""
        self._routes = self._later.pop(0) if self._later else []
        self._fresh = list(self._routes)
        self._failures.clear()

    def _postpone_unhealthy(self) -> None:
        """Let a model whose deployments all cool down wait until no other one has a healthy deployment."""
        while self._later and not self._has_healthy(self._routes):
            if not any(map(self._has_healthy, self._later)):
                return
            if self._fresh:
                self._later.append(self._fresh)
            self._turn_to_next_model()

    def _has_healthy(self, routes: Sequence[Route]) -> bool:
        return any(self._router.health.is_healthy(route.key) for route in routes)

    def _step_to_another(self) -> Step | None:
        """Ask a deployment that this request has not asked yet.

        A healthy deployment may be asked even if the budget is used up, down to `-MAX_DEBT`, if it takes over
        the load of a deployment that cools down, or of another model.
        Until an attempt has failed it needs no budget: the deployments before it had no room.
        """
        route = self._router.in_order(self._fresh, self._affinity)[0]
        now = time.monotonic()
        is_first = self._first_at is None
        health, last = self._router.health, self._last_failed
        is_healthy = health.is_healthy(route.key)
        is_free = is_first or (is_healthy and last is None)
        takes_over = last is not None and (route.model != last.model or not health.is_healthy(last.key))
        max_debt = MAX_DEBT if is_healthy and takes_over else 0.0
        if not is_free and not self._budgets.spend(self._model, max_debt):
            return None
        self._fresh.remove(route)
        self._began_at = now
        first_delta_s = route.target.timeouts.first_delta_ms / 1_000
        self._give_up_at[route.key] = now + first_delta_s
        if is_first:
            self._first_at = now
            return Step(route)
        return Step(self._with_time_left(route, first_delta_s))

    def _step_to_the_same(self) -> Step | None:
        """Ask a deployment again whose failure may have passed, if its time limit has room for a wait."""
        now = time.monotonic()
        jitter_s = random.uniform(0, BACK_OFF_S * 2**self._repetitions)  # noqa: S311  nothing secret
        waits = {key: max(0.0, each.not_before - now) for key, each in self._failures.items()}
        routes = [
            route
            for route in self._routes  # with all of their time: those of earlier attempts have less
            if (failure := self._failures.get(route.key)) is not None
            and self._repetitions < route.retries
            and waits[route.key] <= MAX_WAIT_S
            and now + waits[route.key] + jitter_s < failure.not_after
            and self._left_s(route, now + waits[route.key] + jitter_s) > 0
        ]
        if not routes or not self._budgets.spend(self._model):
            return None
        self._repetitions += 1
        route = self._router.in_order(routes, self._affinity)[0]
        wait_s = waits[route.key] + jitter_s
        self._began_at = now + wait_s
        return Step(self._with_time_left(route, self._give_up_at[route.key] - self._began_at), wait_s)

    def _left_s(self, route: Route, begins_at: float) -> float:
        """Return the time that the limit of the whole answer leaves to an attempt that begins then."""
        passed_s = 0.0 if self._first_at is None else begins_at - self._first_at
        return route.target.timeouts.total_ms / 1_000 - passed_s

    def _with_time_left(self, route: Route, first_delta_s: float) -> Route:
        """Return the route with this limit of the first delta. All attempts share the limit of the answer."""
        limits = route.target.timeouts
        total_s = self._left_s(route, self._began_at)
        limits = replace(limits, first_delta_ms=_ms(first_delta_s), total_ms=_ms(total_s))
        return replace(route, target=replace(route.target, timeouts=limits))


def _ms(left_s: float) -> int:
    return max(1, round(left_s * 1_000))
