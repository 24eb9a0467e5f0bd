"""The way in of a completion: validate the request, admit it, and respond (`responses.py`).

`create`, `chat` and `issue_ticket` are the code of their kinds (`kinds.py`).
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from time import monotonic
from typing import Final

import msgspec
from django.conf import settings
from redis.exceptions import RedisError

from accounts import authentication, end_users
from accounts.authentication import Caller
from accounts.errors import RateLimited
from accounts.limits import Limit
from accounts.rate_limits import Reservation
from chatapi import errors, identity, response_store
from chatapi.catalog import CatalogModel
from chatapi.delta_stream import Job
from chatapi.fair_room import NoRoom, Room
from chatapi.process_metrics import ADMISSION
from chatapi.web import idempotency_header
from chatapi.web.body_room import LARGE_BYTES
from chatapi.web.byte_windows import WindowFull
from chatapi.web.exchange import Exchange, authenticate
from chatapi.web.generations import visible_generation
from chatapi.web.responses import has_failed, respond, respond_again, respond_later, send_folded
from chatapi.web.services import Services
from chatapi.web.tickets import Ticket
from chatapi.wire import parsed_request, requests
from chatapi.wire.deltas import Usage
from chatapi.wire.invalid_request import UnresolvedReferences
from chatapi.wire.parsed_request import ParsedRequest, RequestSummary
from chatapi.wire.protocols import Answer, Dialect
from chatapi.wire.protocols.envelope import Header
from usage import pricing
from usage.books import ledger
from usage.books.idempotency import Idempotency, already_admitted, is_known
from usage.errors import AlreadyAdmitted, NotPriced
from usage.failpoints import failpoint
from usage.models import State
from usage.pricing import FREE, Price

log = logging.getLogger(__name__)

# Characters of a header's value that an error repeats.
MAX_ECHO_CHARS: Final = 32
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
    """Less the organization's discount; nothing for a test key."""
    state: bytes
    """What later requests may refer to; empty once it is kept."""
    is_not_kept: bool = False
    """There was no room for its state."""
    room: Room | None = None
    """The room of a large body, until the request is queued."""


# ---- the kinds of request


async def chat(exchange: Exchange) -> None:
    """`POST /v1/chat/completions` (OpenAI's API reference, "Create chat completion"), or for an EventSource
    `GET /v1/chat/completions?ticket=…`.
    """
    secret = exchange.query("ticket") if exchange.method == "GET" else None
    services = await Services.get()
    request = await (redeem(exchange, services, secret) if secret else validate(exchange, services))
    await complete(exchange, services, request)


async def create(exchange: Exchange) -> None:
    """Answer a request of any protocol, such as `POST /v1/completions`."""
    services = await Services.get()
    await complete(exchange, services, await validate(exchange, services))


async def count_tokens(exchange: Exchange) -> None:
    """Answer with an estimate of the prompt's tokens: for free, but it counts in the limits of requests."""
    services = await Services.get()
    request = await validate(exchange, services)
    summary = request.summary
    reservation = await services.rates.take(request.caller, exchange.id, model=request.model.id, tokens=0)
    exchange.is_counted = True
    services.in_background(services.rates.release(reservation, 0))
    exchange.add_limits(reservation)
    folder = request.dialect.folder(Answer(exchange.id.hex, identity.created(exchange.id), summary.model))
    folder.add(Usage(summary.prompt_tokens or 0, 0))
    await send_folded(exchange, folder)


async def issue_ticket(exchange: Exchange) -> None:
    """`POST /v1/chat/completions/tickets`: 201 with a URL from which an EventSource gets this chat's stream.

    The URL works once. Nothing is admitted or charged before.
    """
    services = await Services.get()
    request = await validate(exchange, services)
    summary = msgspec.structs.replace(request.summary, stream=True)
    dialect, api_key_id = request.dialect.name, request.caller.api_key_id
    try:
        secret = await services.tickets.issue(
            Ticket(exchange.id, api_key_id, dialect, request.content, summary=summary)
        )
    except WindowFull as error:
        raise errors.too_many_tickets(services.tickets.unused.max_bytes, error.retry_after_ms) from None
    body = {
        "object": "chat.completion.ticket",
        "id": secret,
        "expires_at": identity.created(exchange.id) + services.tickets.ttl_ms // 1_000,
        "url": f"/{dialect}/v1/chat/completions?ticket={secret}",
    }
    await exchange.send_json(201, msgspec.json.encode(body))


