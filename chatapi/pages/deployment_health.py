"""How each deployment of the catalog fares, judged by the newest requests: a bounded read."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median

from django.urls import reverse

from chatapi.models import Deployment
from chatapi.wire.upstream_errors import REQUEST_REFUSED, REQUEST_TOO_LARGE
from usage.models import Generation, Outcome
from usage.pages.filters import page_url

SAMPLE = 500
"""Requests that are looked at."""
FEW = 5
"""Deployments that are shown even if nobody asked them."""
_COLUMNS = ("model", "deployment", "outcome", "error_message", "attempt_log", "first_token_ms", "admitted_at")
_OF_THE_REQUEST = (REQUEST_REFUSED, REQUEST_TOO_LARGE)
"""What the books keep of errors that are the request's fault."""
_MOODS = {"well": "good", "not asked": "plain", "inactive": "plain", "some errors": "warn", "failing": "bad"}


@dataclass(frozen=True, slots=True)
class DeploymentHealth:
    """One deployment: what it is, and what became of the requests that it was asked for."""

    model: str
    name: str
    engine: str
    state: str
    requests: int
    """Those that it was the last to be asked for; what still runs there counts, too."""
    failed: int
    """Of `requests`. One whose worker was lost is no failure of what it asked."""
    refused: int
    """Of `failed`: the request was wrong, and another deployment would have refused it too."""
    ended: int
    """Of `failed`: we ended them (an operator, a revoked key, a restart, Redis away), whatever the deployment
    did.
    """
    passed_on: int
    """Those that it failed, too, and another deployment was asked for after it."""
    first_token_ms: float | None
    url: str
    requests_url: str
    """The requests that are counted, and those of them that failed."""
    errors_url: str

    broken: int
    """How often it was the deployment that failed."""

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


@dataclass(slots=True)
class _Served:
    """What one deployment was asked for."""

    outcomes: list[str] = field(default_factory=list)
    """An empty one: it still runs."""
    first_tokens_ms: list[int] = field(default_factory=list)
    refused: int = 0
    ended: int = 0
    passed_on: int = 0

    @property
    def failed(self) -> int:
        """How many of the requests."""
        return self.outcomes.count(Outcome.FAILED)

    @property
    def broken(self) -> int:
        """How often it was the deployment that failed, the last to be asked or not."""
        return self.failed - self.refused - self.ended + self.passed_on

    @property
    def state(self) -> str:
        """What to think of it, judged by what has ended: where all wait for a timeout, many still run."""
        ended = sum(outcome != "" for outcome in self.outcomes) + self.passed_on
        if not self.outcomes and not self.passed_on:
            return "not asked"
        if not self.broken:
            return "well"
        return "failing" if 2 * self.broken >= ended else "some errors"


def recent() -> Recent:
    """The deployments by the newest `SAMPLE` requests."""
    newest = list(Generation.objects.order_by("-id").only(*_COLUMNS)[:SAMPLE])
    served = _served(newest)
    times = _times([row.admitted_at for row in newest])
    rows = [_health(row, served[row.model_id, row.name], times) for row in Deployment.objects.all()]
    ordered = sorted(rows, key=lambda row: (-row.broken, -row.requests))
    asked = [row for row in ordered if row.requests or row.passed_on]
    return Recent(ordered[: max(len(asked), FEW)], len(rows), len(newest))


def _served(newest: Sequence[Generation]) -> Mapping[tuple[str, str], _Served]:
    served: dict[tuple[str, str], _Served] = defaultdict(_Served)
    for row in newest:
        last = served[row.model, row.deployment]
        last.outcomes.append(row.outcome)
        attempts = row.attempt_log or ()
        if row.outcome == Outcome.FAILED:
            last.refused += row.error_message in _OF_THE_REQUEST
            last.ended += not (attempts and attempts[-1]["error_code"])
        if row.first_token_ms is not None:
            last.first_tokens_ms.append(row.first_token_ms)
        for attempt in attempts[:-1]:
            served[row.model, attempt["deployment"]].passed_on += 1
    return served


def _times(admitted: Sequence[datetime]) -> dict[str, str]:
    """The part of an address that asks for the requests admitted then, the last among them."""
    if not admitted:
        return {}
    end = max(admitted) + timedelta(microseconds=1)
    return {"start": f"{min(admitted):%Y-%m-%dT%H:%M:%S.%f}", "end": f"{end:%Y-%m-%dT%H:%M:%S.%f}"}


def _health(row: Deployment, served: _Served, times: Mapping[str, str]) -> DeploymentHealth:
    asked = {"model": row.model_id, "deployment": row.name, **times}
    return DeploymentHealth(
        model=row.model_id,
        name=row.name,
        engine=row.engine,
        state=served.state if row.is_active else "inactive",
        requests=len(served.outcomes),
        failed=served.failed,
        refused=served.refused,
        ended=served.ended,
        passed_on=served.passed_on,
        broken=served.broken,
        first_token_ms=median(served.first_tokens_ms) if served.first_tokens_ms else None,
        url=reverse("admin:chatapi_servedmodel_change", args=[row.model_id]),
        requests_url=page_url("requests", asked),
        errors_url=page_url("requests", asked | {"outcome": Outcome.FAILED.value}),
    )
