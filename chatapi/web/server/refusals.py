"""The errors that the server answers by itself, before or instead of the application."""

from dataclasses import dataclass
from http import HTTPStatus

from chatapi import identity
from chatapi.wire.deltas import Failed
from chatapi.wire.protocols import all_key_headers, error_answer
from chatapi.wire.protocols.envelope import ErrorAnswer

PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}

_CODES: dict[int, str] = {
    HTTPStatus.BAD_REQUEST: "invalid_request",
    HTTPStatus.FORBIDDEN: "forbidden",
    HTTPStatus.REQUEST_TIMEOUT: "request_timeout",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.REQUEST_URI_TOO_LONG: "uri_too_long",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "headers_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_exceeded",
    HTTPStatus.INTERNAL_SERVER_ERROR: "internal_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "service_unavailable",
}

_TYPES: dict[int, str] = {HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """One error answer: an HTTP status and a sentence for the client."""

    status: int
    message: str
    retry_after_seconds: int | None = None

    def answer(self, path: str) -> ErrorAnswer:
        """Return the answer in the envelope of the protocol that `path` belongs to."""
        is_ours = self.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        failure = Failed(
            self.message,
            "server_error" if is_ours else _TYPES.get(self.status, "invalid_request_error"),
            _CODES.get(self.status, "internal_error" if is_ours else "invalid_request"),
            status=self.status,
            retry_after_ms=self.retry_after_seconds and self.retry_after_seconds * 1_000,
        )
        return error_answer(path, failure, identity.request_id(None, identity.new_id()).decode())

    def response(self, path: str = "") -> bytes:
        """Return a whole HTTP/1.1 response that announces the end of its connection."""
        answer = self.answer(path)
        lines = [b"HTTP/1.1 %d %s" % (answer.status, PHRASES.get(answer.status, b"Unknown Status"))]
        lines += [b"%s: %s" % header for header in answer.headers]
        return b"\r\n".join([*lines, b"connection: close", b"", answer.body])


BAD_REQUEST = Refusal(HTTPStatus.BAD_REQUEST, "The request is not well-formed HTTP/1.1.")
NOT_HTTPS = Refusal(HTTPStatus.BAD_REQUEST, "This port speaks HTTP, not HTTPS: begin the URL with http://.")
# Routers differ in how they read `//v1`, and this server is no proxy for `http://somewhere/v1` (RFC 9112
# section 3.2).
NOT_A_PATH = Refusal(
    HTTPStatus.BAD_REQUEST, "The request's target must be a path that begins with one slash."
)
# RFC 9112 section 3.2.
NOT_ONE_HOST = Refusal(HTTPStatus.BAD_REQUEST, "The request must have one Host header.")
*_OTHERS, _LAST = all_key_headers()
# Daphne would join the values with a comma.
REPEATED_KEY = Refusal(
    HTTPStatus.BAD_REQUEST, f"The headers {', '.join(_OTHERS)} and {_LAST} may each be sent only once."
)
# RFC 6455 section 4.1.
NOT_A_HANDSHAKE = Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "A WebSocket begins with a GET request.")
CHUNKS_TOO_SMALL = Refusal(
    HTTPStatus.BAD_REQUEST,
    "The request body is sent in chunks that are too small, or with too much between them: "
    "beyond 1,024 chunks they must have 4 bytes on average.",
)
REQUEST_TIMEOUT = Refusal(HTTPStatus.REQUEST_TIMEOUT, "The request took too long to arrive.")
REQUEST_TOO_LARGE = Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The request body is too large.")
# RFC 9112 section 3. The number is Twisted's.
URI_TOO_LONG = Refusal(HTTPStatus.REQUEST_URI_TOO_LONG, "The request line is too long: at most 16,384 bytes.")
# RFC 6585 section 5. The numbers are Twisted's.
HEADERS_TOO_LARGE = Refusal(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    "The request's headers are too large: at most 500 of them, and 16,384 bytes with the request line.",
)
TOO_MUCH_AT_ONCE = Refusal(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "Too many large requests arrive at the same time. Try again in a moment.",
    retry_after_seconds=1,
)
TOO_MUCH_FROM_ADDRESS = Refusal(
    HTTPStatus.TOO_MANY_REQUESTS,
    "Too many large requests from your IP address arrive at the same time.",
    retry_after_seconds=1,
)
TOO_MANY_CONNECTIONS = Refusal(
    HTTPStatus.TOO_MANY_REQUESTS, "Your IP address has too many connections open.", retry_after_seconds=1
)
TOO_MANY_HANDSHAKES = Refusal(
    HTTPStatus.TOO_MANY_REQUESTS, "Your IP address opens WebSockets too often.", retry_after_seconds=10
)
SERVER_FULL = Refusal(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "The server has too many connections. Try again in a moment.",
    retry_after_seconds=1,
)
INTERNAL_ERROR = Refusal(
    HTTPStatus.INTERNAL_SERVER_ERROR, "The server had an error while processing the request."
)
