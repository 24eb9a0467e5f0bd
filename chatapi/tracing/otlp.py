"""Records spans with OpenTelemetry's SDK, and exports them by OTLP over HTTP.

A thread exports in the background. If the collector is away, its queue fills, and further spans are dropped.
"""

import logging
import re
import secrets
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

from django.conf import settings
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from chatapi import __version__, identity
from chatapi.tracing import Attributes, Span

log = logging.getLogger(__name__)

MAX_ATTRIBUTE_CHARACTERS = 256
# W3C's Trace Context, section 3.3.1.5: the length that must at least be passed on.
MAX_HEADER_CHARACTERS = 512
# How long a process that ends may wait for the collector.
CLOSE_S = 2.0
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_METHODS: Final = frozenset({"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"})


class OTLPTracer:
    """The tracer of a web or worker process."""

    def __init__(self, role: str) -> None:
        own = {
            "service.name": "chatapi",
            "service.version": __version__,
            "service.instance.id": identity.process_name(),
            "chatapi.role": role,
        }
        self._provider = TracerProvider(
            sampler=_sampler(trusts_parent=role != "web"),
            # OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME override our own attributes.
            resource=Resource(own).merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,  # `close` does it, for a bounded time
            span_limits=SpanLimits(max_attribute_length=MAX_ATTRIBUTE_CHARACTERS),
        )
        self._provider.add_span_processor(BatchSpanProcessor(_ReportingExporter(OTLPSpanExporter())))
        self._tracer = self._provider.get_tracer("chatapi", __version__)
        # The settings have been read. From here on, the SDK would log each invalid header and each retry.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)

    def begin_request(self, method: str, route: str, headers: Mapping[bytes, bytes], began_ns: int) -> Span:
        """Begin the span of a request; invalid headers are ignored."""
        names = ("traceparent", "tracestate")
        # The SDK passes on 8 KB, for which many servers refuse the request to the upstream.
        sent = {
            name: value.decode("latin-1")
            for name in names
            if len(value := headers.get(name.encode(), b"")) <= MAX_HEADER_CHARACTERS
        }
        method = method if method in _METHODS else "_OTHER"
        path = _template(route)
        attributes = {"http.request.method": method, "http.route": path}
        parent = _PROPAGATOR.extract(sent)
        return self._begin(f"{method} {path}", SpanKind.SERVER, attributes, parent, began_ns)

    def begin_run(self, headers: Mapping[str, str], began_ns: int) -> Span:
        """Begin the span of a run; the headers are those of its request's span."""
        parent = _PROPAGATOR.extract(headers)
        return self._begin("process generations", SpanKind.CONSUMER, {}, parent, began_ns)

    def _begin(
        self, name: str, kind: SpanKind, attributes: Attributes, parent: Context, began_ns: int
    ) -> Span:
        span = self._tracer.start_span(name, parent, kind, attributes, start_time=began_ns)
        return _RecordedSpan(self._tracer, span)

    def close(self) -> None:
        """Export the remaining spans, within `CLOSE_S`."""
        # In a thread: the SDK would wait for up to 40 s.
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_S)


class _RecordedSpan(Span):
    """A span of the SDK."""

    __slots__ = ("_span", "_tracer")

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def headers(self) -> dict[str, str]:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(self._span))
        return carrier

    def begin_child(self, name: str, attributes: Attributes) -> Span:
        parent = trace.set_span_in_context(self._span)
        return _RecordedSpan(self._tracer, self._tracer.start_span(name, parent, SpanKind.CLIENT, attributes))

    def add_event(self, name: str, at_ns: int | None = None) -> None:
        self._span.add_event(name, timestamp=at_ns)

    def end(self, attributes: Attributes, *, is_failed: bool = False) -> None:
        self._span.set_attributes(attributes)
        if is_failed:
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


class _OwnRatio(TraceIdRatioBased):
    """Samples a share of the traces by a random number, not by the trace's id, which a client can choose."""

    def should_sample(
        self, parent_context: Context | None, trace_id: int, *others: Any, **more: Any
    ) -> SamplingResult:
        return super().should_sample(parent_context, secrets.randbits(64), *others, **more)


class _ReportingExporter(SpanExporter):
    """Logs one line when the export begins to fail, and one when it works again."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception:  # a bug of the exporter must not end the thread
            result = SpanExportResult.FAILURE
        is_failing = result is not SpanExportResult.SUCCESS
        if is_failing != self._is_failing:
            self._is_failing = is_failing
            collector = urlsplit(settings.TRACES_ENDPOINT).hostname  # the URL may contain a password
            if is_failing:
                log.warning("traces are lost: the collector at %s does not take them", collector)
            else:
                log.warning("the collector at %s takes traces again", collector)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def _sampler(*, trusts_parent: bool) -> Sampler:
    """Return the sampler of OTEL_TRACES_SAMPLER. A worker trusts the web process's decision."""
    name = settings.TRACES_SAMPLER.removeprefix("parentbased_")
    samplers = {"always_on": ALWAYS_ON, "always_off": ALWAYS_OFF}
    root = samplers[name] if name in samplers else _OwnRatio(float(settings.TRACES_SAMPLER_ARG))
    return ParentBased(root) if trusts_parent or name != settings.TRACES_SAMPLER else root


@cache
def _template(route: str) -> str:
    """Return the route's path: `{name}` replaces each named regular expression."""
    return "/v1/" + re.sub(r"\(\?P<(\w+)>[^)]*\)", r"{\1}", route)
