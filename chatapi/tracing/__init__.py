"""Traces: the steps of one request in the web process, in the worker and at upstreams (docs/tracing.md).

A trace consists of spans: one for the request, below it one for the run, and below that one for each attempt.
Spans contain names of the catalog, codes and numbers, but no content, keys or names of end users. `otlp.py`
records and exports them. Without a collector in the settings it is not imported, and every span is `NO_SPAN`.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from chatapi.tracing.otlp import OTLPTracer

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]


class Span:
    """A part of a trace. This class records nothing."""

    __slots__ = ()

    @property
    def headers(self) -> dict[str, str]:
        """The headers that make another process's spans children of this one: W3C's Trace Context."""
        return {}

    def begin_child(self, name: str, attributes: Attributes) -> "Span":
        """Begin the span of a request to another server."""
        return self

    def add_event(self, name: str, at_ns: int | None = None) -> None:
        """Add an event at this time in Unix nanoseconds, by default now."""

    def end(self, attributes: Attributes, *, is_failed: bool = False) -> None:
        """End the span with these attributes; `is_failed` sets its status to error."""


NO_SPAN: Final = Span()


_tracer: "OTLPTracer | None" = None


@contextmanager
def exporting(role: str) -> Iterator[None]:
    """Export this process's spans while the block runs, if the settings name a collector.

    Raises `ImproperlyConfigured`.
    """
    global _tracer
    if not settings.EXPORTS_TRACES:
        yield
        return
    try:
        from chatapi.tracing.otlp import OTLPTracer  # noqa: PLC0415  without a collector it is not imported

        _tracer = OTLPTracer(role)
    except ValueError as error:
        raise ImproperlyConfigured(f"The traces' settings are not valid: {error}.") from None
    try:
        yield
    finally:
        _tracer.close()
        _tracer = None


def begin_request(method: str, route: str, headers: Mapping[bytes, bytes], took_s: float) -> Span:
    """Begin the span of a client's request that came `took_s` ago, as a child of the client's own span if its
    headers name one. `route` is the regular expression of the path after `/v1/`.
    """
    if _tracer is None:
        return NO_SPAN
    return _tracer.begin_request(method, route, headers, time.time_ns() - round(took_s * 1e9))


def begin_run(headers: Mapping[str, str], took_s: float) -> Span:
    """Begin the span of a run that began `took_s` ago, as a child of the request's span."""
    if _tracer is None:
        return NO_SPAN
    return _tracer.begin_run(headers, time.time_ns() - round(took_s * 1e9))
