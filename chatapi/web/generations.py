"""The requests about one generation: follow its stream again, and cancel it."""

from functools import partial
from uuid import UUID

import msgspec
from django.conf import settings

from accounts import access, authentication
from accounts.authentication import Caller
from accounts.errors import NotAuthenticated
from chatapi import errors, identity
from chatapi.web.exchange import Exchange, authenticate
from chatapi.web.resumption import Position, check_reached, is_kept, position, remainder
from chatapi.web.services import Services
from chatapi.wire.protocols import Answer, Dialect, protocol_named
from chatapi.wire.protocols.envelope import STREAM_HEADERS
from usage.books.ledger import Admission
from usage.models import Generation, State


async def resume(exchange: Exchange) -> None:
    """`GET /v1/generations/{id}/stream`: the stream from its beginning, or behind `Last-Event-ID` or
    `?starting_after=`.

    A client that leaves this stream does not cancel the generation. Because each event has an `id`,
    keep-alives after the first one may have another form (`Dialect.keep_alive_with_ids`).
    """
    exchange.allow("GET")
    services = await Services.get()
    row = await _generation(exchange, services)
    dialect = exchange.choose_dialect(row.dialect)
    if dialect.encoder is None:
        raise errors.not_streamable()
    after = Position(0, None)
    # The header first: an EventSource that reconnects by itself sends it to the URL that it began with.
    if last_event_id := exchange.header(b"last-event-id"):
        after = position(last_event_id, "Last-Event-ID")
    elif (starting_after := exchange.query("starting_after")) is not None:
        after = position(starting_after, "starting_after")
    if not await is_kept(services, row):
        raise errors.stream_expired()
    await check_reached(services, row.id, after)
    exchange.encoder = dialect.encoder(begin_answer(exchange, row, dialect))
    await exchange.send_head(200, STREAM_HEADERS)
    await exchange.send_body(b"")  # sends the head, for nothing may have been generated yet
    authorize = partial(authorize_again, exchange, services)
    keep_alive = dialect.keep_alive
    async for frames in remainder(services, exchange.encoder, row, after, authorize, settings.PING_MS):
        await exchange.send_body(frames or keep_alive)
        if frames:
            keep_alive = dialect.keep_alive_with_ids
    await exchange.send_body(b"", more=False)


async def cancel(exchange: Exchange) -> None:
    """`POST /v1/generations/{id}/cancel`: 202 when the workers know of it, 200 if it had already ended.

    Its stream ends normally, with the usage of what was generated.
    """
    exchange.allow("POST")
    services = await Services.get()
    row = await _generation(exchange, services)
    has_ended = row.state == State.SETTLED
    if not has_ended:
        await services.cancellations.cancel(row.id)
    state = row.state if has_ended else "cancelling"
    body = {"object": "generation.cancellation", "id": str(row), "state": state}
    await exchange.send_json(200 if has_ended else 202, msgspec.json.encode(body))


async def visible_generation(services: Services, caller: Caller, generation_id: UUID) -> Generation:
    """Return the caller's generation with that id. Raises the same 404 for another tenant's generation as for
    an unknown id.
    """
    row = await services.commits.read(
        lambda: access.visible_to(caller, Generation.objects.filter(id=generation_id)).first()
    )
    if row is None:
        raise errors.generation_not_found()
    return row


def answer_to(exchange: Exchange, generation: Generation | Admission) -> Answer:
    """Return what all parts of the generation's answer have in common."""
    return Answer(
        generation.id.hex,
        identity.created(generation.id),
        generation.requested_model or generation.model,
        generation.choices_count,
        generation.includes_usage,
        exchange.request_id,
    )


def begin_answer(exchange: Exchange, generation: Generation | Admission, dialect: Dialect) -> Answer:
    """Return what all parts have in common, and name the generation in the response's headers."""
    answer = answer_to(exchange, generation)
    exchange.response_headers.append((b"x-generation-id", dialect.public_id(answer.id).encode()))
    return answer


async def _generation(exchange: Exchange, services: Services) -> Generation:
    """Return the generation that the URL names, and respond in its protocol from now on. Raises as
    `visible_generation`.
    """
    caller, _ = await authenticate(exchange, services)
    generation_id = identity.parse_id(exchange.route_arguments["generation_id"] or "")
    if generation_id is None:
        raise errors.generation_not_found()
    row = await visible_generation(services, caller, generation_id)
    exchange.protocol = protocol_named(row.endpoint)
    return row


async def authorize_again(exchange: Exchange, services: Services) -> None:
    """Raise an error if the key is not valid any more, by the cache of callers if that has it.

    This is not `authenticate`: a stream that ends is no attempt to guess a key, and is not counted as one.
    """
    try:
        caller = await services.callers.authenticate(
            exchange.sent_key(), lambda key: services.commits.read(authentication.look_up, key)
        )
    except NotAuthenticated as error:
        raise errors.from_exception(error, exchange.key_headers) from None
    caller.require(exchange.kind.scope)
