"""What clients are told when something is wrong: domain words in, one API error out.

Each function returns an `APIError`; nobody builds an error envelope by hand. The status and type/code pairs
are OpenAI's where it has them (errors are read by its SDKs), ours where it has none.
"""

from collections.abc import Callable
from typing import Any

from accounts.errors import KeyMissing, NotAuthenticated, PermissionDenied, RateLimited, TooManyFailedAttempts
from accounts.limits import duration
from chatapi.wire.deltas import Failed
from chatapi.wire.dialects import DIALECTS, UnknownDialect
from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.protocols import envelope
from usage.errors import AlreadyAdmitted, BudgetExceeded, DatabaseUnavailable, NotPriced
from usage.pricing import to_usd

INVALID = "invalid_request_error"
RETRY_SOON_MS = 1_000
NO_RETRY = envelope.NO_RETRY
headers = envelope.retry_headers


class APIError(Exception):
    """An error with its HTTP status, as a client is told it."""

    def __init__(self, failure: Failed) -> None:
        super().__init__(failure.message)
        self.failure = failure


def from_exception(error: Exception) -> APIError:
    """The API error for anything that a request can raise; what is not foreseen is a 500 that tells nothing."""
    if isinstance(error, APIError):
        return error
    told = _TOLD.get(type(error))
    return internal_error() if told is None else APIError(told(error))


def not_authenticated(message: str = "Incorrect API key provided.") -> APIError:
    """401, the same for whatever is wrong with a key."""
    return APIError(
        Failed(
            f"{message} Send a valid key as 'Authorization: Bearer <key>'.",
            INVALID,
            "invalid_api_key",
            status=401,
        )
    )


def invalid_ticket() -> APIError:
    """401 for a ticket that is unknown, used or expired: which of them is nobody's business."""
    message = "This ticket does not exist, was used already or has expired. POST the request to /v1/chat/completions/tickets for a new one."
    return APIError(Failed(message, INVALID, "invalid_ticket", "ticket", 401))


def too_many_tickets(most_bytes: int, retry_after_ms: int) -> APIError:
    """429: a key's tickets that nobody has used yet."""
    message = (
        f"Too many unused tickets of your API key: their requests may have {most_bytes} bytes together. "
    )
    message += f"Try again in {duration(retry_after_ms)}."
    return APIError(
        Failed(message, "rate_limit_error", "rate_limit_exceeded", status=429, retry_after_ms=retry_after_ms)
    )


def model_not_found(model: str) -> APIError:
    """404 as OpenAI tells it."""
    message = f"The model '{model}' does not exist or you do not have access to it. GET /v1/models lists the models you can use."
    return APIError(Failed(message, INVALID, "model_not_found", "model", 404))


def model_not_allowed(model: str) -> APIError:
    """403 for what the key's list of models leaves out, whether there is such a model or not."""
    message = f"Your API key may not use the model '{model}'. GET /v1/models lists the models it may use."
    return APIError(Failed(message, INVALID, "model_not_allowed", "model", 403))


def generation_not_found() -> APIError:
    """404, the same for an id that there is not and for another tenant's."""
    return APIError(
        Failed("There is no generation with this id.", INVALID, "generation_not_found", "id", 404)
    )


def stream_expired() -> APIError:
    """410: the generation has ended, and its stream is not kept any more."""
    message = "This generation's stream is not kept any more. GET /v1/generations/{id} has its receipt."
    return APIError(Failed(message, INVALID, "stream_expired", status=410))


def unavailable(message: str) -> APIError:
    """503: a part of the service is away for the moment."""
    return APIError(
        Failed(message, "server_error", "service_unavailable", status=503, retry_after_ms=RETRY_SOON_MS)
    )


def internal_error() -> APIError:
    """500, without a word about the inside."""
    return APIError(
        Failed(
            "The server had an error while processing your request.",
            "server_error",
            "internal_error",
            status=500,
        )
    )


def not_found(path: str) -> APIError:
    """404 for a route that there is not."""
    return APIError(
        Failed(f"Invalid URL ({path}). See /docs for the routes.", INVALID, "unknown_url", status=404)
    )


def method_not_allowed(method: str, allowed: str) -> APIError:
    """405; the caller also sends `Allow`."""
    return APIError(
        Failed(f"{method} is not allowed here. Use {allowed}.", INVALID, "method_not_allowed", status=405)
    )


def body_too_large(message: str = "The request body is too large.") -> APIError:
    """413."""
    return APIError(Failed(message, INVALID, "request_too_large", status=413))


