"""Makes the API's errors: from exceptions of other packages, or by a function for each error.

Statuses, types and codes are OpenAI's where it has them, because its SDKs read them.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from django.core.exceptions import TooManyFieldsSent

from accounts.authentication import KEY_HEADERS, KeyHeaders
from accounts.errors import (
    CertificateRefused,
    IPNotAllowed,
    KeyMissing,
    NotAuthenticated,
    PermissionDenied,
    RateLimited,
    TooManyFailedAttempts,
    TwoKeys,
)
from accounts.limits import duration
from chatapi.wire.deltas import Failed
from chatapi.wire.dialects import DIALECTS, UnknownDialect
from chatapi.wire.invalid_request import InvalidRequest
from usage.budget_words import words
from usage.errors import AlreadyAdmitted, BudgetExceeded, DatabaseUnavailable, NotPriced
from usage.pricing import to_usd

INVALID = "invalid_request_error"
RETRY_SOON_MS = 1_000


class APIError(Exception):
    """An error as the client sees it, with its HTTP status."""

    def __init__(self, failure: Failed) -> None:
        super().__init__(failure.message)
        self.failure = failure


def from_exception(error: Exception, key_headers: KeyHeaders = KEY_HEADERS) -> APIError:
    """Return the API error for an exception; `key_headers` are the headers in which a key may be sent.

    An unforeseen exception is a 500 without details.
    """
    if isinstance(error, APIError):
        return error
    # By the exact type: a new subclass is a 500 until these tables say what clients may see of it.
    if (fault := _FAULTS_OF_KEYS.get(type(error))) is not None:
        return _not_authenticated(fault, key_headers)
    to_failure = _TO_FAILURE.get(type(error))
    return internal_error() if to_failure is None else APIError(to_failure(error))


def _not_authenticated(fault: str, key_headers: KeyHeaders) -> APIError:
    """Return a 401 that says where the key is expected."""
    places = " or ".join(
        f"'{name}: {scheme} <key>'" if scheme else f"'{name}: <key>'" for name, scheme in key_headers.items()
    )
    message = f"{fault} Send a valid key as {places}."
    return APIError(Failed(message, INVALID, "invalid_api_key", status=401))


def _ip_not_allowed(error: IPNotAllowed) -> Failed:
    """Return OpenAI's 401. It names the IP, for a person with a valid key has to know which one to allow."""
    message = "This API key may only be used from listed IP addresses, and the service does not know yours."
    if error.ip:
        message = f"This API key may not be used from your IP address, {error.ip}. Send the request from an "
        message += "allowed address, or add yours to the allowed IP addresses of the key."
    return Failed(message, INVALID, "ip_not_authorized", status=401)


def _certificate_refused(error: CertificateRefused) -> Failed:
    """Return a 401 that says what is wrong with the certificate, for its owner has a valid key."""
    message = "This API key needs a client certificate of its organization or project (mutual TLS), and "
    return Failed(f"{message}{error}", INVALID, "certificate_required", status=401)


def invalid_ticket() -> APIError:
    """Return a 401, the same for a ticket that is unknown, used or expired."""
    message = "This ticket does not exist, was used already or has expired. "
    message += "POST the request to /v1/chat/completions/tickets for a new one."
    return APIError(Failed(message, INVALID, "invalid_ticket", "ticket", 401))


def not_streamable() -> APIError:
    return APIError(Failed("This answer can't be streamed.", INVALID, "not_streamable", status=400))


def too_many_tickets(most_bytes: int, retry_after_ms: int) -> APIError:
    message = f"Too many unused tickets of your API key: their requests may have {most_bytes} bytes together."
    return APIError(_rate_limited(f"{message} Try again in {duration(retry_after_ms)}.", retry_after_ms))


def too_many_open_generations(most: int, retry_after_ms: int) -> APIError:
    message = f"Your organization may have at most {most} requests waiting and running at the same time."
    return APIError(_rate_limited(f"{message} Try again in {duration(retry_after_ms)}.", retry_after_ms))


def queue_too_old(retry_after_ms: int) -> APIError:
    """Return a 503 for an organization whose requests wait too long for a worker; nothing is reserved."""
    message = "Your organization's requests are waiting too long for a free worker. Nothing was charged; "
    message += f"try again in {duration(retry_after_ms)}."
    return APIError(Failed(message, "server_error", "overloaded", status=503, retry_after_ms=retry_after_ms))


def too_much_state(most_bytes: int, period_ms: int, retry_after_ms: int) -> APIError:
    message = f"Your organization may store {most_bytes} bytes of input in {duration(period_ms)}."
    return APIError(_rate_limited(f"{message} Try again in {duration(retry_after_ms)}.", retry_after_ms))


