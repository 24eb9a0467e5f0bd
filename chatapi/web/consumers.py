"""The hot endpoints, one consumer each: how a request is read, and which form its answer has."""

import logging
from typing import ClassVar
from urllib.parse import parse_qs

import msgspec
from redis.exceptions import RedisError

from accounts import authentication
from chatapi import errors, identity
from chatapi.delta_log import StreamUnavailable
from chatapi.web.body_room import LARGE_BYTES
from chatapi.web.completions import Asked, Completions
from chatapi.web.services import Services
from chatapi.web.tickets import Ticket, TooManyTickets
from chatapi.wire import parsed_request
from chatapi.wire.deltas import Failed
from chatapi.wire.dialects import Answer, Dialect, OpenAI
from chatapi.wire.parsed_request import CHAT, TEXT, RequestSummary

log = logging.getLogger(__name__)


class _Chat(Completions):
    """What has to do with chat requests."""

    endpoint: ClassVar[str] = CHAT

    def encoder(self, dialect: Dialect, answer: Answer) -> OpenAI:
        """A chat completion."""
        return dialect.chat(answer)


class ChatCompletions(_Chat):
    """`POST /v1/chat/completions` (OpenAI's API reference, "Create chat completion"), and its form for an
    EventSource: `GET /v1/chat/completions?ticket=…`.
    """

    async def answer_request(self) -> None:
        """A GET with a ticket streams what was posted for it; all else is a POST, or should be."""
        services = self.services = await Services.get()
        secret = self._ticket()
        asked = await self.posted(services) if secret is None else await self._redeemed(services, secret)
        await self.complete(services, asked)

    def _ticket(self) -> str | None:
        if self.scope["method"] != "GET":
            return None
        found = parse_qs(self.scope["query_string"].decode("latin-1")).get("ticket")
        return found[0] if found else None

    async def _redeemed(self, services: Services, secret: str) -> Asked:
        """What the ticket stands for, if its key is still good."""
        if await self.has_large_body():
            raise errors.body_too_large("A GET takes no request body.")
        try:
            ticket = await services.tickets.redeem(secret)
        except (RedisError, OSError) as error:
            raise StreamUnavailable(str(error)) from error
        if ticket is None:
            raise errors.invalid_ticket()
        caller = await services.commits.read(authentication.look_up_id, ticket.api_key_id)
        self.know(caller)
        caller.require(self.required_scope)
        self.choose_dialect(ticket.dialect)
        self.content = ticket.request
        return await self.asked(services, caller, _summary_of(ticket))


class ChatTickets(_Chat):
    """`POST /v1/chat/completions/tickets`: the address at which an EventSource gets this chat's stream, once."""

    is_ticket = True

    async def answer_request(self) -> None:
        """201 with the ticket; nothing is admitted or charged before it is used."""
        services = self.services = await Services.get()
        asked = await self.posted(services)
        summary = msgspec.structs.replace(asked.request, stream=True)
        ticket = Ticket(asked.id, asked.caller.api_key_id, asked.dialect.name, self.content, summary=summary)
        try:
            secret = await services.tickets.issue(ticket)
        except TooManyTickets as error:
            raise errors.too_many_tickets(services.tickets.most_bytes, error.retry_after_ms) from None
        except (RedisError, OSError) as error:
            raise StreamUnavailable(str(error)) from error
        await self.send_json(201, _ticket_body(asked, secret, services.tickets.ttl_ms))

    def _invalid_stream(self, error: Exception, failure: Failed) -> None:
        """None: whatever the request asks for, a ticket is no stream."""


class TextCompletions(Completions):
    """`POST /v1/completions` (OpenAI's API reference, "Create completion")."""

    endpoint: ClassVar[str] = TEXT

    def encoder(self, dialect: Dialect, answer: Answer) -> OpenAI:
        """A text completion."""
        return dialect.text(answer)

    async def answer_request(self) -> None:
        """Answer the text request in the body."""
        services = self.services = await Services.get()
        await self.complete(services, await self.posted(services))


def _summary_of(ticket: Ticket) -> RequestSummary:
    """What was posted; raises 401 for what another version has validated, so that it is posted again."""
    if (
        ticket.summary is not None and len(ticket.request) > LARGE_BYTES
    ):  # whether a worker can read it is seen there
        return ticket.summary
    try:
        return parsed_request.read(ticket.request, CHAT).summary
    except msgspec.DecodeError as error:
        log.error("a ticket's request can't be read: %s", error)
        raise errors.invalid_ticket() from None


def _ticket_body(asked: Asked, secret: str, ttl_ms: int) -> bytes:
    return msgspec.json.encode(
        {
            "object": "chat.completion.ticket",
            "id": secret,
            "expires_at": identity.created(asked.id) + ttl_ms // 1_000,
            "url": f"/{asked.dialect.name}/v1/chat/completions?ticket={secret}",
        }
    )