def too_many_refused_bytes(retry_after_ms: int) -> APIError:
    """429 for a key whose large requests were refused again and again."""
    message = f"Too many large requests of your API key were refused. Try again in {duration(retry_after_ms)}, or send smaller ones."
    return APIError(
        Failed(message, "rate_limit_error", "rate_limit_exceeded", status=429, retry_after_ms=retry_after_ms)
    )


def unsupported_media_type() -> APIError:
    """415."""
    message = "Send the body with one header 'Content-Type: application/json'."
    return APIError(Failed(message, INVALID, "unsupported_media_type", status=415))


def unsupported_content_coding(coding: str) -> APIError:
    """415 for a compressed body (RFC 9110, 8.4); the caller also sends `Accept-Encoding: identity`."""
    message = f"Content-Encoding: {coding} is not accepted. Send the body uncompressed."
    return APIError(Failed(message, INVALID, "unsupported_media_type", "Content-Encoding", 415))


def _budget_exceeded(error: BudgetExceeded) -> Failed:
    if error.is_credit:
        return _credit_exceeded(error)
    scope, _, period, _ = error.budget_id.split("/")
    of = {"organization": "organization's", "project": "project's", "key": "API key's"}[scope]
    budget = f"Your {of} budget {'' if period == 'ever' else f'of this {period} '}"
    if error.is_in_flight:
        message = f"{budget}is held by requests that are still running. Try again when they have ended."
        return Failed(
            message, "rate_limit_error", "budget_in_flight", status=429, retry_after_ms=RETRY_SOON_MS
        )
    return _insufficient(f"{budget}has no room for what this request can cost: {_lacking(error)}")


def _credit_exceeded(error: BudgetExceeded) -> Failed:
    if error.is_in_flight:
        message = "Your organization's prepaid credit is held by requests that are still running. Try again when they have ended."
        return Failed(
            message, "rate_limit_error", "budget_in_flight", status=429, retry_after_ms=RETRY_SOON_MS
        )
    return _insufficient(
        f"Your organization's prepaid credit does not cover what this request can cost: {_lacking(error)}"
    )


def _lacking(error: BudgetExceeded) -> str:
    hint = " A smaller max_tokens costs less." if error.left_nanodollars else ""
    return f"up to ${to_usd(error.needed_nanodollars)}, and ${to_usd(error.left_nanodollars)} is left.{hint}"


def _insufficient(message: str) -> Failed:
    return Failed(message, "insufficient_quota", "insufficient_quota", status=402)


def _unknown_dialect(error: UnknownDialect) -> Failed:
    allowed = ", ".join(sorted(DIALECTS))
    return Failed(
        f"Unknown dialect. X-ChatAPI-Dialect can be: {allowed}.", INVALID, "unknown_dialect", status=400
    )


def _already_admitted(_: AlreadyAdmitted) -> Failed:
    message = "This Idempotency-Key was sent before with another request. Use a new key for a new request."
    return Failed(message, INVALID, "idempotency_key_reused", "Idempotency-Key", 422)


def _rate_limited(error: RateLimited) -> Failed:
    # A limit of nothing never has room: then no waiting time, and no retry.
    return Failed(
        str(error), "rate_limit_error", "rate_limit_exceeded", status=429, retry_after_ms=error.retry_after_ms
    )


def _too_many_failed_attempts(error: TooManyFailedAttempts) -> Failed:
    return Failed(
        str(error), "rate_limit_error", "rate_limit_exceeded", status=429, retry_after_ms=error.retry_after_ms
    )


_TOLD: dict[type[Exception], Callable[[Any], Failed]] = {
    InvalidRequest: lambda error: Failed(error.message, INVALID, error.code, error.param, error.status),
    NotAuthenticated: lambda error: not_authenticated().failure,
    KeyMissing: lambda error: not_authenticated("No API key was sent.").failure,
    TooManyFailedAttempts: _too_many_failed_attempts,
    PermissionDenied: lambda error: Failed(str(error), INVALID, "permission_denied", status=403),
    RateLimited: _rate_limited,
    UnknownDialect: _unknown_dialect,
    AlreadyAdmitted: _already_admitted,
    BudgetExceeded: _budget_exceeded,
    NotPriced: lambda error: Failed(
        "This model has no price yet, so it is not served.", "server_error", "model_not_priced", "model", 503
    ),
    DatabaseUnavailable: lambda error: (
        unavailable("The service can't write its books right now. Nothing was charged.").failure
    ),
}
