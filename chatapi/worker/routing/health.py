"""Remembers which deployments fail, and asks them last until a probe succeeds.

    healthy ── failures ──► cooling ── time ──► half open ── a probe fails ──► cooling, for twice as long
       ▲                                            │
       └──────────── an attempt succeeds ───────────┘

The state only orders deployments; it never refuses a request. So a client whose requests make an upstream
fail can't take the deployment from others, and a model whose deployments all fail is still tried.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from chatapi.wire.deltas import Failed
from chatapi.wire.upstream.upstream_errors import NOT_NOW

log = logging.getLogger(__name__)

# The weight of the last attempt in a deployment's failure rate, and the rate at which it cools down: after
# three failures in a row, or when about half of the attempts fail.
LAST_ATTEMPT = 0.2
MAX_FAILURE_RATE = 0.45
# Above this failure rate, after two failures in a row for instance, a deployment is flaky: others come before
# it, except for one request every REST_S.
FLAKY_RATE = 0.25
REST_S = 20.0
# The first cool-down; each further one is twice as long, up to the maximum.
COOL_DOWN_S = 2.0
MAX_COOL_DOWN_S = 30.0
# The longest cool-down by `Retry-After`.
MAX_REQUESTED_COOL_DOWN_S = 60.0
# Every PROBE_S seconds, one of all workers is granted a probe of a half-open deployment. It may send it
# later.
PROBE_S = 2.0
# Without an exchange with the other workers for this long, a worker grants itself the probes.
ALONE_AFTER_S = 3.0


@dataclass(frozen=True, slots=True)
class CoolDown:
    """A cool-down as workers share it."""

    left_s: float
    """The time until it ends; 0 or less if it has ended."""
    number: int
    """The number of cool-downs without a successful attempt between them, this one included."""
    may_probe: bool = False
    """Whether this worker may send the next probe."""


@dataclass(slots=True)
class _Deployment:
    failure_rate: float = 0.0
    cool_downs: int = 0
    """The number of cool-downs since the last successful attempt."""
    cooled_at: float = float("-inf")
    cools_until: float = float("-inf")
    may_probe: bool = False
    asked_at: float = float("-inf")
    """When the last attempt began, if one has failed before."""


class Health:
    """The health of the deployments, by `Route.key`, as this process knows it."""

    def __init__(self) -> None:
        self._deployments: dict[str, _Deployment] = {}
        self._changes: dict[str, CoolDown | None] = {}
        self._exchanged_at = float("-inf")

    def is_healthy(self, key: str) -> bool:
        """Return whether the deployment may get requests: it is not cooling, or this worker may probe it."""
        known = self._deployments.get(key)
        if known is None or not known.cool_downs:
            return True
        now = time.monotonic()
        if now < known.cools_until:
            return False
        is_alone = now - self._exchanged_at > ALONE_AFTER_S
        return known.may_probe or (is_alone and now - known.asked_at >= PROBE_S)

    def is_flaky(self, key: str) -> bool:
        """Return whether attempts fail so often that others should be asked before the deployment.

        During and after a cool-down, `is_healthy` alone decides.
        """
        known = self._deployments.get(key)
        if known is None or known.cool_downs or known.failure_rate <= FLAKY_RATE:
            return False
        return time.monotonic() - known.asked_at < REST_S

    def begin(self, key: str) -> float:
        """Return the time at which an attempt begins; if the deployment is half open, this is its probe."""
        now = time.monotonic()
        known = self._deployments.get(key)
        if known is not None:
            known.may_probe, known.asked_at = False, now
        return now

    def succeeded(self, key: str, began_at: float) -> None:
        """Count an attempt that was answered."""
        known = self._deployments.get(key)
        if known is None:
            return
        known.failure_rate *= 1 - LAST_ATTEMPT
        # An attempt that began before the cool-down says nothing about the time since.
        if known.cool_downs and began_at > known.cooled_at:
            del self._deployments[key]
            self._changes[key] = None
            log.info("deployment %s answers again", key)

    def failed(self, key: str, began_at: float, failure: Failed) -> None:
        """Count an attempt that failed; begin a cool-down if it is time for one."""
        known = self._deployments.setdefault(key, _Deployment())
        known.failure_rate += LAST_ATTEMPT * (1 - known.failure_rate)
        now = time.monotonic()
        if known.cool_downs:
            is_due = now >= known.cools_until and began_at > known.cooled_at
        else:
            is_due = failure.code in NOT_NOW or known.failure_rate > MAX_FAILURE_RATE
        if not is_due:
            return
        # The number of cool-downs is unbounded, and no float holds 2**1024.
        left_s = min(COOL_DOWN_S * 2 ** min(known.cool_downs, 10), MAX_COOL_DOWN_S)
        if failure.retry_after_ms is not None:
            left_s = min(max(left_s, failure.retry_after_ms / 1_000), MAX_REQUESTED_COOL_DOWN_S)
        known.cool_downs += 1
        known.cooled_at, known.cools_until, known.may_probe = now, now + left_s, False
        self._changes[key] = CoolDown(left_s, known.cool_downs)
        log.warning("deployment %s cools down for %.0f s: %s", key, left_s, failure.code)

    def take_changes(self) -> dict[str, CoolDown | None]:
        """Return the cool-downs that have begun here since the last call, and None where one has ended."""
        changes, self._changes = self._changes, {}
        return changes

    def restore_changes(self, changes: Mapping[str, CoolDown | None]) -> None:
        """Keep changes that could not be shared for the next time, except where there are later ones."""
        self._changes = {**changes, **self._changes}

    def merge(self, shared: Mapping[str, CoolDown]) -> None:
        """Take over the cool-downs that all workers share; what has changed here since is newer."""
        now = self._exchanged_at = time.monotonic()
        for key, known in list(self._deployments.items()):
            if known.cool_downs and key not in shared and key not in self._changes:
                del self._deployments[key]
        for key, cool_down in shared.items():
            if key in self._changes:
                continue
            known = self._deployments.setdefault(key, _Deployment())
            if known.cool_downs != cool_down.number:
                known.cooled_at, known.may_probe = now, False
            known.cool_downs, known.cools_until = cool_down.number, now + cool_down.left_s
            known.may_probe = known.may_probe or cool_down.may_probe
