"""Stored responses (`/v1/responses/{id}`): read, list the input of, stream again, cancel, delete, continue.

Redis keeps the two parts of a response as long as a generation's log: its state (the content of the request)
and the log itself (the content of the answer). If its project stores responses for days, they are then read
from the database (`response_store.py`). The books tell who owns a response.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from django.conf import settings

from accounts import access
from accounts.authentication import Caller
from accounts.limits import DAY_MS
from chatapi import errors, identity, response_store
from chatapi.web.exchange import Exchange, authenticate
from chatapi.web.generations import answer_to, authorize_again
from chatapi.web.relay import CLOSING, LOST, Authorize, Pace, frames_of, terminal_of
from chatapi.web.resumption import follow, snapshot
from chatapi.web.services import Services
from chatapi.wire import deltas
from chatapi.wire.deltas import TERMINAL, AnyDelta
from chatapi.wire.invalid_request import InvalidRequest, UnresolvedReferences
from chatapi.wire.protocols import Answer
from chatapi.wire.protocols.envelope import STREAM_HEADERS
from chatapi.wire.protocols.responses import stored
from usage.books import reports
from usage.models import Generation
from usage.models import State as RowState

# The most responses that the item references of one request may lead to.
MAX_REFERENCED: Final = 64
# Reading this many bytes of a state takes as long as a delta (`fair_turns.py`).
STATE_UNIT_BYTES: Final = 4_096
# How long a cancellation waits for the end that it brings.
CANCEL_WAIT_S: Final = 5.0
# How long the log of a response that was deleted while it ran outlives its end, for its followers.
DELETED_LOG_MS: Final = 3_000
# The most deltas that are encoded at once.
PIECE_DELTAS: Final = 256


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored response: its row in the books, and what was kept of its request."""

    services: Services
    row: Generation
    answer: Answer
    state: stored.State
    batches: list[bytes] | None
    """The response's deltas, if Redis no longer has them."""

    async def folded(self) -> stored.Folder:
        """Return the response as it is now. Raises 503 if its answer cannot be read at the moment."""
        folder = stored.queued(self.answer, self.state)
        # A response in Redis may still grow; one in the database does not.
        is_live = self.batches is None
        async for batch in snapshot(self.services, self.row) if is_live else self._stored_deltas():
            for delta in batch:
                if delta in (LOST, CLOSING):  # a failure of this request, not of the response
                    raise errors.APIError(delta)
                folder.add(delta)
        return folder

    def follow(self, authorize: Authorize) -> AsyncIterator[list[AnyDelta]]:
        """Return its deltas from the beginning, as they come; see `relay`."""
        if self.batches is None:
            return follow(self.services, self.row, settings.PING_MS, authorize)
        return self._stored_deltas()

    async def _stored_deltas(self) -> AsyncIterator[list[AnyDelta]]:
        batch: list[AnyDelta] = []
        for encoded in self.batches or ():
            batch = deltas.decode(encoded)
            # Decoding a long response takes as long as streaming it, so it takes turns with the streams.
            await self.services.turns.take(self.row.organization_id, 1 + len(batch))
            yield batch
        if not (batch and isinstance(batch[-1], TERMINAL)):  # its settler died before it published the end
            end = await self.services.commits.read(reports.end_of, self.row.id)
            if end is not None:
                yield terminal_of(end)


# ---- the kinds of request


async def retrieve(exchange: Exchange) -> None:
    """`GET /v1/responses/{id}`: the response as it is now, or its events. `DELETE` deletes it."""
    exchange.allow("GET", "DELETE")
    if exchange.method == "DELETE":
        await _delete(exchange)
        return
    services = await Services.get()
    wants_stream = stored.wants_stream(exchange.query)
    found = await _requested(exchange, services)
    if wants_stream:
        await _stream(exchange, services, found)
    else:
        await exchange.send_json(200, (await found.folded()).body())


async def list_input_items(exchange: Exchange) -> None:
    """`GET /v1/responses/{id}/input_items`: the items of the conversation, page by page."""
    exchange.allow("GET")
    services = await Services.get()
    query = stored.page_query(exchange.query)
    found = await _requested(exchange, services)
    await exchange.send_json(200, stored.input_page(found.answer.id, found.state, query))


async def cancel(exchange: Exchange) -> None:
    """`POST /v1/responses/{id}/cancel`: stop a response in the background, and return it."""
    exchange.allow("POST")
    services = await Services.get()
    found = await _requested(exchange, services)
    if not found.state.is_background:
        raise errors.not_cancellable()
    if found.row.state != RowState.SETTLED:
        await services.cancellations.cancel(found.row.id)
        # The cancellation holds even if its end comes later; the object then says `in_progress`.
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_WAIT_S):
                async for batch in follow(services, found.row):
                    if batch and isinstance(batch[-1], TERMINAL):
                        break
    await exchange.send_json(200, (await found.folded()).body())


async def _delete(exchange: Exchange) -> None:
    services = await Services.get()
    found = await _requested(exchange, services)
    # Redis before the database: a process that is storing the response finds in Redis that it is deleted.
    stream, has_ended = services.streams.of(found.row.id), found.row.state == RowState.SETTLED
    await stream.delete(found.row.id, has_ended=has_ended)
    await services.commits.read(response_store.delete, found.row.id)
    if not has_ended:
        services.in_background(_forget_answer(services, found.row))
    await exchange.send_json(200, stored.deleted(found.answer))