# ---- validate


async def validate(exchange: Exchange, services: Services) -> ValidatedRequest:
    """Return the request in the body; no step begins before the one before it has succeeded:

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
    if media_type != "application/json":
        raise errors.unsupported_media_type()
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
        assert exchange.kind.resolve is not None, "its parser knows no references"
        pieces = await exchange.kind.resolve(exchange, services, caller, references, pieces)
        if room is None and sum(map(len, pieces)) > LARGE_BYTES:
            room = await _take_room(exchange, services, caller, sum(map(len, pieces)))
        parsed = await _parse(exchange, services, caller, dialect, pieces, is_resolved=True)
    parsed = msgspec.structs.replace(parsed, summary=_with_end_user(exchange, caller, parsed.summary))
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
    flags = {"is_ticket": exchange.kind.is_ticket, "is_resolved": is_resolved}
    n_bytes = sum(map(len, pieces))
    if n_bytes > settings.MAX_BODY_BYTES:
        raise errors.body_too_large()
    if exchange.protocol.counts_tokens:
        turn = await services.counting_turns.acquire(caller.organization_id)
        exchange.rooms.append(turn)
        try:
            return await services.parser.parse(pieces, protocol, default_model, **flags)
        finally:
            turn.release()  # it may be parsed again, with what it refers to
    if n_bytes > LARGE_BYTES:
        return await services.parser.parse(pieces, protocol, default_model, **flags)
    return parsed_request.parse(b"".join(pieces), protocol, default_model, **flags)


def _with_end_user(exchange: Exchange, caller: Caller, summary: RequestSummary) -> RequestSummary:
    """Return the summary with the end user's name as rows have it; the setting's header comes first."""
    name = settings.END_USER_HEADER and exchange.header(settings.END_USER_HEADER.encode())
    stored = end_users.stored_name(name or summary.end_user, is_hashed=caller.hashes_end_users)
    return summary if stored == summary.end_user else msgspec.structs.replace(summary, end_user=stored)


async def redeem(exchange: Exchange, services: Services, secret: str) -> ValidatedRequest:
    """Return the request that was posted for this ticket, if the key that posted it is still valid."""
    if await exchange.has_large_body():
        raise errors.body_too_large("A GET takes no request body.")
    ticket = await services.tickets.redeem(secret)
    if ticket is None:
        raise errors.invalid_ticket()
    caller = exchange.caller = await services.commits.read(authentication.look_up_id, ticket.api_key_id)
    caller.require(exchange.kind.scope)
    dialect = exchange.choose_dialect(ticket.dialect)
    summary = ticket.summary
    # Another version may have validated the request. What this one can't read has to be posted again; a large
    # request would take too long to read here, so a worker finds out.
    if summary is None or len(ticket.request) <= LARGE_BYTES:
        end_user = summary and summary.end_user  # as it is stored, or of a header
        try:
            read = parsed_request.read(ticket.request).summary
            summary = msgspec.structs.replace(read, end_user=end_user)
        except msgspec.DecodeError as error:
            log.error("a ticket's request can't be read: %s", error)
            raise errors.invalid_ticket() from None
    return await _with_price(exchange, services, caller, dialect, ParsedRequest(summary, ticket.request))


async def _check_limits(exchange: Exchange, services: Services, caller: Caller, is_large: bool) -> None:
    """Refuse early what the limits would refuse anyway: before a small body is parsed, and before a large one
    is read. Raises `RateLimited` or another 429.
    """
    try:
        services.rates.check(caller)
        if is_large:
            await services.rates.look(caller)
    except RateLimited:
        # A request that was sent before needs no room in the limits.
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


async def _take_room(exchange: Exchange, services: Services, caller: Caller, max_bytes: int) -> Room:
    """Return room in memory for a large request, once there is some; raises 413 or `NoRoom`."""
    if max_bytes > settings.MAX_BODY_BYTES:
        raise errors.body_too_large()
    if caller.is_test:  # it is free, so it has its own bound, and keeps that room until its end
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
    """Return the request with its model and price; raise what is wrong with it for this dialect and model."""
    summary = parsed.summary
    if summary.stream and dialect.encoder is None:
        raise errors.not_streamable()
    if dialect.refuses_idle_parameters:
        requests.refuse_idle_stream_options(summary)
    model, price = await _priced_model(services, caller, summary.model, exchange.protocol.model_kind)
    if not model.remote_media_allowed:
        requests.refuse_remote_media(summary)
    if ignored := requests.ignored_parameters(summary, model.extra_parameters):
        exchange.response_headers.append((b"x-chatapi-ignored", ", ".join(ignored).encode()))
    if model.deprecated_on is not None:
        exchange.response_headers += _deprecation_headers(model.id, model.deprecated_on)
    return ValidatedRequest(caller, dialect, summary, parsed.content, model, price, parsed.state)


async def _priced_model(
    services: Services, caller: Caller, name: str, kind: str
) -> tuple[CatalogModel, Price]:
    """Return the model that the name means to the caller, and its price; raise why it can't be used so."""
    model = await services.model(caller, name)
    if not caller.may_use(name if model is None else model.id):
        raise errors.model_not_allowed(name)
    if model is None:
        raise errors.model_not_found(name)
    if model.kind != kind:
        raise errors.model_of_another_kind(name, model.kind, kind)
    if model.price is None:
        raise NotPriced(name)
    discount = (await services.discounts.get()).get(caller.organization_id, 0)
    return model, FREE if caller.is_test else pricing.discounted(model.price, discount)


