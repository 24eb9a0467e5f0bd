"""The hot routes: one table of the kinds of request, each with its code, and what all of them share."""

import logging
from typing import Final

from accounts.models import KeyScope
from chatapi import errors
from chatapi.log_formats import fields
from chatapi.web import completions, generations, stored_responses
from chatapi.web.event_stream_consumer import EventStreamConsumer
from chatapi.web.exchange import Exchange, Kind
from chatapi.web.failures import send_failure
from chatapi.wire.protocols.chat import CHAT
from chatapi.wire.protocols.embeddings import EMBEDDINGS
from chatapi.wire.protocols.messages import COUNT_TOKENS, MESSAGES
from chatapi.wire.protocols.responses import COUNT_INPUT, RESPONSES
from chatapi.wire.protocols.text_completions import TEXT_COMPLETIONS

access_log = logging.getLogger("chatapi.access")

_CREATE, _READ = KeyScope.COMPLETIONS, KeyScope.GENERATIONS
_RESPONSE = r"responses/(?P<response_id>[^/]+)"
_GENERATION = r"generations/(?P<generation_id>[^/]+)"

KINDS: Final = [
    Kind("chat", r"chat/completions", completions.chat, _CREATE, CHAT.name),
    Kind("text", r"completions", completions.create, _CREATE, TEXT_COMPLETIONS.name),
    Kind("messages", r"messages", completions.create, _CREATE, MESSAGES.name),
    Kind("count", r"messages/count_tokens", completions.count_tokens, _CREATE, COUNT_TOKENS.name),
    Kind("embeddings", r"embeddings", completions.create, _CREATE, EMBEDDINGS.name),
    Kind(
        *("responses", r"responses", completions.create, _CREATE, RESPONSES.name),
        resolve=stored_responses.resolve,
    ),
    Kind(
        *("input", r"responses/input_tokens", completions.count_tokens, _CREATE, COUNT_INPUT.name),
        resolve=stored_responses.resolve,
    ),
    Kind("response", _RESPONSE, stored_responses.retrieve, _READ),
    Kind("response_input", _RESPONSE + r"/input_items", stored_responses.list_input_items, _READ),
    Kind("response_cancel", _RESPONSE + r"/cancel", stored_responses.cancel, _READ),
    Kind("ticket", r"chat/completions/tickets", completions.issue_ticket, _CREATE, CHAT.name, is_ticket=True),
    Kind("resume", _GENERATION + r"/stream", generations.resume, _READ),
    Kind("cancel", _GENERATION + r"/cancel", generations.cancel, _READ),
]


async def serve(kind: Kind, connection: EventStreamConsumer) -> None:
    """Answer one request with its kind's code, or with the error that it raises."""
    exchange = Exchange(kind, connection)
    try:
        if not kind.protocol and await exchange.has_large_body():
            raise errors.body_too_large("This route takes no request body.")
        await kind.code(exchange)
    except Exception as error:
        if not exchange.is_complete:
            await send_failure(exchange, error)
    finally:
        for room in exchange.rooms:
            room.release()
        exchange.end_span()
        if not exchange.is_admitted:  # those have a line when they are settled
            access_log.info(
                kind.name,
                extra=fields(
                    method=exchange.method, status=exchange.status, ms=exchange.took_ms, id=exchange.id.hex
                ),
            )
