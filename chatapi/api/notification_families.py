"""The part of `/metrics` about events that wait, and about deliveries and webhook endpoints that fail."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from chatapi.notifications import backlog
from usage.database.clock import database_now


def families() -> Iterator[Metric]:
    """Yield the metrics. Labels are fixed words, and each statement reads a bounded number of rows."""
    now, event = database_now(), backlog.oldest_event()
    yield GaugeMetricFamily(
        "chatapi_events_oldest_age_seconds",
        "How long the oldest event waits for a reaper; 0: none does.",
        (now - event).total_seconds() if event else 0.0,
    )
    deliveries = GaugeMetricFamily(
        "chatapi_deliveries", "Deliveries of events that have not arrived.", labels=["kind", "state"]
    )
    oldest = GaugeMetricFamily(
        "chatapi_delivery_oldest_age_seconds",
        "How long the oldest delivery has not arrived; 0: none waits.",
        labels=["kind"],
    )
    for kind, of_kind in backlog.deliveries(now).items():
        for state in ("waiting", "retrying", "failed"):
            deliveries.add_metric([kind, state], getattr(of_kind, state))
        begun_at = of_kind.oldest_begun_at
        oldest.add_metric([kind], (now - begun_at).total_seconds() if begun_at else 0.0)
    yield from (deliveries, oldest)
    endpoints = GaugeMetricFamily("chatapi_webhook_endpoints", "Webhook endpoints.", labels=["state"])
    found = backlog.endpoints()
    for state in ("working", "failing", "disabled"):
        endpoints.add_metric([state], getattr(found, state))
    yield endpoints