async def _forget_answer(services: Services, row: Generation) -> None:
    """Let the log of a deleted response expire soon after its end: until then its worker writes it."""
    async for _ in follow(services, row):
        pass
    # A stream may end before its generation: a lost worker's log is still needed, to charge for it.
    if await services.commits.read(reports.end_of, row.id) is not None:
        stream = services.streams.of(row.id)
        await stream.forget({row.id: DELETED_LOG_MS})
        # Once more, for a process that began to store the response at its end and takes longer than that.
        await stream.delete(row.id, has_ended=False)


async def _stream(exchange: Exchange, services: Services, found: Stored) -> None:
    """Send the events that the client asks for, as they come; a client that leaves cancels nothing."""
    after = stored.starting_after(exchange.query)
    exchange.encoder = stored.events(found.answer, found.state, after)
    await exchange.send_head(200, STREAM_HEADERS)
    # So that the head leaves at once, even if the first event takes long.
    await exchange.send_body(b"")
    authorize = partial(authorize_again, exchange, services)
    keep_alive = exchange.protocol.dialect("").keep_alive
    pace = Pace(settings.PING_MS)
    async for batch in found.follow(authorize):
        has_frames = False
        for start in range(0, len(batch), PIECE_DELTAS):
            frames = frames_of(exchange.encoder, batch[start : start + PIECE_DELTAS])
            has_frames |= bool(frames)
            await exchange.send_body(frames)
        if pace.needs_keep_alive(batch, has_frames=has_frames):
            await exchange.send_body(keep_alive)
    await exchange.send_body(b"", more=False)


# ---- what a new request refers to


async def resolve(
    exchange: Exchange,
    services: Services,
    caller: Caller,
    references: UnresolvedReferences,
    pieces: Sequence[bytes],
) -> list[bytes]:
    """Return the body with the items that it refers to. Another tenant's items are a 404, as unknown ones."""
    previous = b""
    if references.previous is not None:
        previous = await _conversation(exchange, services, caller, references.previous)
    items = await _referenced(exchange, services, caller, references.items)
    return stored.resolved_body(pieces, previous, items)


async def _referenced(
    exchange: Exchange, services: Services, caller: Caller, references: dict[str, str]
) -> list[tuple[str, bytes]]:
    """Return the items with these ids, as JSON; `references` has the path of each id."""
    responses: dict[UUID, str] = {}
    for item_id, param in references.items():
        # The id names its response, so no index of items is needed.
        if (response_id := stored.response_of(item_id)) is None:
            raise _item_not_found(caller, item_id, param)
        responses.setdefault(response_id, item_id)
    if len(responses) > MAX_REFERENCED:
        message = f"The input refers to items of more than {MAX_REFERENCED} responses."
        raise InvalidRequest(message, stored.ITEMS_PARAM)
    outputs: dict[str, bytes] = {}
    for response_id, item_id in responses.items():
        if (found := await _find(exchange, services, caller, response_id)) is None:
            raise _item_not_found(caller, item_id, references[item_id])
        outputs |= stored.output_items(await found.folded())
        # Checked in the loop, because a small request may refer to 64 of the largest answers.
        if sum(map(len, outputs.values())) > settings.MAX_BODY_BYTES:
            raise errors.body_too_large()
    if unknown := next((item_id for item_id in references if item_id not in outputs), None):
        raise _item_not_found(caller, unknown, references[unknown])
    return [(item_id, outputs[item_id]) for item_id in references]


async def _conversation(exchange: Exchange, services: Services, caller: Caller, response_id: str) -> bytes:
    found = await _find(exchange, services, caller, identity.parse_id(response_id))
    if found is None:
        raise errors.previous_response_not_found(response_id, stored.CONTINUED_PARAM, _kept_ms(caller))
    folder = await found.folded()
    if folder.usage is None:
        # A failed answer can't be continued either: it is incomplete.
        raise errors.response_in_progress(response_id, stored.CONTINUED_PARAM)
    return stored.conversation(found.state, folder)


def _item_not_found(caller: Caller, item_id: str, param: str) -> Exception:
    return _not_found(caller, f"Item with id '{item_id}'", param)


def _not_found(caller: Caller, what: str, param: str) -> Exception:
    return errors.response_not_found(what, param, _kept_ms(caller))


def _kept_ms(caller: Caller) -> int:
    return caller.stores_responses_days * DAY_MS or settings.STREAM_TTL_MS


# ---- finding one


async def _requested(exchange: Exchange, services: Services) -> Stored:
    """Return the response that the URL names. Another tenant's response is a 404, as an unknown one."""
    caller, _ = await authenticate(exchange, services)
    response_id = exchange.route_arguments["response_id"] or ""
    found = await _find(exchange, services, caller, identity.parse_id(response_id))
    if found is None:
        raise _not_found(caller, f"Response with id '{response_id[:64]}'", "response_id")
    return found


async def _find(
    exchange: Exchange, services: Services, caller: Caller, generation_id: UUID | None
) -> Stored | None:
    """Return the caller's stored response with that id, as long as it is kept."""
    if generation_id is None:
        return None
    # The row decides who may read; Redis knows no tenants.
    rows = access.visible_to(caller, Generation.objects.filter(id=generation_id, endpoint=stored.ENDPOINT))
    row = await services.commits.read(rows.first)
    if row is None:
        return None
    state, batches = await services.streams.of(row.id).state(row.id), None
    # An old row must not be found in the database after its project has stopped storing.
    if state is None and caller.stores_responses_days:
        content = await services.commits.read(response_store.find, caller, row.id)
        if content is not None:
            state, batches = content.state, content.batches
    if not state:  # unknown, or deleted
        return None
    await services.turns.take(caller.organization_id, len(state) // STATE_UNIT_BYTES)
    return Stored(services, row, answer_to(exchange, row), stored.read_state(state), batches)
