"""The endpoints of one generation: its stream again, and its end before its time."""

from functools import partial
from urllib.parse import parse_qs

import msgspec
from django.conf import settings

from accounts import authentication
from accounts.models import KeyScope
from chatapi import errors, identity
from chatapi.web.completions import STREAM_HEADERS, answer_to, visible_generation
from chatapi.web.endpoint import Endpoint
from chatapi.web.resumption import Position, check_reached, is_kept, position, remainder
from chatapi.web.services import Services
from chatapi.wire.dialects import OpenAI
from usage.models import Generation, State


class _OfGeneration(Endpoint):
    """What has to do with one generation of the caller's."""

    required_scope = KeyScope.GENERATIONS

    async def generation(self, services: Services) -> Generation:
        """The generation that the URL names; raises 404, the same for another tenant's."""
        caller = await self.caller(services)
        generation_id = identity.parse_id(self.route_arguments["generation_id"] or "")
        if generation_id is None:
            raise errors.generation_not_found()
        return await visible_generation(services, caller, generation_id)


class GenerationStream(_OfGeneration):
    """`GET /v1/generations/{id}/stream`: the stream from its beginning, or behind `Last-Event-ID` or
    `?starting_after=`.

    Here each event has an `id`; so behind the first one, a keep-alive is a comment without a blank line
    (`PING_LINE`).
    """

    encoder: OpenAI | None = None
    """Writes the stream, once it can be had."""

    async def answer_request(self) -> None:
        """Replay, then follow to the end. Whoever leaves this stream cancels nothing."""
        self.allow("GET")
        services = await Services.get()
        row = await self.generation(services)
        after = self._position()
        if not await is_kept(services, row):
            raise errors.stream_expired()
        await check_reached(services, row.id, after)
        encoder = self.encoder = answer_to(row, self.choose_dialect(row.dialect))
        self.identifying.append((b"x-generation-id", encoder.public_id.encode()))
        await self.send_head(200, STREAM_HEADERS)
        await self.send_body(b"")  # sends the head, for nothing may have been generated yet
        authorize = partial(self._authorize, services)
        async for frames in remainder(services, encoder, row, after, authorize, settings.PING_MS):
            await self.send_body(frames)
        await self.send_body(b"", more=False)

    async def handle_error(self, error: Exception) -> None:
        """Tell the client: as an HTTP error, or inside the stream when it has begun."""
        if self.is_started and self.encoder is not None and not self.is_complete:
            await self.send_body(self.encoder.failed(self.told(error)), more=False)
        else:
            await super().handle_error(error)

    async def _authorize(self, services: Services) -> None:
        """Whether the key is still good, as the last request with it has learned; raises an `AccountsError`.

        Not `caller`: a stream that ends is no attempt to guess a key, and is not counted as one.
        """
        header = self.header(b"authorization")
        caller = await services.callers.authenticate(
            header, lambda key: services.commits.read(authentication.look_up, key)
        )
        caller.require(self.required_scope)

    def _position(self) -> Position:
        """The header's first: an EventSource that comes back by itself sends it to the address that it began
        with.
        """
        if last_event_id := self.header(b"last-event-id"):
            return position(last_event_id, "Last-Event-ID")
        query = parse_qs(self.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        found = query.get("starting_after")
        return position(found[0], "starting_after") if found else Position(0, None)


class GenerationCancel(_OfGeneration):
    """`POST /v1/generations/{id}/cancel`: stop it now; its stream ends normally, with the usage of what was
    generated.
    """

    async def answer_request(self) -> None:
        """202 when the workers have been told, 200 when it had ended already."""
        self.allow("POST")
        services = await Services.get()
        row = await self.generation(services)
        has_ended = row.state == State.SETTLED
        if not has_ended:
            await services.cancel(row.id)
        state = row.state if has_ended else "cancelling"
        told = {"object": "generation.cancellation", "id": str(row), "state": state}
        await self.send_json(200 if has_ended else 202, msgspec.json.encode(told))
