"""Errors as HTTP answers: OpenAI's envelope, and the headers that all protocols share."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from chatapi.wire.deltas import Failed
from chatapi.wire.upstream.upstream_errors import QUOTA_TOO_SMALL, STOPPED

Header = tuple[bytes, bytes]


def whole_headers(media_type: str) -> tuple[Header, ...]:
    """Return the headers of an answer that is no stream."""
    return (b"content-type", media_type.encode()), (b"cache-control", b"no-store")


JSON_HEADERS: Final = whole_headers("application/json")
STREAM_HEADERS: Final[tuple[Header, ...]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)
NO_RETRY: Final[Header] = (b"x-should-retry", b"false")
# Errors that a retry does not help, though SDKs retry some of their statuses.
_FINAL = {"insufficient_quota", "model_not_priced", QUOTA_TOO_SMALL.code, STOPPED.code, "cancelled"}

# The parameter that a path begins with.
_TOP: Final = re.compile(r"[^.\[]*")
# The end of an answer that has a usage, but not the end of each choice: its log is damaged.
END_LOST: Final = Failed(
    "The end of the answer is lost. What was generated is charged; see the receipt.",
    code="stream_unavailable",
    status=503,
)


class ErrorAnswer(NamedTuple):
    """A failure as an HTTP answer. The caller adds `content-length` and the headers with the answer's ids."""

    status: int
    headers: tuple[Header, ...]
    body: bytes


def retry_headers(failure: Failed) -> list[Header]:
    """Return the headers for the failure: when to retry, whether SDKs should, and the challenge of a 401."""
    found: list[Header] = []
    if failure.retry_after_ms is not None:
        found.append((b"retry-after", b"%d" % -(-failure.retry_after_ms // 1_000)))
        found.append((b"retry-after-ms", b"%d" % failure.retry_after_ms))
    if failure.code in _FINAL or (failure.code == "rate_limit_exceeded" and failure.retry_after_ms is None):
        found.append(NO_RETRY)
    if failure.status == 401:
        found.append((b"www-authenticate", b"Bearer"))
    return found


def renamed(failure: Failed, names: Mapping[str, str]) -> Failed:
    """Return an upstream's refusal with the client's own name of the parameter (`Protocol.parameter_names`).

    Only the parameter is named: the path below it is one in the upstream's request.
    """
    param = failure.param or ""
    name = names.get(_TOP.match(param)[0])  # type: ignore[index]  # the pattern matches any text
    # A name that came twice is the client's own, and may be one inside of a parameter.
    if name is None or failure.code == "duplicate_parameter":
        return failure
    message = failure.message.replace(f"'{param}'", f"'{name}'")
    return msgspec.structs.replace(failure, param=name, message=message)


def openai_error_body(failure: Failed) -> bytes:
    """Return OpenAI's error envelope (`ErrorResponse`), for an HTTP body or an event of a stream."""
    error = {"message": failure.message, "type": failure.type, "param": failure.param, "code": failure.code}
    return msgspec.json.encode({"error": error})


def openai_error(failure: Failed, *, request_id: str = "", is_invalid_stream: bool = False) -> ErrorAnswer:
    """Return the failure with OpenAI's envelope; see `protocol.Envelope`."""
    headers = (*JSON_HEADERS, *retry_headers(failure))
    return ErrorAnswer(failure.status, headers, openai_error_body(failure))
