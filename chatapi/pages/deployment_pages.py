"""Pages about deployments: the outcomes of their newest requests, and a test that calls one.

A test sends one small request (for one token, or for one embedding) to the URL of the saved row. It makes no
generation, hold or ledger entry.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import connection
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from accounts.audit import recorder
from chatapi import upstream_keys
from chatapi.model_kinds import MODEL_KINDS
from chatapi.models import Deployment, ServedModel
from chatapi.wire.completion import Completion
from chatapi.wire.deltas import AnyDelta, Failed, Finished, Started, Usage, Vector
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.upstream.upstream_errors import REQUEST_REFUSED, REQUEST_TOO_LARGE, TIMED_OUT
from chatapi.worker.deployments import target_of
from chatapi.worker.engines import Call, EngineError, Target
from chatapi.worker.runs.run_usage import REFUSED
from usage.models import Generation, Outcome
from usage.pages.filters import words
from usage.pages.links import page_url

# The number of the newest requests by which deployments are judged.
SAMPLE = 500
# The number of deployments that are shown even without traffic.
FEW = 5
_COLUMNS = ("model", "deployment", "outcome", "error_message", "attempt_log", "first_token_ms", "admitted_at")
# The stored messages of errors that are the request's fault; only old rows have `REQUEST_REFUSED`.
_OF_THE_REQUEST = (REFUSED, REQUEST_REFUSED, REQUEST_TOO_LARGE)
_MOODS = {
    "healthy": "good",
    "no traffic": "plain",
    "inactive": "plain",
    "some errors": "warn",
    "failing": "bad",
}
# The time limit of a test, shorter than the deployment's own, because a person waits for the page.
TIMEOUT_S = 20.0
_HINTS = {
    "upstream_unreachable": "Is it running, and can this server reach its base URL?",
    "upstream_disconnected": "Is its base URL that of an OpenAI-compatible server?",
    "upstream_authentication": "Is the deployment's API key one of this upstream?",
    "upstream_credentials_missing": "Enter the API key on the deployment's page, or set its variable for web "
    "and worker.",
    "upstream_model_not_found": "Set the deployment's upstream model to the upstream's name for it.",
    "upstream_invalid_response": "Does its base URL end before /chat/completions, such as in /v1?",
    "upstream_timeout": f"Loading a model can take longer than this test's {TIMEOUT_S:.0f} s.",
    "upstream_rate_limited": "It works, but is at its rate limit now.",
}


def hint(row: Deployment, error: str | None) -> str | None:
    """Return a hint at what an operator can do about the error of a call, or None."""
    if error == "upstream_credentials_missing" and row.api_key_env:
        return f"Set {row.api_key_env} in the environment of web processes and workers, and restart them."
    return _HINTS.get(error or "")


# ---- outcomes of the newest requests


@dataclass(frozen=True, slots=True)
class DeploymentHealth:
    """One deployment, and the outcomes of its requests."""

    model: str
    name: str
    engine: str
    state: str
    requests: int
    """The requests that it answered or was the last to try; open ones count too."""
    failed: int
    """Part of `requests`. A lost worker is not a failure of its deployment."""
    rejected: int
    """Part of `failed`: the request was wrong, and another deployment would have rejected it too."""
    stopped: int
    """Part of `failed`: stopped by us (a revoked key, a restart, a Redis outage)."""
    failed_over: int
    """Requests that it failed and another deployment tried after it."""
    first_token_ms: float | None
    url: str
    requests_url: str
    """The URL of `requests`."""
    errors_url: str
    """The URL of `failed`."""
    broken: int
    """The number of failures that are the deployment's own."""

    @property
    def mood(self) -> str:
        return _MOODS[self.state]


@dataclass(frozen=True, slots=True)
class BusiestDeployments:
    """Deployments with traffic, or the first few; those with the most failures of their own come first."""

    rows: Sequence[DeploymentHealth]
    count: int
    """The number of all deployments."""
    sample_size: int

    @property
    def hidden_count(self) -> int:
        return self.count - len(self.rows)


