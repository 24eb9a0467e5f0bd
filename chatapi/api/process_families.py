"""The part of `/metrics` that each process counts by itself and writes to Redis (`process_metrics.py`)."""

import asyncio
import logging
from collections.abc import Iterator, Mapping

from django.conf import settings
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from redis.exceptions import RedisError

from accounts.redis_urls import shared_url
from chatapi import process_metrics
from chatapi.process_metrics import Counter, Histogram, Snapshot
from chatapi.redis_client import connect_from_thread
from chatapi.redis_servers import stream_servers

log = logging.getLogger(__name__)

LABELS = ["role", "process"]


def families() -> Iterator[Metric]:
    """Yield the metrics of the living processes, nothing while Redis is away; and what servers answer."""
    yield _stream_servers()
    try:
        with connect_from_thread(shared_url()) as redis:
            living = process_metrics.read(redis, settings.REDIS_KEY_PREFIX)
    except (RedisError, OSError) as error:
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


def _stream_servers() -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "chatapi_stream_server_up",
        "1 if the streams server answers, by its number in CHATAPI_STREAMS_URL.",
        labels=["server"],
    )
    # A view runs in a thread without an event loop.
    for number, is_answering in enumerate(asyncio.run(_answering_streams())):
        family.add_metric([str(number)], is_answering)
    return family


async def _answering_streams() -> list[bool]:
    async with stream_servers() as servers:
        return await asyncio.gather(*(each.is_answering() for each in servers))


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
