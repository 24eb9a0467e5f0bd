"""`GET /metrics`: the service's numbers for Prometheus, in its text format and in OpenMetrics.

Every number is read from the books when it is asked for: processes come and go, and none of them counts
anything that would be lost with it. So each web process answers the same, and one of them is asked. Labels
are names that operators have made up (`model`, of what the catalog has served; a client can't add one) and
our own words; nothing tells tenants apart.

`Authorization: Bearer` and the token in `CHATAPI_METRICS_TOKEN` open it (RFC 6750); without that setting
there is no such page.
"""

import hmac
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock

from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from chatapi.api.reading import only_read
from usage import insights
from usage.insights import NEAR_LIMIT, Health, ModelCounters
from usage.pricing import NANODOLLARS

log = logging.getLogger(__name__)

KEEP_S = 1.0
"""How old numbers may be: however many ask, the books are read once in this time."""
MAX_BUDGETS = 1_000
"""Budgets that are counted, the fullest first."""


@only_read
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """The numbers in the format that is accepted; 401 without the token, 404 where there is none, 503 while
    the books can't be read.
    """
    if not settings.METRICS_TOKEN:
        raise Http404
    if not _has_token(request):
        return HttpResponse(
            "Send the token.\n",
            status=401,
            content_type="text/plain",
            headers={"WWW-Authenticate": 'Bearer realm="metrics"'},
        )
    encode, content_type = _format(request.headers.get("Accept", ""))
    try:
        return HttpResponse(encode(_books), content_type=content_type)
    except (OperationalError, InterfaceError) as error:
        # To Prometheus the target is down, as it should be: numbers that are missing are no zeros.
        log.warning("metrics: the database is not available: %s", error)
        return HttpResponse("The database does not answer.\n", status=503, content_type="text/plain")


def _has_token(request: HttpRequest) -> bool:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(
        token.strip().encode(), settings.METRICS_TOKEN.encode()
    )


def _format(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """How to write them for who accepts that, and its name. A parameter may be quoted (RFC 9110, section
    5.6.6).
    """
    try:
        return choose_encoder(accept.replace('"', ""))
    except TypeError:  # a version that is no number, as a draft's
        return choose_encoder("")


class _Books(Collector):
    """All metrics, read by whoever asks first; who asks meanwhile or shortly after gets the same."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._newest: list[Metric] = []
        self._read_at = float("-inf")

    def collect(self) -> Iterable[Metric]:
        """The metrics, at most `KEEP_S` old."""
        with self._lock:
            if time.monotonic() - self._read_at >= KEEP_S:
                self._newest = [*_counters(), *_service(), *_budgets()]
                self._read_at = time.monotonic()
            return self._newest


_books = _Books()


def _counters() -> Iterator[Metric]:
    found = insights.counters()
    requests = CounterMetricFamily(
        "chatapi_requests", "Requests that have ended, by how.", labels=["outcome"]
    )
    for outcome, number in found.requests.items():
        requests.add_metric([outcome], number)
    yield requests
    for name, meaning, value in _OF_A_MODEL:
        family = CounterMetricFamily(name, meaning, labels=["model"])
        for model, of in found.models.items():
            family.add_metric([model], value(of))
        yield family
    for name, meaning, label, values in _PARTS_OF_A_MODEL:
        family = CounterMetricFamily(name, meaning, labels=["model", label])
        for model, of in found.models.items():
            for part, amount in values(of).items():
                family.add_metric([model, part], amount)
        yield family


# Those that are still zero are there too: an increase can only be seen of what was there before.
_OF_A_MODEL: Sequence[tuple[str, str, Callable[[ModelCounters], float]]] = (
    ("chatapi_model_requests", "Requests that have ended.", lambda of: of.totals.requests),
    ("chatapi_model_failed_requests", "Requests that have failed.", lambda of: of.totals.failed_requests),
    (
        "chatapi_cached_tokens",
        "Input tokens that came from an upstream's cache.",
        lambda of: of.totals.cached_tokens,
    ),
    ("chatapi_reasoning_tokens", "Output tokens that were reasoning.", lambda of: of.totals.reasoning_tokens),
    (
        "chatapi_charged_dollars",
        "What was charged, overages included, in US dollars.",
        lambda of: of.charged_nanodollars / NANODOLLARS,
    ),
    ("chatapi_overages", "Requests that cost more than was held for them.", lambda of: of.overage.count),
    (
        "chatapi_overage_dollars",
        "What was charged beyond holds, in US dollars.",
        lambda of: of.overage.nanodollars / NANODOLLARS,
    ),
)
_PARTS_OF_A_MODEL: Sequence[tuple[str, str, str, Callable[[ModelCounters], Mapping[str, float]]]] = (
    (
        "chatapi_tokens",
        "Tokens of prompts (input) and of completions (output).",
        "kind",
        lambda of: {"input": of.totals.prompt_tokens, "output": of.totals.completion_tokens},
    ),
    (
        "chatapi_corrections",
        "Corrections that raised or lowered what was charged.",
        "direction",
        lambda of: {"raised": of.corrections.raised, "lowered": of.corrections.lowered},
    ),
    (
        "chatapi_corrected_dollars",
        "By how much corrections raised or lowered what was charged, in US dollars.",
        "direction",
        lambda of: {
            "raised": of.corrections.raised_nanodollars / NANODOLLARS,
            "lowered": of.corrections.lowered_nanodollars / NANODOLLARS,
        },
    ),
)


def _service() -> Iterator[Metric]:
    health = insights.health()
    in_flight = GaugeMetricFamily(
        "chatapi_generations_in_flight", "Generations that wait for a worker or run.", labels=["state"]
    )
    in_flight.add_metric(["queued"], health.queue_depth)
    in_flight.add_metric(["running"], health.running)
    yield in_flight
    queued_s, overdue_s = health.oldest_queued_s or 0.0, max(health.oldest_lease_s or 0.0, 0.0)
    yield GaugeMetricFamily(
        "chatapi_queue_oldest_age_seconds", "How long the oldest one waits; 0: none does.", queued_s
    )
    yield GaugeMetricFamily(
        "chatapi_lease_overdue_seconds",
        "How long ago the oldest lease ended that is open; 0: none has.",
        overdue_s,
    )
    yield from _ledger(health)


def _ledger(health: Health) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "chatapi_ledger_unsealed_entries", "Ledger entries that wait for a seal.", health.unsealed_entries
    )
    if health.last_sealed_at is not None:
        sealed_at = health.last_sealed_at.timestamp()
        yield GaugeMetricFamily(
            "chatapi_ledger_last_seal_timestamp_seconds", "When the newest seal was made.", sealed_at
        )
    if health.last_check is not None:
        checked_at = health.last_check.checked_at.timestamp()
        yield GaugeMetricFamily(
            "chatapi_ledger_last_check_timestamp_seconds", "When the books were checked last.", checked_at
        )
        found = health.last_check.differences
        yield GaugeMetricFamily(
            "chatapi_ledger_differences", "What checks have found and no later one has found resolved.", found
        )


def _budgets() -> Iterator[Metric]:
    shares = [budget.share for budget in insights.budgets_near_limit(MAX_BUDGETS)]
    near, at = (sum(share >= least for share in shares) for least in (NEAR_LIMIT, 1.0))
    yield GaugeMetricFamily(
        "chatapi_budgets_near_limit", f"Budgets of which {NEAR_LIMIT:.0%} or more is spent or held.", near
    )
    yield GaugeMetricFamily("chatapi_budgets_at_limit", "Budgets of which all is spent or held.", at)
