"""Orders the deployments of a request, and gives it a place at one of them.

The order is by health, room below `max_concurrent`, flakiness, priority, requests in flight, and a draw by
weight. Requests whose prompt an upstream may have cached draw the same (`affinity.py`).
"""

import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

from chatapi.fair_room import FairRoom, Room
from chatapi.wire.deltas import Failed
from chatapi.wire.upstream.upstream_errors import TIMED_OUT
from chatapi.worker.deployments import Route
from chatapi.worker.routing.health import Health

# The longest wait for room at deployments that are all full, and the longest queue of an organization there.
MAX_ROOM_WAIT_S = 5.0
MAX_WAITING_EACH = 32
# The least silence after which a client that leaves is a failure of the deployment.
SILENT_S = 20.0
# A deployment is crowded above `CROWDED` times its share, by weight, of the requests in flight, plus its
# share of `SPARE`.
CROWDED = 2
SPARE = 16


class Place:
    """A request's place at a deployment: it is in flight there until the block ends."""

    def __init__(self, router: "Router", key: str, room: Room | None) -> None:
        self._router, self._key, self._room = router, key, room
        self._began_at = 0.0
        self._has_succeeded = False

    def __enter__(self) -> "Place":
        self._router.in_flight[self._key] += 1
        self._began_at = self._router.health.begin(self._key)
        return self

    def __exit__(self, *_: object) -> None:
        self._router.in_flight[self._key] -= 1
        if self._room is not None:
            self._room.release()

    def succeeded(self) -> None:
        """Report that the deployment answers; only the first call counts."""
        if not self._has_succeeded:
            self._has_succeeded = True
            self._router.health.succeeded(self._key, self._began_at)

    def failed(self, failure: Failed) -> None:
        """Report that the deployment has failed."""
        self._router.health.failed(self._key, self._began_at, failure)

    def abandoned(self, first_delta_ms: int) -> None:
        """Report that the client has left: a deployment that has been silent until then may be hung.

        One with a long `first_delta_ms` may be silent for a sixth of it.
        """
        silent_s = max(SILENT_S, first_delta_ms / 6_000)
        if not self._has_succeeded and time.monotonic() - self._began_at > silent_s:
            self.failed(TIMED_OUT)


class Router:
    """Knows the deployments' health and load, as far as this process causes the load."""

    def __init__(self) -> None:
        self.health = Health()
        self.in_flight: Counter[str] = Counter()
        self._rooms: dict[str, FairRoom] = {}
        self.workers, self.rank = 1, 0

    def know_workers(self, count: int, rank: int) -> None:
        """Learn how many workers share the deployments' room, and the place of this one among them."""
        self.workers, self.rank = max(1, count), rank

    def in_order(self, routes: Sequence[Route], affinity: bytes | None = None) -> list[Route]:
        """Return the routes in the order to ask them.

        Requests of one affinity draw the same order among deployments of one priority, but a crowded one
        comes later.
        """
        if len(routes) < 2:
            return list(routes)
        lightest = min(route.weight for route in routes)
        crowd = math.inf if affinity is None else self._crowd(routes)

        def order(route: Route) -> tuple[bool, bool, bool, int, int, float]:
            # Rounds, in each of which a deployment gets as many requests as its weight says. Within a round
            # the draw decides, so that the weights are the shares also of requests that come one by one.
            rounds = self.in_flight[route.key] * lightest // route.weight
            if affinity is None:
                drawn = random.random()  # noqa: S311  nothing secret
            else:
                drawn = _hashed(affinity, route.key)
                rounds = rounds if self.in_flight[route.key] > crowd * route.weight else 0
            is_unhealthy, is_flaky = not self.health.is_healthy(route.key), self.health.is_flaky(route.key)
            # Efraimidis and Spirakis: u^(1/w) draws without replacement in proportion to the weights. With a
            # hash as u, this is rendezvous hashing.
            last = -(drawn ** (1 / route.weight))
            return is_unhealthy, self.is_full(route), is_flaky, route.priority, rounds, last

        return sorted(routes, key=order)

    def _crowd(self, routes: Sequence[Route]) -> float:
        """Return the requests in flight, for each unit of weight, beyond which a deployment is crowded."""
        best = min(route.priority for route in routes)
        peers = [route for route in routes if route.priority == best]
        in_flight = sum(self.in_flight[route.key] for route in peers)
        return (CROWDED * in_flight + SPARE) / sum(route.weight for route in peers)

    async def place(self, route: Route, organization_id: int) -> Place:
        """Return a place at the deployment, after a short wait if it is full. Raises `NoRoom`."""
        room = self._room(route)
        held = None if room is None else await room.acquire(organization_id)
        return Place(self, route.key, held)

    def is_full(self, route: Route) -> bool:
        """Return whether a request would wait for room at the deployment."""
        room = self._room(route)
        return room is not None and room.is_full

    def _room(self, route: Route) -> FairRoom | None:
        """Return the room at the deployment, in the size of this worker's part; None if it is unlimited."""
        if route.max_concurrent is None:
            return None
        # The parts add up to the whole. With more workers than places, each has one all the same.
        whole, rest = divmod(route.max_concurrent, self.workers)
        units = max(1, whole + (self.rank < rest))
        room = self._rooms.get(route.key)
        if room is None:
            room = self._rooms[route.key] = FairRoom(
                units, units, wait_s=MAX_ROOM_WAIT_S, most_waiting_each=MAX_WAITING_EACH
            )
        room.resize(units)
        return room


def _hashed(affinity: bytes, key: str) -> float:
    """Return a number below 1 that is random, but always the same for these two."""
    digest = blake2b(affinity + key.encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / (1 << 53)
