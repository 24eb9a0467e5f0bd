"""How each deployment of the catalog fares, judged by the newest requests: a bounded read."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from django.urls import reverse

from chatapi.models import Deployment
from usage.insights import FAILED
from usage.models import Generation, State
from usage.outcome import ANY_ERROR
from usage.pages.page_query import address

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
    requests_url: str
    """The requests that are counted, and those of them that failed."""
    errors_url: str

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
    columns = ("model", "deployment", "state", "outcome", "first_token_ms", "admitted_at")
    newest = list(Generation.objects.order_by("-id").values_list(*columns)[:SAMPLE])
    for model, deployment, state, outcome, first_token_ms, _ in newest:
        if state == State.SETTLED:
            served[model, deployment].append((outcome in FAILED, first_token_ms))
    times = _times([admitted_at for *_, admitted_at in newest])
    rows = [_health(row, served[row.model_id, row.name], times) for row in Deployment.objects.all()]
    ordered = sorted(rows, key=lambda row: (-row.failed, -row.requests))
    asked = [row for row in ordered if row.requests]
    return Recent(ordered[: max(len(asked), FEW)], len(rows), len(newest))


def _times(admitted: Sequence[datetime]) -> dict[str, str]:
    """The part of an address that asks for the requests admitted then, the last among them."""
    if not admitted:
        return {}
    end = max(admitted) + timedelta(microseconds=1)
    return {"start": f"{min(admitted):%Y-%m-%dT%H:%M:%S.%f}", "end": f"{end:%Y-%m-%dT%H:%M:%S.%f}"}


def _health(row: Deployment, served: Sequence[tuple[bool, int | None]], times: Mapping[str, str]) -> DeploymentHealth:
    failed = sum(has_failed for has_failed, _ in served)
    first_tokens = [ms for _, ms in served if ms is not None]
    asked = {"model": row.model_id, "deployment": row.name, **times}
    return DeploymentHealth(
        model=row.model_id,
        name=row.name,
        engine=row.engine,
        state=_state(row.is_active, len(served), failed),
        requests=len(served),
        failed=failed,
        first_token_ms=median(first_tokens) if first_tokens else None,
        url=reverse("admin:chatapi_servedmodel_change", args=[row.model_id]),
        requests_url=address("requests", asked),
        errors_url=address("requests", asked | {"outcome": ANY_ERROR}),
    )


def _state(is_active: bool, requests: int, failed: int) -> str:
    if not is_active:
        return "inactive"
    if not requests:
        return "not asked"
    if not failed:
        return "well"
    return "failing" if 2 * failed >= requests else "some errors"
