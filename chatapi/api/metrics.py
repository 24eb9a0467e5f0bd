"""`GET /metrics`: the service's numbers for Prometheus, in its text format and in OpenMetrics.

Money, tokens and requests are read from the books, because a number that a process counts is lost when the
process ends. Numbers that only a process knows (`process_families.py`) are read from Redis, where each
process writes them. Every web process answers the same, so scrape only one. Labels are the names of models,
which operators choose, processes and fixed words; no label identifies a tenant.

The page needs `Authorization: Bearer` with the token in `CHATAPI_METRICS_TOKEN` (RFC 6750); without that
setting it is a 404.
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
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from chatapi.api import notification_families, process_families
from usage import insights
from usage.insights import NEAR_LIMIT, Health, ModelCounters
from usage.pricing import NANODOLLARS
from usage.rollups import refused_requests

log = logging.getLogger(__name__)

# The books are read at most once in this time.
MAX_AGE_S = 1.0
# The number of budgets that are looked at, the fullest first.
MAX_BUDGETS = 1_000


@csrf_exempt  # other methods get 405, not 403 for a missing CSRF token
@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer in the accepted format; 401 without the token, 503 while the books can't be read."""
    if not settings.METRICS_TOKEN:
        raise Http404
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    is_right = hmac.compare_digest(token.strip().encode(), settings.METRICS_TOKEN.encode())
    if scheme.lower() != "bearer" or not is_right:
        return HttpResponse(
            "Send CHATAPI_METRICS_TOKEN as a bearer token.\n",
            status=401,
            content_type="text/plain",
            headers={"WWW-Authenticate": 'Bearer realm="metrics"'},
        )
    encode, content_type = _format(request.headers.get("Accept", ""))
    try:
        return HttpResponse(encode(_books), content_type=content_type)
    except (OperationalError, InterfaceError) as error:
        # Prometheus then takes the target for down, which is right: a missing number is not a zero.
        log.warning("metrics: the database is not available: %s", error)
        return HttpResponse("The database does not answer.\n", status=503, content_type="text/plain")


def _format(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """Return the accepted format and its media type; parameters may be quoted (RFC 9110, section 5.6.6)."""
    try:
        return choose_encoder(accept.replace('"', ""))
    except TypeError:  # a version that is not a number
        return choose_encoder("")


class _Books(Collector):
    """All metrics, at most `MAX_AGE_S` old; concurrent requests share one read of the books."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._newest: list[Metric] = []
        self._read_at = float("-inf")

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            if time.monotonic() - self._read_at >= MAX_AGE_S:
                self._newest = [
                    *_counters(),
                    *_service(),
                    *_budgets(),
                    *notification_families.families(),
                    *process_families.families(),
                ]
                self._read_at = time.monotonic()
            return self._newest


_books = _Books()


def _counters() -> Iterator[Metric]:
    found = insights.counters()
    yield _counter("chatapi_requests", "Requests that have ended, by outcome.", "outcome", found.requests)
    for name, meaning, value in _OF_A_MODEL:
        yield _counter(name, meaning, "model", {model: value(of) for model, of in found.models.items()})
    for name, meaning, label, values in _PARTS_OF_A_MODEL:
        family = CounterMetricFamily(name, meaning, labels=["model", label])
        for model, of in found.models.items():
            for part, amount in values(of).items():
                family.add_metric([model, part], amount)
        yield family
    refusals = refused_requests.key_refusal_totals()
    yield _counter("chatapi_refused_keys", "Requests without a valid key, by reason.", "reason", refusals)


def _counter(name: str, meaning: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(name, meaning, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family


# Zeros are written too: Prometheus sees an increase only in a series that already exists.
_OF_A_MODEL: Sequence[tuple[str, str, Callable[[ModelCounters], float]]] = (
    ("chatapi_model_requests", "Requests that have ended.", lambda of: of.totals.requests),
    ("chatapi_model_failed_requests", "Requests that have failed.", lambda of: of.totals.failed_requests),
    (
        "chatapi_cached_tokens",
        "Input tokens that came from an upstream's cache.",
        lambda of: of.totals.cached_tokens,
    ),
    (
        "chatapi_cache_write_tokens",
        "Input tokens that an upstream wrote to its cache.",
        lambda of: of.totals.cache_write_tokens,
    ),
    ("chatapi_reasoning_tokens", "Output tokens that were reasoning.", lambda of: of.totals.reasoning_tokens),
    (
        "chatapi_charged_dollars",
        "Amount charged at settlement, overages included, in US dollars.",
        lambda of: of.charged_nanodollars / NANODOLLARS,
    ),
    ("chatapi_overages", "Requests that cost more than was held for them.", lambda of: of.overage.count),
    (
        "chatapi_overage_dollars",
        "Amount charged over the reserved amounts, in US dollars.",
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
        "Corrections that raised or lowered the charged amount.",
        "direction",
        lambda of: {"raised": of.corrections.raised, "lowered": of.corrections.lowered},
    ),
    (
        "chatapi_corrected_dollars",
        "Amount by which corrections raised or lowered charges, in US dollars.",
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
    queued_s, overdue_s = health.oldest_late_s or 0.0, max(health.oldest_lease_s or 0.0, 0.0)
    yield GaugeMetricFamily(
        "chatapi_queue_oldest_age_seconds",
        "Seconds that the oldest queued request has waited that is interactive or has used half of its "
        "queue time; 0 if there is none.",
        queued_s,
    )
    yield GaugeMetricFamily(
        "chatapi_lease_overdue_seconds",
        "Seconds since the oldest open lease expired; 0 if none has.",
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
            "chatapi_ledger_differences", "Open differences that checks of the books have found.", found
        )


def _budgets() -> Iterator[Metric]:
    shares = [budget.share for budget in insights.budgets_near_limit(MAX_BUDGETS)]
    near, at = (sum(share >= least for share in shares) for least in (NEAR_LIMIT, 1.0))
    yield GaugeMetricFamily(
        "chatapi_budgets_near_limit", f"Budgets of which {NEAR_LIMIT:.0%} or more is spent or held.", near
    )
    yield GaugeMetricFamily("chatapi_budgets_at_limit", "Budgets of which all is spent or held.", at)
