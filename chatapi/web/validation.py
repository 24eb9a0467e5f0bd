"""The first half of the way in: from a request's bytes to a `ValidatedRequest`, or to its refusal."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any, Final

import msgspec
from django.conf import settings

from accounts import authentication, end_users
from accounts.authentication import Caller
from accounts.errors import RateLimited
from chatapi import errors
from chatapi.catalog import CatalogModel
from chatapi.fair_room import NoRoom, Room
from chatapi.web import candidates, idempotency_header
from chatapi.web.body_room import LARGE_BYTES, LEAST_BYTES
from chatapi.web.candidates import Fallback
from chatapi.web.exchange import Exchange, authenticate
from chatapi.web.services import Services
from chatapi.wire import parsed_request, requests
from chatapi.wire.invalid_request import UnresolvedReferences
from chatapi.wire.parsed_request import ParsedRequest, RequestSummary
from chatapi.wire.protocols import Dialect
from chatapi.wire.protocols.envelope import Header
from usage.books.idempotency import is_known
from usage.pricing import Price

log = logging.getLogger(__name__)

# Characters of a header's value that an error repeats.
MAX_ECHO_CHARS: Final = 32
# Characters of the names in `x-chatapi-ignored`: proxies and clients refuse long headers.
MAX_LISTED_CHARS: Final = 1_024
# How often a body that arrives slowly is asked to give way.
GIVE_WAY_CHECK_S: Final = 1.0


@dataclass(slots=True)
class ValidatedRequest:
    """A validated request with its caller, model and price; nothing is reserved yet."""

    caller: Caller
    dialect: Dialect
    summary: RequestSummary
    content: bytes
    """The request as workers read it; empty once it is queued, because its stream may run for hours."""
    model: CatalogModel
    price: Price
    """The price less the organization's discount; zero for a test key."""
    state: bytes
    """The data that later requests may refer to; empty once it is stored."""
    is_not_kept: bool = False
    """Whether there was no room for its state."""
    room: Room | None = None
    """The room of a large body, until the request is queued."""
    fallbacks: tuple[Fallback, ...] = ()


async def validate(exchange: Exchange, services: Services) -> ValidatedRequest:
    """Return the request in the body. Each step waits until the one before has succeeded:

    1. the head: method, key, scope, dialect, content type;
    2. the caller's limits; for a large body also in Redis, and the bytes of its refused requests;
    3. room in memory for a large body, which is not read before;
    4. the body: small ones are parsed here, large ones and those to count in a child process;
    5. the model and its price;
    6. room in memory for a large answer that is collected before it is sent.
    """
    exchange.allow("POST")
    caller, dialect = await authenticate(exchange, services)
    media_type = (exchange.header(b"content-type") or "").partition(";")[0].strip().lower()
    if media_type != exchange.protocol.media_type:
        raise errors.unsupported_media_type(exchange.protocol.media_type)
    if (coding := exchange.header(b"content-encoding")) and coding.strip().lower() != "identity":
        exchange.response_headers.append((b"accept-encoding", b"identity"))
        raise errors.unsupported_content_coding(coding[:MAX_ECHO_CHARS])
    is_large = await exchange.has_large_body()
    await _check_limits(exchange, services, caller, is_large)
    room: Room | None = None
    if is_large:
        room, pieces = await _read_large_body(exchange, services, caller)
    else:
        pieces = [await exchange.read_body()]
    try:
        parsed = await _parse(exchange, services, caller, dialect, pieces)
    except UnresolvedReferences as references:
        room, pieces = await _resolve(exchange, services, caller, references, pieces, room)
        parsed = await _parse(exchange, services, caller, dialect, pieces, is_resolved=True)
    # The header that `END_USER_HEADER` names overrides the body's parameters: a proxy may set it.
    end_user = exchange.end_user or parsed.summary.end_user
    stored = end_users.stored_name(end_user, is_hashed=caller.hashes_end_users)
    if stored != parsed.summary.end_user:
        summary = msgspec.structs.replace(parsed.summary, end_user=stored)
        parsed = msgspec.structs.replace(parsed, summary=summary)
    request = await _with_price(exchange, services, caller, dialect, parsed)
    request.room = room
    if (answer_bytes := request.summary.answer_bytes) > LARGE_BYTES:
        exchange.rooms.append(await services.answer_room.acquire(caller.organization_id, answer_bytes))
    return request