def _deprecation_headers(model_id: str, day: date) -> list[Header]:
    """Return RFC 9745's header, which has seconds of Unix time, and the same in words."""
    at = datetime.combine(day, time(), UTC)
    warning = f"The model '{model_id}' is deprecated from {day} on."
    return [(b"deprecation", b"@%d" % at.timestamp()), (b"x-chatapi-warning", warning.encode())]


# ---- admit


async def complete(exchange: Exchange, services: Services, request: ValidatedRequest) -> None:
    """Admit the request and respond; a request that was sent before gets the first one's answer."""
    preferences = (exchange.header(b"prefer") or "").lower().split(",")  # RFC 7240, section 2
    is_later = "respond-async" in {each.partition(";")[0].partition("=")[0].strip() for each in preferences}
    is_later = is_later and request.dialect.encoder is not None  # what is fetched later is a stream
    background_state = request.state if request.summary.is_background else b""
    is_later = is_later or bool(background_state)
    key = idempotency_header.of(exchange.header(b"idempotency-key"), request.summary)
    admission = _admission(exchange, request, key)
    try:
        reservation = await _take_from_limits(exchange, services, request, admission)
        if request.room is not None:
            exchange.rooms.remove(request.room)  # `_admit` releases it, whether the client stays or not
        inbox = "" if is_later else services.inbox.name
        admitting = services.in_background(_admit(services, request, admission, inbox, exchange.began_at))
        used_tokens: int | None = None
        try:
            if is_later:
                await respond_later(
                    exchange, services, admission, request.dialect, admitting, background_state
                )
            else:
                used_tokens = await respond(exchange, services, admission, request.dialect, admitting)
        finally:
            services.in_background(_release(services, reservation, used_tokens, admitting))
        return
    except AlreadyAdmitted as error:
        if not error.is_same_request:
            raise
        first_id = error.generation_id
    row = await visible_generation(services, request.caller, first_id)
    if row.state == State.ADMITTED:
        # Its answer is read from the log, so the job names no inbox. Its first process releases its limits.
        await services.enqueue_again(row.id, Job("", request.content, runs_on=True))
    request.content = request.state = b""
    await respond_again(exchange, services, row, request.dialect, is_later=is_later, state=background_state)


def _admission(exchange: Exchange, request: ValidatedRequest, key: Idempotency | None) -> ledger.Admission:
    caller, summary, model = request.caller, request.summary, request.model
    max_output_tokens = model.max_output_tokens
    if summary.max_output_tokens is not None:
        max_output_tokens = min(summary.max_output_tokens, max_output_tokens)
    return ledger.Admission(
        id=exchange.id,
        organization_id=caller.organization_id,
        project_id=caller.project_id,
        api_key_id=caller.api_key_id,
        time_zone=caller.time_zone,
        is_test=caller.is_test,
        model=model.id,
        requested_model=None if summary.model == model.id else summary.model,
        end_user=summary.end_user,
        counts_end_user=caller.counts_end_users,
        metadata=summary.metadata if caller.stores_metadata else None,
        endpoint=exchange.kind.protocol,
        dialect=request.dialect.name,
        is_stream=summary.stream,
        choices_count=summary.choices_count,
        sampled_count=summary.sampled_count,
        max_output_tokens=max_output_tokens,
        prompt_tokens_bound=summary.prompt_tokens_bound(model.context_window),
        max_prompt_tokens=summary.max_prompt_tokens(model.context_window),
        price=request.price,
        queue_ttl_ms=settings.QUEUE_TTL_MS,
        includes_usage=summary.include_usage,
        idempotency=key,
    )