def too_many_responses(most: int, most_bytes: int) -> APIError:
    message = f"Your organization may store {most} responses of {most_bytes} bytes together, and has no room."
    return APIError(_rate_limited(f"{message} Delete some, or wait until some have expired.", 60_000))


def response_not_found(what: str, param: str, kept_ms: int) -> APIError:
    """Return a 404 for an answer, or a part of one, that is unknown, another tenant's, or not kept."""
    return APIError(Failed(_not_kept(what, kept_ms), INVALID, "not_found", param, 404))


def previous_response_not_found(response_id: str, param: str, kept_ms: int) -> APIError:
    """Return OpenAI's 400 for an answer that can't be continued: clients then send the whole conversation."""
    message = _not_kept(f"Previous response with id '{response_id}'", kept_ms)
    return APIError(Failed(message, INVALID, "previous_response_not_found", param, 400))


def _not_kept(what: str, kept_ms: int) -> str:
    kept = f"Responses are kept for {duration(kept_ms)} after their end, unless store is false."
    return f"{what} not found. {kept}"


def response_in_progress(response_id: str, param: str) -> APIError:
    message = f"Response with id '{response_id}' has not ended, or has failed: it can't be continued."
    return APIError(Failed(message, INVALID, "response_not_completed", param, 400))


def not_cancellable() -> APIError:
    """Return a 400 for a response whose client waits for it."""
    message = "Cannot cancel a synchronous response. Close its connection instead."
    return APIError(Failed(message, INVALID, "not_cancellable", status=400))


def of_parameter(error: Exception, param: str) -> APIError:
    """Return the API error for an exception, as an error about this parameter."""
    return APIError(msgspec.structs.replace(from_exception(error).failure, param=param))


def model_not_found(model: str) -> APIError:
    message = f"The model '{model}' does not exist or you do not have access to it."
    message += " GET /v1/models lists the models you can use."
    return APIError(Failed(message, INVALID, "model_not_found", "model", 404))


def model_not_allowed(model: str) -> APIError:
    """Return a 403 for a model that is not in the key's list, whether it exists or not."""
    message = f"Your API key may not use the model '{model}'. GET /v1/models lists the models it may use."
    return APIError(Failed(message, INVALID, "model_not_allowed", "model", 403))


def model_of_another_kind(model: str, kind: str, needed: str) -> APIError:
    """Return a 400 for a request that this model can't answer, such as a chat with a model for embeddings."""
    message = f"The model '{model}' answers requests of the kind '{kind}', and this is one for '{needed}'."
    message += " GET /v1/models has the kind of each model."
    return APIError(Failed(message, INVALID, "model_not_supported", "model", 400))


def generation_not_found() -> APIError:
    """Return a 404, the same for an unknown id and for another tenant's."""
    message = "There is no generation with this id."
    return APIError(Failed(message, INVALID, "generation_not_found", "id", 404))


def object_not_found(what: str, param: str) -> APIError:
    """Return a 404, the same for an unknown id and for another organization's."""
    return APIError(Failed(f"There is no {what} with this id.", INVALID, "not_found", param, 404))


def not_set(message: str, param: str | None) -> APIError:
    """Return a 404 for an optional setting that is not set."""
    return APIError(Failed(message, INVALID, "not_found", param, 404))


def conflict() -> APIError:
    """Return a 409 for a change that another one has overtaken; nothing was changed."""
    message = "This conflicts with a change that was saved just now, so nothing was changed. Try again."
    return APIError(Failed(message, INVALID, "conflict", status=409))


def stream_expired() -> APIError:
    message = "This generation's stream is not kept any more. GET /v1/generations/{id} has its receipt."
    return APIError(Failed(message, INVALID, "stream_expired", status=410))


def unavailable(message: str) -> APIError:
    """Return a 503 for a part of the service that is unavailable for now."""
    return APIError(
        Failed(message, "server_error", "service_unavailable", status=503, retry_after_ms=RETRY_SOON_MS)
    )


def internal_error() -> APIError:
    message = "The server had an error while processing your request."
    return APIError(Failed(message, "server_error", "internal_error", status=500))


def not_found(path: str, docs: str, meant: str | None = None) -> APIError:
    """Return a 404 for an unknown route; `meant` is the one that its client seems to mean."""
    hint = f"See {docs} for the routes." if meant is None else f"Did you mean {meant}?"
    message = f"Invalid URL ({path}). {hint}"
    return APIError(Failed(message, INVALID, "unknown_url", status=404))


