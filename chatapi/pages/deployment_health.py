"""How each deployment of the catalog fares, judged by the newest requests: a bounded read."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from django.urls import reverse

from chatapi.models import Deployment
from usage.insights import FAILED
from usage.models import Generation, State

SAMPLE = 500
"""Requests that are looked at."""
FEW = 5
"""Deployments that are shown even if nobody asked them."""
_MOODS = {"well": "good", "not asked": "plain", "inactive": "plain", "some errors": "warn", "failing": "bad"}


@dataclass(frozen=True, slots=True)
class DeploymentHealth:
    """One deployment: what it is, and what became of the requests that it served."""

    model: str
    name: str
    engine: str
    state: str
    requests: int
    failed: int
    first_token_ms: float | None
    url: str

    @property
    def mood(self) -> str:
        """The state's colour."""
        return _MOODS[self.state]


@dataclass(frozen=True, slots=True)
class Recent:
    """The deployments that were asked, or the first few: those that fail first."""

    rows: Sequence[DeploymentHealth]
    count: int
    """Of all deployments."""
    sample_size: int

    @property
    def hidden_count(self) -> int:
        """How many are not among the rows."""
        return self.count - len(self.rows)


def recent() -> Recent:
    """The deployments by the newest `SAMPLE` requests."""
    served: dict[tuple[str, str], list[tuple[bool, int | None]]] = defaultdict(list)
    newest = list(Generation.objects.order_by("-id").values_list("model", "deployment", "state", "outcome", "first_token_ms")[:SAMPLE])
    for model, deployment, state, outcome, first_token_ms in newest:
        if state == State.SETTLED:
            served[model, deployment].append((outcome in FAILED, first_token_ms))
    rows = [_health(row, served[row.model_id, row.name]) for row in Deployment.objects.all()]
    ordered = sorted(rows, key=lambda row: (-row.failed, -row.requests))
    asked = [row for row in ordered if row.requests]
    return Recent(ordered[: max(len(asked), FEW)], len(rows), len(newest))


def _health(row: Deployment, served: Sequence[tuple[bool, int | None]]) -> DeploymentHealth:
    failed = sum(has_failed for has_failed, _ in served)
    times = [ms for _, ms in served if ms is not None]
    url = reverse("admin:chatapi_servedmodel_change", args=[row.model_id])
    state = _state(row.is_active, len(served), failed)
    return DeploymentHealth(row.model_id, row.name, row.engine, state, len(served), failed, median(times) if times else None, url)


def _state(is_active: bool, requests: int, failed: int) -> str:
    if not is_active:
        return "inactive"
    if not requests:
        return "not asked"
    if not failed:
        return "well"
    return "failing" if 2 * failed >= requests else "some errors"
