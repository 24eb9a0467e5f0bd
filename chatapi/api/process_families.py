"""The part of `/metrics` that each process counts by itself and writes to Redis (`process_metrics.py`)."""

import asyncio
import logging
from collections.abc import Iterator, Mapping

from django.conf import settings
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from redis.exceptions import RedisError

from accounts.loop_clock import REPLY_TIMEOUT_S
from accounts.redis_urls import shared_url, stream_urls
from chatapi import process_metrics
from chatapi.process_metrics import Counter, Histogram, Snapshot
from chatapi.redis_client import connect_from_thread
from chatapi.redis_servers import servers_away

log = logging.getLogger(__name__)

LABELS = ["role", "process"]


def families() -> Iterator[Metric]:
    """Yield which servers answer and, if Redis answers, the metrics of the living processes."""
    yield from _servers()
    try:
        with connect_from_thread(shared_url()) as redis:
            living = process_metrics.read(redis, settings.REDIS_KEY_PREFIX)
    except RedisError as error:
        log.warning("metrics: Redis is not available: %s", error)
        return
    for gauge in process_metrics.GAUGES:
        kind = CounterMetricFamily if gauge.only_grows else GaugeMetricFamily
        family = kind(gauge.name, gauge.meaning, labels=LABELS)
        for process, snapshot in living.items():
            if (value := snapshot.gauges.get(gauge.name)) is not None:
                family.add_metric([snapshot.role, process], value)
        yield family
    for counter in process_metrics.COUNTERS:
        yield _counter(counter, living)
    for histogram in process_metrics.HISTOGRAMS:
        yield _histogram(histogram, living)


def _servers() -> Iterator[GaugeMetricFamily]:
    # A view runs in a thread without an event loop.
    away = asyncio.run(servers_away(REPLY_TIMEOUT_S))
    yield GaugeMetricFamily(
        "chatapi_broker_up",
        "1 if the server of CHATAPI_BROKER_URL answers.",
        settings.BROKER_URL not in away,
    )
    family = GaugeMetricFamily(
        "chatapi_stream_server_up",
        "1 if the streams server answers, by its number in CHATAPI_STREAMS_URL.",
        labels=["server"],
    )
    for number, url in enumerate(stream_urls()):
        family.add_metric([str(number)], url not in away)
    yield family


def _counter(counter: Counter, living: Mapping[str, Snapshot]) -> CounterMetricFamily:
    family = CounterMetricFamily(counter.name, counter.meaning, labels=[*LABELS, *counter.labels])
    for process, snapshot in living.items():
        for values, number in snapshot.counters.get(counter.name, {}).items():
            family.add_metric([snapshot.role, process, *values.split(" ")], number)
    return family


def _histogram(histogram: Histogram, living: Mapping[str, Snapshot]) -> HistogramMetricFamily:
    own = [histogram.label] if histogram.label else []
    family = HistogramMetricFamily(histogram.name, histogram.meaning, labels=[*LABELS, *own])
    for process, snapshot in living.items():
        for label, row in snapshot.histograms.get(histogram.name, {}).items():
            if (found := process_metrics.buckets(histogram, row)) is not None:
                family.add_metric([snapshot.role, process, *([label] if own else [])], *found)
    return family
