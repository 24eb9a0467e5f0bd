"""The kinds of request that end in a completion: validate the request, admit it, and respond.

`create`, `chat` and the others are the code of their kinds (`kinds.py`).
"""

import msgspec
from django.conf import settings

from accounts.limits import NOTHING_USED
from chatapi import errors, identity
from chatapi.web.admission import complete, end_user_limits
from chatapi.web.byte_windows import WindowFull
from chatapi.web.exchange import Exchange
from chatapi.web.responses import send_folded
from chatapi.web.services import Services
from chatapi.web.tickets import Ticket
from chatapi.web.validation import redeem, validate
from chatapi.wire.deltas import Usage
from chatapi.wire.protocols import Answer


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
    """Answer with an estimate of the prompt's tokens. It is free, but counts as a request in limits."""
    services = await Services.get()
    request = await validate(exchange, services)
    summary = request.summary
    more = await end_user_limits(services, request.caller, summary.end_user)
    reservation = await services.rates.take(
        request.caller, exchange.id, model=request.model.id, amounts=NOTHING_USED, more=more
    )
    exchange.is_counted = True
    services.in_background(services.rates.release(reservation, NOTHING_USED))
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
    expires_at = identity.created(exchange.id) + services.tickets.ttl_ms // 1_000
    assert exchange.protocol.ticket is not None, "a protocol whose route issues tickets writes them"
    body = exchange.protocol.ticket(secret, expires_at, f"{settings.PATH_PREFIX}/{dialect}")
    await exchange.send_json(201, body)
