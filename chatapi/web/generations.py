"""The endpoints of one generation: its stream again, and its end before its time."""

from urllib.parse import parse_qs

import msgspec

from accounts.models import KeyScope
from chatapi import errors, identity
from chatapi.web.completions import STREAM_HEADERS, answer_to, visible_generation
from chatapi.web.endpoint import Endpoint
from chatapi.web.resumption import Position, is_kept, position, remainder
from chatapi.web.services import Services
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
    """`GET /v1/generations/{id}/stream`: the stream from its beginning, or behind `Last-Event-ID` or `?starting_after=`.

    Here each event has an `id`; so there are no comments, which SDKs don't bear beside ids.
    """

    async def answer_request(self, body: bytes) -> None:
        """Replay, then follow to the end. Whoever leaves this stream cancels nothing."""
        self.allow("GET")
        services = await Services.get()
        row = await self.generation(services)
        after = self._position()
        if not await is_kept(services, row):
            raise errors.stream_expired()
        encoder = answer_to(row, self.choose_dialect(row.dialect))
        self.identifying.append((b"x-generation-id", encoder.public_id.encode()))
        await self.send_head(200, STREAM_HEADERS)
        async for frames in remainder(services, encoder, row.id, after):
            await self.send_body(frames)
        await self.send_body(b"", more=False)

    def _position(self) -> Position:
        query = parse_qs(self.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if found := query.get("starting_after"):
            return position(found[0], "starting_after")
        last_event_id = self.header(b"last-event-id")
        return position(last_event_id, "Last-Event-ID") if last_event_id else Position(0, None)


class GenerationCancel(_OfGeneration):
    """`POST /v1/generations/{id}/cancel`: stop it now; its stream ends normally, with the usage of what was generated."""

    async def answer_request(self, body: bytes) -> None:
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
