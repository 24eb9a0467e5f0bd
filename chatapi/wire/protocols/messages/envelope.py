"""Errors of Messages (Anthropic's API reference, "Errors")."""

from datetime import datetime
from typing import Any, Final

import msgspec

from chatapi.wire.deltas import Failed
from chatapi.wire.protocols.envelope import JSON_HEADERS, ErrorAnswer, Header, renamed, retry_headers

# Anthropic's clients show it as overload and retry it; they would not do so with a 503.
OVERLOADED: Final = 529
# Anthropic's words for a full context: they make Claude Code compact the conversation.
_FULL_CONTEXT: Final = ("prompt is too long", "exceed context limit")
# Anthropic refuses an address that is not on an allowlist with a 403 `permission_error`; OpenAI with a 401.
_IP_NOT_AUTHORIZED: Final = "ip_not_authorized"
_TYPES: Final = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


# See `Protocol.parameter_names`.
PARAMETER_NAMES: Final = {
    "max_completion_tokens": "max_tokens",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
    "user": "metadata.user_id",
}


def error_document(failure: Failed, request_id: str) -> dict[str, Any]:
    """Return the error, for an HTTP body or an event of a stream; `error_code` is ours."""
    usual = "api_error" if failure.status >= 500 else "invalid_request_error"
    failure = renamed(failure, PARAMETER_NAMES)
    message = failure.message
    # Anthropic's errors have no other place for it.
    if failure.param and failure.param not in message:
        message = f"{failure.param}: {message}"
    if failure.code == "context_length_exceeded" and not any(
        words in message.lower() for words in _FULL_CONTEXT
    ):
        message = f"{_FULL_CONTEXT[0]}: {message}"
    error: dict[str, Any] = {"type": _TYPES.get(failure.status, usual), "message": message}
    if failure.code is not None:
        error["details"] = {"error_code": failure.code}
    return {"type": "error", "error": error, "request_id": request_id}


def envelope(failure: Failed, *, request_id: str = "", is_invalid_stream: bool = False) -> ErrorAnswer:
    """Return the failure as an HTTP answer; see `protocol.Envelope`."""
    if failure.status == 401 and failure.code == _IP_NOT_AUTHORIZED:
        failure = msgspec.structs.replace(failure, status=403)
    status = OVERLOADED if failure.status == 503 else failure.status
    headers = (*JSON_HEADERS, *retry_headers(failure))
    return ErrorAnswer(status, headers, msgspec.json.encode(error_document(failure, request_id)))


def limit_headers(counts: str, most: int, remaining: int, reset_at: datetime) -> list[Header]:
    """Return the headers about a rate limit; see `protocol.LimitHeaders`.

    Anthropic also limits input and output separately. Here one limit counts both, so it bounds each of them.
    """
    kinds = ("tokens", "input-tokens", "output-tokens") if counts == "tokens" else (counts,)
    figures = {
        "limit": str(most),
        "remaining": str(remaining),
        "reset": f"{reset_at:%Y-%m-%dT%H:%M:%SZ}",
    }
    return [
        (f"anthropic-ratelimit-{kind}-{name}".encode(), value.encode())
        for kind in kinds
        for name, value in figures.items()
    ]
