"""An OTLP collector for tests: an HTTP server that decodes the protobuf of every export."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

KINDS = {2: "server", 3: "client", 5: "consumer"}
ERROR = 2


@dataclass(frozen=True)
class ReceivedSpan:
    """A received span."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty for a root."""
    is_error: bool
    took_s: float
    attributes: dict[str, Any]
    events: list[str]
    resource: dict[str, Any]
    trace_state: str


class Receiver:
    """The received exports."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.bodies: list[bytes] = []

    @property
    def spans(self) -> list[ReceivedSpan]:
        return [span for body in list(self.bodies) for span in _spans(body)]

    def of_trace(self, trace_id: str) -> dict[str, ReceivedSpan]:
        """Return the spans of a trace by kind; of several of a kind, the one that came last."""
        return {span.kind: span for span in self.spans if span.trace_id == trace_id}


@contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    """Run a collector on this port, or on a free one."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
            receiver.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        receiver = Receiver(server.server_port)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield receiver
        finally:
            server.shutdown()


def _spans(body: bytes) -> Iterator[ReceivedSpan]:
    for resource_spans in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = _values(resource_spans.resource.attributes)
        for span in (span for scope in resource_spans.scope_spans for span in scope.spans):
            yield ReceivedSpan(
                name=span.name,
                kind=KINDS[span.kind],
                trace_id=span.trace_id.hex(),
                span_id=span.span_id.hex(),
                parent_id=span.parent_span_id.hex(),
                is_error=span.status.code == ERROR,
                took_s=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                attributes=_values(span.attributes),
                events=[event.name for event in span.events],
                resource=resource,
                trace_state=span.trace_state,
            )


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    name = value.WhichOneof("value")
    assert name is not None
    if name == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, name)