async def _parse(
    exchange: Exchange,
    services: Services,
    caller: Caller,
    dialect: Dialect,
    pieces: list[bytes],
    *,
    is_resolved: bool = False,
) -> ParsedRequest:
    """Return the request in the pieces of a body. Raises `InvalidRequest` or `UnresolvedReferences`."""
    default_model = None if dialect.requires_model else settings.DEFAULT_MODEL
    protocol = exchange.kind.protocol
    options: dict[str, Any] = {
        "is_ticket": exchange.kind.is_ticket,
        "is_resolved": is_resolved,
        "ignored_parameters": dialect.ignored_parameters,
    }
    n_bytes = sum(map(len, pieces))
    if n_bytes > settings.MAX_BODY_BYTES:
        raise errors.body_too_large()
    if exchange.protocol.counts_tokens:
        turn = await services.counting_turns.acquire(caller.organization_id)
        exchange.rooms.append(turn)
        try:
            return await services.parser.parse(pieces, protocol, default_model, **options)
        finally:
            turn.release()  # it may be parsed again, with what it refers to
    if n_bytes > LARGE_BYTES:
        return await services.parser.parse(pieces, protocol, default_model, **options)
    return parsed_request.parse(b"".join(pieces), protocol, default_model, **options)


async def redeem(exchange: Exchange, services: Services, secret: str) -> ValidatedRequest:
    """Return the request that was posted for this ticket, if the key that posted it is still valid."""
    if await exchange.has_large_body():
        raise errors.body_too_large("A GET takes no request body.")
    ticket = await services.tickets.redeem(secret)
    if ticket is None or ticket.summary is None:
        raise errors.invalid_ticket()
    caller = await services.commits.read(authentication.look_up_id, ticket.api_key_id)
    exchange.set_caller(caller)
    caller.require(exchange.kind.scope)
    dialect = exchange.choose_dialect(ticket.dialect)
    summary = ticket.summary
    # Another release may have written the ticket. If this one can't decode the request, it has to be posted
    # again. Large requests are not decoded here, because that would block the event loop; a worker finds
    # those that can't be decoded.
    if len(ticket.request) <= LARGE_BYTES:
        try:
            read = parsed_request.read(ticket.request).summary
            # The end user is in its stored form, perhaps from a header.
            summary = msgspec.structs.replace(read, end_user=summary.end_user)
        except msgspec.DecodeError as error:
            log.error("a ticket's request can't be read: %s", error)
            raise errors.invalid_ticket() from None
    return await _with_price(exchange, services, caller, dialect, ParsedRequest(summary, ticket.request))


async def _check_limits(exchange: Exchange, services: Services, caller: Caller, is_large: bool) -> None:
    """Refuse early a request that the limits would refuse later: before a small body is parsed, and before a
    large one is read. Raises `RateLimited` or another 429.
    """
    try:
        if exchange.creates_generation:
            await services.open_generations.check(caller.organization_id)
        services.rates.check(caller)
        if is_large:
            await services.rates.look(caller)
    except (RateLimited, errors.APIError):
        # The repeat of an admitted request needs no room in the limits.
        header = exchange.header(b"idempotency-key")
        digest = idempotency_header.digest_of(header) if header else None
        if digest is None or not await services.commits.read(is_known, caller.api_key_id, digest):
            raise
    if is_large and (wait_ms := services.refused_bytes.wait_ms(caller.api_key_id)):
        raise errors.too_many_refused_bytes(wait_ms)


async def _read_large_body(
    exchange: Exchange, services: Services, caller: Caller
) -> tuple[Room, list[bytes]]:
    """Return the body's pieces, and the room in memory that it waited for; raises 413 or `NoRoom`."""
    announced_bytes = exchange.announced_bytes
    max_bytes = settings.MAX_BODY_BYTES if announced_bytes is None else announced_bytes
    room = await _take_room(exchange, services, caller, max_bytes)
    pieces = []
    while (piece := await _next_piece(exchange, room)) is not None:
        pieces.append(piece)
        if exchange.large_bytes > max_bytes:
            raise errors.body_too_large()
    return room, pieces