async def _take_from_limits(
    exchange: Exchange, services: Services, request: ValidatedRequest, admission: ledger.Admission
) -> Reservation:
    """Take the request from the caller's rate limits.

    Raises `RateLimited` or another 429 if they have no room, or `AlreadyAdmitted` for a request that was sent
    before: that one needs none.
    """
    try:
        await services.open_generations.add(request.caller.organization_id)
        more = await _end_user_limits(services, request.caller, admission.end_user)
        reservation = await services.rates.take(
            request.caller, exchange.id, model=request.model.id, tokens=admission.most_tokens, more=more
        )
    except (RateLimited, errors.APIError) as error:
        if admission.idempotency is None:
            raise
        first = await services.commits.read(already_admitted, admission.api_key_id, admission.idempotency)
        if first is None:
            raise
        if isinstance(error, RateLimited):
            exchange.add_limits(error)
        raise first from None
    exchange.is_counted = True
    exchange.add_limits(reservation)
    return reservation


async def _end_user_limits(services: Services, caller: Caller, end_user: str | None) -> Sequence[Limit]:
    """Return the limits of the end user, if the caller's project counts them."""
    if end_user is None or not caller.counts_end_users:
        return ()
    if not caller.has_own_end_user_limits:
        return end_users.named(caller.end_user_limits, end_user)
    return await services.commits.read(end_users.limits, caller.project_id, end_user, caller.end_user_limits)


async def _admit(
    services: Services,
    request: ValidatedRequest,
    admission: ledger.Admission,
    inbox: str,
    began_at: float,
) -> None:
    """Admit the request, then enqueue it; without an inbox, its answer is fetched later.

    This runs to its end even if the client leaves meanwhile, so that no hold is left behind.
    """
    try:
        counter = await _take_room_for_state(services, request)
        try:
            await services.commits.write(ledger.admit, admission)
        except Exception:
            # The client gets this error, not that of a Redis that is away; the counter expires by itself.
            with suppress(RedisError):
                if counter is not None:
                    await services.states.give_back(counter, len(request.state))
            raise
        failpoint("admit.after_commit")
        runs_on = admission.idempotency is not None or not inbox
        job = Job(inbox, request.content, runs_on, is_not_kept=request.is_not_kept)
        stores_response = bool(request.caller.stores_responses_days)
        await services.enqueue(admission.id, job, request.state, stores_response=stores_response)
        request.content = request.state = b""
        if not admission.is_test:
            ADMISSION.observe(monotonic() - began_at)
        failpoint("enqueue.after")
    finally:
        if request.room is not None:
            request.room.release()


async def _take_room_for_state(services: Services, request: ValidatedRequest) -> str | None:
    """Count the bytes of the state, and return the key of their counter.

    If its organization has stored too much, drop the state, or raise 429 in the background, which needs it.
    """
    if not request.state:
        return None
    caller = request.caller
    if caller.stores_responses_days and await services.has_full_store(caller.organization_id):
        if request.summary.is_background:
            raise errors.too_many_responses(response_store.MAX_RESPONSES, response_store.MAX_BYTES)
        request.state, request.is_not_kept = b"", True
        return None
    try:
        return await services.states.take(caller.organization_id, len(request.state))
    except WindowFull as error:
        if request.summary.is_background:
            raise errors.too_much_state(services.states.max_bytes, error.retry_after_ms) from None
        request.state, request.is_not_kept = b"", True
        return None


async def _release(
    services: Services, reservation: Reservation, used_tokens: int | None, admitting: "asyncio.Task[None]"
) -> None:
    """Release what the request took from limits and did not use: all of it if it never ran."""
    if not admitting.done():  # the client left meanwhile
        await asyncio.wait([admitting])
    await services.rates.release(reservation, 0 if has_failed(admitting) else used_tokens)