def method_not_allowed(method: str, allowed: str) -> APIError:
    """Return a 405; the caller also sends `Allow`."""
    message = f"{method} is not allowed here. Use {allowed}."
    return APIError(Failed(message, INVALID, "method_not_allowed", status=405))


def body_too_large(message: str = "The request body is too large.") -> APIError:
    return APIError(Failed(message, INVALID, "request_too_large", status=413))


def too_many_refused_bytes(retry_after_ms: int) -> APIError:
    message = "Too many large requests of your API key were refused. "
    message += f"Try again in {duration(retry_after_ms)}, or send smaller ones."
    return APIError(_rate_limited(message, retry_after_ms))


def unsupported_media_type(allowed: str) -> APIError:
    message = f"Send the body with one header 'Content-Type: {allowed}'."
    return APIError(Failed(message, INVALID, "unsupported_media_type", status=415))


def unsupported_content_coding(coding: str) -> APIError:
    """Return a 415 for a compressed body (RFC 9110, 8.4); the caller sends `Accept-Encoding: identity`."""
    message = f"Content-Encoding: {coding} is not accepted. Send the body uncompressed."
    return APIError(Failed(message, INVALID, "unsupported_media_type", "Content-Encoding", 415))


def _budget_exceeded(error: BudgetExceeded) -> Failed:
    if error.is_credit:
        money, lacks = "Your organization's prepaid credit", "does not cover"
    else:
        said = words(error.budget)
        money = f"{said.holder} budget" + (f" of {said.current}" if error.budget.resets_on else "")
        lacks = "has no room for"
    if error.is_in_flight:
        # 429 instead of 402: SDKs retry it, and there may be room when the others have ended.
        message = f"{money} is held by requests that are still running. Try again when they have ended."
        return _rate_limited(message, RETRY_SOON_MS, code="budget_in_flight")
    needed, left = to_usd(error.needed_nanodollars), to_usd(error.left_nanodollars)
    message = f"{money} {lacks} what this request can cost: up to ${needed}, and ${left} is left."
    if error.left_nanodollars:
        message += " A shorter prompt or a lower limit of output tokens costs less."
    if (day := error.budget.resets_on) and not error.is_credit:
        message += f" It resets on {day} at 00:00 ({error.time_zone})."
    return Failed(message, "insufficient_quota", "insufficient_quota", status=402)


def _rate_limited(message: str, retry_after_ms: int | None, code: str = "rate_limit_exceeded") -> Failed:
    # A limit of 0 never has room: then there is no waiting time, and no retry.
    return Failed(message, "rate_limit_error", code, status=429, retry_after_ms=retry_after_ms)


# The same for every fault of a key that was sent.
_FAULTS_OF_KEYS: dict[type[Exception], str] = {
    NotAuthenticated: "Incorrect API key provided.",
    KeyMissing: "No API key was sent.",
}
_TO_FAILURE: dict[type[Exception], Callable[[Any], Failed]] = {
    TooManyFieldsSent: lambda _: Failed(
        "Too many query parameters.", INVALID, "request_too_large", status=400
    ),
    InvalidRequest: lambda error: Failed(error.message, INVALID, error.code, error.param, error.status),
    TwoKeys: lambda error: Failed(
        f"The headers {error.first_header} and {error.second_header} hold different keys. Send one key.",
        INVALID,
        "ambiguous_api_key",
        error.second_header,
        400,
    ),
    IPNotAllowed: _ip_not_allowed,
    CertificateRefused: _certificate_refused,
    TooManyFailedAttempts: lambda error: _rate_limited(str(error), error.retry_after_ms),
    PermissionDenied: lambda error: Failed(str(error), INVALID, "permission_denied", status=403),
    RateLimited: lambda error: _rate_limited(str(error), error.retry_after_ms),
    UnknownDialect: lambda error: Failed(
        f"Unknown dialect. X-ChatAPI-Dialect can be: {', '.join(sorted(DIALECTS))}.",
        INVALID,
        "unknown_dialect",
        status=400,
    ),
    AlreadyAdmitted: lambda error: Failed(
        "This Idempotency-Key was sent before with another request. Use a new key for a new request.",
        INVALID,
        "idempotency_key_reused",
        "Idempotency-Key",
        422,
    ),
    # 402 rather than OpenAI's 429: SDKs retry a 429, and no retry makes room.
    BudgetExceeded: _budget_exceeded,
    NotPriced: lambda error: Failed(
        "This model has no price yet, so it is not served.", "server_error", "model_not_priced", "model", 503
    ),
    # Nothing was charged, because admission is a commit and this one has failed.
    DatabaseUnavailable: lambda error: (
        unavailable("The service can't write its books right now. Nothing was charged.").failure
    ),
}