async def _resolve(
    exchange: Exchange,
    services: Services,
    caller: Caller,
    references: UnresolvedReferences,
    pieces: list[bytes],
    room: Room | None,
) -> tuple[Room | None, list[bytes]]:
    """Return the body with what it refers to, and room for both; the room is None if they are small.

    If they are longer than their room, release it, wait for enough room, and read the references again.
    """
    assert exchange.kind.resolve is not None, "its parser knows no references"
    if room is None:
        least_bytes = min(LEAST_BYTES, settings.MAX_BODY_BYTES)  # few conversations are longer
        room = await _take_room(exchange, services, caller, least_bytes)
    resolved = await exchange.kind.resolve(exchange, services, caller, references, pieces)
    n_bytes = sum(map(len, resolved))
    if LARGE_BYTES < n_bytes <= room.units:
        return room, resolved
    while exchange.rooms:
        exchange.rooms.pop().release()
    if n_bytes <= LARGE_BYTES:
        return None, resolved
    del resolved  # it must not be in memory while it waits
    room = await _take_room(exchange, services, caller, n_bytes)
    return room, await exchange.kind.resolve(exchange, services, caller, references, pieces)


async def _take_room(exchange: Exchange, services: Services, caller: Caller, max_bytes: int) -> Room:
    """Return room in memory for a large request, once there is some; raises 413 or `NoRoom`."""
    if max_bytes > settings.MAX_BODY_BYTES:
        raise errors.body_too_large()
    if caller.is_test:  # test requests are free, so they have another bound, and keep its room to their end
        exchange.rooms.append(await services.test_room.acquire(caller.organization_id, max_bytes))
    room = await services.room.acquire(caller.organization_id, max_bytes)
    exchange.rooms.append(room)
    return room


async def _next_piece(exchange: Exchange, room: Room) -> bytes | None:
    """Return the body's next piece; raise `NoRoom` if it is so slow that it must give way to others."""
    while not room.must_give_way:
        with suppress(TimeoutError):
            async with asyncio.timeout(GIVE_WAY_CHECK_S):
                return await exchange.next_piece()
    raise NoRoom("a slow body gave way")


async def _with_price(
    exchange: Exchange, services: Services, caller: Caller, dialect: Dialect, parsed: ParsedRequest
) -> ValidatedRequest:
    """Return the request with its model and price. Raises an error if they, or the dialect, refuse it."""
    summary = parsed.summary
    if summary.stream and dialect.encoder is None:
        raise errors.not_streamable()
    if dialect.refuses_idle_parameters:
        requests.refuse_idle_parameters(summary)
    model, price = await candidates.usable_model(
        services, caller, summary.model, exchange.protocol.model_kind, summary
    )
    fallbacks = await candidates.fallbacks(exchange.protocol, services, caller, summary, model)
    # A parameter counts as ignored unless every model that may answer takes it.
    models = [model, *(each.model for each in fallbacks)]
    taken = model.extra_parameters.intersection(*(each.extra_parameters for each in models))
    ignored = requests.ignored_parameters(summary, taken)
    if any(each.has_anthropic for each in models):
        ignored += exchange.protocol.named(summary.not_for_anthropic)
    if ignored:
        names = ", ".join(ignored)
        if len(names) > MAX_LISTED_CHARS:
            names = names[:MAX_LISTED_CHARS].rpartition(",")[0] + ", and others"
        exchange.response_headers.append((b"x-chatapi-ignored", names.encode()))
    if model.deprecated_on is not None:
        exchange.response_headers += _deprecation_headers(model.id, model.deprecated_on)
    return ValidatedRequest(
        caller, dialect, summary, parsed.content, model, price, parsed.state, fallbacks=fallbacks
    )


def _deprecation_headers(model_id: str, day: date) -> list[Header]:
    """Return RFC 9745's header, which has seconds of Unix time, and the same in words."""
    at = datetime.combine(day, time(), UTC)
    warning = f"The model '{model_id}' is deprecated from {day} on."
    return [(b"deprecation", b"@%d" % at.timestamp()), (b"x-chatapi-warning", warning.encode())]
