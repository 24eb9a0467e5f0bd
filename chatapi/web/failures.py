"""Answers failed requests with their error, and counts them."""

import logging
from typing import Final

from redis.exceptions import RedisError

from accounts.errors import (
    CertificateRefused,
    IPNotAllowed,
    NotAuthenticated,
    RateLimited,
    TooManyFailedAttempts,
)
from chatapi import errors, identity
from chatapi.delta_stream import StreamLost, StreamUnavailable
from chatapi.fair_room import NoRoom
from chatapi.web.body_parser import ParserUnavailable
from chatapi.web.exchange import Exchange
from chatapi.web.services import Services
from chatapi.wire.deltas import Failed
from chatapi.wire.invalid_request import InvalidRequest
from usage.errors import DatabaseUnavailable
from usage.rollups.refused_requests import Refusal, refused_requests

log = logging.getLogger(__name__)

_AWAY: Final[dict[type[Exception], str]] = {
    StreamLost: "The service can't reach its workers right now.",
    StreamUnavailable: "The service can't reach its workers right now.",
    RedisError: "The service can't reach its workers right now.",
    DatabaseUnavailable: "The service can't reach its books right now.",
    ParserUnavailable: "The service can't read large requests right now.",
    NoRoom: "Too many large requests arrive at the same time.",
}
# The books record admitted requests only, so the log is the only record of these refusals' reasons.
_LOGGED: Final = frozenset({402, 403, 429})
# Refusals whose message repeats what the client has sent, which is not logged.
_QUOTING: Final = frozenset({"model_not_allowed"})


async def send_failure(exchange: Exchange, error: Exception) -> None:
    """Send the error: inside the stream if that has begun, else as an HTTP error.

    Some dialects answer an invalid request for a stream with a stream of status 200.
    """
    failure = to_failure(exchange, error)
    if isinstance(error, NotAuthenticated | TooManyFailedAttempts | IPNotAllowed | CertificateRefused):
        refused_requests.count_key_refusal(error)
    if not exchange.is_started:
        await _count_refusal(exchange, failure)
    if exchange.is_started and exchange.encoder is not None:
        exchange.note_failure(failure)
        await exchange.send_body(exchange.encoder.failed(failure), more=False)
        return
    wants_stream = isinstance(error, InvalidRequest) and error.is_stream and not exchange.kind.is_ticket
    await exchange.send_error(failure, is_invalid_stream=wants_stream)


def to_failure(exchange: Exchange, error: Exception) -> Failed:
    """Return the failure to send, and add its headers to the response; log an unexpected error."""
    if isinstance(error, RateLimited):
        exchange.add_limits(error)
    if (away := next((_AWAY[kind] for kind in type(error).mro() if kind in _AWAY), None)) is not None:
        # This request was not admitted, or is withdrawn; one sent before with the same key may be charged.
        is_nothing_charged = exchange.kind.protocol and exchange.header(b"idempotency-key") is None
        return errors.unavailable(f"{away} Nothing was charged." if is_nothing_charged else away).failure
    failure = errors.from_exception(error, exchange.key_headers).failure
    if failure.code == "internal_error":
        log.error("a request failed", exc_info=error)
    return failure


async def _count_refusal(exchange: Exchange, failure: Failed) -> None:
    """Count the refused request of a valid key in the key's statistics; if it was to create a completion and
    the client is at fault, also in the caller's limits, with the bytes that were read for it.

    A 429 takes nothing from the limits, so that a client that waits for its `Retry-After` gets in.
    """
    caller = exchange.caller
    if caller is None:
        return
    refused_requests.count(Refusal(caller.api_key_id, failure.status, failure.code or failure.type))
    if failure.status in _LOGGED:
        # Not the client's own request id: like all that it sends, it may hold a key or a part of a prompt.
        request_id = identity.request_id(None, exchange.id).decode()
        why = "" if failure.code in _QUOTING else f": {failure.message!r}"
        log.info(
            "%s of key %d is refused: %d %s%s",
            request_id, caller.api_key_id, failure.status, failure.code, why,
        )  # fmt: skip
    if not exchange.kind.protocol or not 400 <= failure.status < 500:
        return
    services = await Services.get()  # does not wait: the services have authenticated the caller
    if exchange.large_bytes:
        services.refused_bytes.add(caller.api_key_id, exchange.large_bytes)
    if not exchange.is_counted and failure.status != 429:
        services.in_background(services.rates.take_refused(caller, exchange.id))