@dataclass(slots=True)
class _Served:
    """The requests of one deployment."""

    outcomes: list[str] = field(default_factory=list)
    """The outcome of each request; empty for an open one."""
    first_tokens_ms: list[int] = field(default_factory=list)
    rejected: int = 0
    stopped: int = 0
    failed_over: int = 0

    @property
    def failed(self) -> int:
        return self.outcomes.count(Outcome.FAILED)

    @property
    def broken(self) -> int:
        """Return the number of failures that are the deployment's own, its failed-over requests included."""
        return self.failed - self.rejected - self.stopped + self.failed_over

    @property
    def state(self) -> str:
        """Return the state, judged by the requests that have ended."""
        # Open requests do not count: while an upstream hangs, many of them wait for their timeout.
        ended = sum(outcome != "" for outcome in self.outcomes) + self.failed_over
        if not self.outcomes and not self.failed_over:
            return "no traffic"
        if not self.broken:
            return "healthy"
        return "failing" if 2 * self.broken >= ended else "some errors"


@dataclass(frozen=True, slots=True)
class Catalog:
    """The kinds of models by their names, and all deployments; read in one statement."""

    kinds: Mapping[str, str]
    deployments: Sequence[Deployment]

    @classmethod
    def read(cls) -> "Catalog":
        columns = ("name", "engine", "is_active")
        kinds, deployments = {}, []
        rows = ServedModel.objects.order_by("pk", "deployments__priority", "deployments__name").values_list(
            "pk", "kind", *(f"deployments__{column}" for column in columns)
        )
        for model, kind, *deployment in rows:
            kinds[model] = kind
            if deployment[0] is not None:
                deployments.append(Deployment(model_id=model, **dict(zip(columns, deployment, strict=True))))
        return cls(kinds, deployments)


def recent_deployments(deployments: Sequence[Deployment]) -> BusiestDeployments:
    """Return the deployments with the outcomes of the newest `SAMPLE` requests."""
    newest = list(Generation.objects.order_by("-id").only(*_COLUMNS)[:SAMPLE])
    served = _served(newest)
    times = _times([row.admitted_at for row in newest])
    rows = [_health(row, served[row.model_id, row.name], times) for row in deployments]
    ordered = sorted(rows, key=lambda row: (-row.broken, -row.requests))
    asked = [row for row in ordered if row.requests or row.failed_over]
    return BusiestDeployments(ordered[: max(len(asked), FEW)], len(rows), len(newest))


def _served(newest: Sequence[Generation]) -> Mapping[tuple[str, str], _Served]:
    served: dict[tuple[str, str], _Served] = defaultdict(_Served)
    for row in newest:
        last = served[row.model, row.deployment]
        last.outcomes.append(row.outcome)
        attempts = row.attempt_log or ()
        if row.outcome == Outcome.FAILED:
            last.rejected += row.error_message in _OF_THE_REQUEST
            last.stopped += not (attempts and attempts[-1]["error_code"])
        if row.first_token_ms is not None:
            last.first_tokens_ms.append(row.first_token_ms)
        for attempt in attempts[:-1]:
            served[row.model, attempt["deployment"]].failed_over += 1
    return served


def _times(admitted: Sequence[datetime]) -> dict[str, str]:
    """Return the URL parameters of a range that contains all these times of admission."""
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
        rejected=served.rejected,
        stopped=served.stopped,
        failed_over=served.failed_over,
        broken=served.broken,
        first_token_ms=median(served.first_tokens_ms) if served.first_tokens_ms else None,
        url=reverse("admin:chatapi_servedmodel_change", args=[row.model_id]),
        requests_url=page_url("requests", asked),
        errors_url=page_url("requests", asked | {"outcome": Outcome.FAILED.value}),
    )


# ---- the call


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a call. Its texts never contain the key that the upstream was sent."""

    status: int
    """The HTTP status that a client would have got."""
    error: str
    """The error's code; empty if it works."""
    message: str
    text: str
    """The token of the answer or of its reasoning; for an embedding, its description."""
    fingerprint: str
    usage: Usage | None
    """The tokens that the upstream counted, if it reports them."""
    started_ms: float | None
    """The time until the upstream accepted the request with its response's head."""
    first_token_ms: float | None
    total_ms: float

    @property
    def outcome(self) -> str:
        return f"{self.status} {self.error}".strip()


def call(row: Deployment) -> Finding:
    """Call the row's deployment, and wait for the end of its answer, `TIMEOUT_S` at most.

    Blocks; call it in a thread without an event loop.
    """
    answer = asyncio.run(_ask(target_of(row), MODEL_KINDS[row.model.kind].test_request))
    failure = answer.completion.failure
    choice = answer.completion.choice(0)
    texts = [
        (failure.code or failure.type) if failure else "",
        failure.message if failure else "",
        choice.text or choice.reasoning or choice.refusal or answer.vector,
        answer.completion.system_fingerprint or "",
    ]
    # An upstream may repeat the key in its error.
    key = upstream_keys.key_of(row)
    error, message, text, fingerprint = (text.replace(key, "(the key)") if key else text for text in texts)
    status = failure.status if failure else 200
    usage, times = answer.completion.usage, (answer.started_ms, answer.first_token_ms, answer.total_ms)
    return Finding(status, error, message, text, fingerprint, usage, *times)


class _Answer:
    """The answer so far, with its times."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self.completion = Completion()
        self.vector = ""
        """The description of an embedding."""
        self.started_ms: float | None = None
        self.first_token_ms: float | None = None
        self.total_ms = 0.0

    def add(self, delta: AnyDelta) -> None:
        self.completion.add(delta)
        if isinstance(delta, Vector):
            self.vector = f"a vector of {len(delta.values) // 4} dimensions"
        self.total_ms = (time.monotonic() - self._started_at) * 1_000
        if isinstance(delta, Started):
            self.started_ms = self.total_ms
        elif self.first_token_ms is None and not isinstance(delta, Finished | Usage | Failed):
            self.first_token_ms = self.total_ms


async def _ask(target: Target, request: GenerationRequest) -> _Answer:
    # Imported here: the engines import an HTTP client that no other page of the web process needs.
    from chatapi.worker.worker_services import ENGINES  # noqa: PLC0415

    answer, engine = _Answer(), ENGINES[target.engine]()
    try:
        async with (
            asyncio.timeout(TIMEOUT_S),
            aclosing(engine.stream(Call("test", request, target, 1))) as batches,
        ):
            async for batch in batches:
                for delta in batch:
                    answer.add(delta)
    except EngineError as error:
        answer.add(error.failure)
    except TimeoutError:
        answer.add(TIMED_OUT)
    finally:
        await engine.close()
    return answer


# ---- the page of a test


@require_http_methods(["GET", "HEAD", "POST"])
def test_page(request: HttpRequest, deployment_id: int) -> HttpResponse:
    """Show what a test would call; a POST runs it. Requires the permission to change deployments."""
    if not request.user.has_perm("chatapi.change_deployment"):
        raise PermissionDenied
    rows = admin.site.get_model_admin(Deployment).get_queryset(request).select_related("model")
    row = rows.filter(pk=deployment_id).first()
    if row is None:
        raise Http404("There is no such deployment.")
    mistakes = _mistakes(row)
    finding = None
    if request.method == "POST" and not mistakes:
        if not connection.in_atomic_block:
            # Released: other requests may need the connection while the call waits for an upstream.
            connection.close()
        finding = call(row)
        recorder.record("tested", row, {"outcome": [None, finding.outcome]})
    return TemplateResponse(
        request,
        "chatapi/deployment_test.html",
        admin.site.each_context(request) | _context(row, mistakes, finding),
    )


def _mistakes(row: Deployment) -> list[str]:
    """Return the validation errors of the row, which may have been saved without validation."""
    try:
        row.full_clean()
    except ValidationError as error:
        return [f"{words(name)}: {' '.join(texts)}" for name, texts in error.message_dict.items()]
    return []


def _context(row: Deployment, mistakes: list[str], finding: Finding | None) -> dict[str, Any]:
    return {
        "title": "Test a deployment",
        "row": row,
        "mistakes": mistakes,
        "finding": finding,
        "timeout_s": f"{TIMEOUT_S:.0f}",
        # The page shows only whether there is a key.
        "has_key": bool(upstream_keys.key_of(row)),
        "hint": hint(row, finding.error) if finding else None,
    }
