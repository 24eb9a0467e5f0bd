"""The flow that all completion endpoints share: check, admit, enqueue, relay, and tell every failure as
designed.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

import msgspec
from django.conf import settings

from accounts import access
from accounts.authentication import Caller
from accounts.errors import RateLimited
from accounts.models import KeyScope
from accounts.rate_limits import Reservation
from chatapi import errors, identity
from chatapi.catalog import CatalogModel
from chatapi.delta_stream import Job
from chatapi.fair_room import NoRoom, Room
from chatapi.web import idempotency_header
from chatapi.web.endpoint import Endpoint
from chatapi.web.relay import CLOSING, LOST, relay
from chatapi.web.resumption import follow, is_kept
from chatapi.web.services import Services
from chatapi.wire import requests
from chatapi.wire.completion import Completion
from chatapi.wire.deltas import TERMINAL, AnyDelta, Failed, Usage
from chatapi.wire.dialects import Answer, Dialect, OpenAI
from chatapi.wire.parsed_request import TEXT, RequestSummary, parse
from chatapi.wire.requests import InvalidRequest
from chatapi.wire.sse import PING
from usage import pricing
from usage.books import ledger
from usage.books.idempotency import Idempotency, already_admitted, is_known
from usage.books.settlement import MAY_FARE_BETTER
from usage.errors import AlreadyAdmitted, NotPriced
from usage.failpoints import failpoint
from usage.models import Generation, Outcome, State
from usage.pricing import FREE, Price

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


MOST_SHOWN = 32
"""Characters of a header's value that an error repeats."""

PIECE_DELTAS = 256
"""So many deltas are encoded and sent at once."""

PATIENCE_S = 1.0
"""How often a body that arrives slowly is asked to give way."""


class Asked(NamedTuple):
    """What someone wants, checked as far as that goes without the books."""

    id: UUID
    caller: Caller
    dialect: Dialect
    request: RequestSummary
    model: CatalogModel
    price: Price
    """Of this caller: less its organization's discount, nothing for a test key."""


class Completions(Endpoint):
    """One request for a completion, streaming or not; subclasses say how it is read and which form its answer
    has.
    """

    endpoint: ClassVar[str]
    required_scope = KeyScope.COMPLETIONS
    takes_body = True
    is_ticket: ClassVar[bool] = False
    """The request is kept for an EventSource, which streams."""
    services: Services

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.content = b""
        """The validated request, until it is handed to the workers."""
        self.room: Room | None = None
        """What a large body takes up, until its request is queued."""
        self.test_room: Room | None = None
        """What a large body of a test key takes up until its generation has ended: nobody pays for it, so it
        has a bound of its own.
        """
        self.large_bytes = 0
        """How much of a large body was read."""
        self.has_taken = False
        """The request counts in the caller's rate limits."""
        self.answer: OpenAI | None = None
        self.used_tokens: int | None = None
        """What the generation used, when this process has seen its end."""
        self.is_repeated = False
        """Its idempotency key stands for a generation that there is already."""
        self.is_final = False
        """That one has ended, and its key stands for that end."""

    @property
    def is_nothing_charged(self) -> bool:
        """A request that fails has not been admitted, or is withdrawn; the one that it repeats, or may
        repeat, may well be charged.
        """
        return not self.is_repeated and self.header(b"idempotency-key") is None

    def encoder(self, dialect: Dialect, answer: Answer) -> OpenAI:
        """The dialect's form of this endpoint's answers."""
        raise NotImplementedError

    # ---- what comes in

    async def posted_by(self, services: Services) -> Caller:
        """Who posts this JSON; raises what is wrong with the key, then with the form, which counts as a
        refusal of that key.
        """
        self.allow("POST")
        caller = await self.caller(services)
        media_type = (self.header(b"content-type") or "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise errors.unsupported_media_type()
        if (coding := self.header(b"content-encoding")) and coding.strip().lower() != "identity":
            self.identifying.append((b"accept-encoding", b"identity"))
            raise errors.unsupported_content_coding(coding[:MOST_SHOWN])
        return caller

    @property
    def default_model(self) -> str | None:
        """The model of a request that names none, in a dialect whose document does not ask for one."""
        return None if self.dialect is None or self.dialect.chat.requires_model else settings.DEFAULT_MODEL

    def ended(self) -> None:
        """Releases the room that a large body took."""
        for room in (self.room, self.test_room):
            if room is not None:
                room.release()

    async def posted(self, services: Services) -> Asked:
        """The request in the body, by whoever posts it; a large body is only read for a key whose limits have
        room.
        """
        caller = await self.posted_by(services)
        is_large = await self.has_large_body()
        await self._check_limits(services, caller, is_large)
        if is_large:
            pieces = await self._read_large(services, caller)
            parsed = await services.parser.parse(
                pieces, self.endpoint, self.default_model, is_ticket=self.is_ticket
            )
        else:
            parsed = parse(
                await self.read_body(), self.endpoint, self.default_model, is_ticket=self.is_ticket
            )
        self.content = parsed.content
        return await self.asked(services, caller, parsed.summary)

    async def _check_limits(self, services: Services, caller: Caller, is_large: bool) -> None:
        """Raises `RateLimited` or 429 for what would be refused anyway, before its body is parsed and, if it
        is large, read.
        """
        try:
            services.rates.check(caller)
            if is_large:
                await services.rates.look(caller)
        except RateLimited:
            if not await self._may_be_repeated(services, caller):
                raise
        if is_large and (wait_ms := services.refused_bytes.wait_ms(caller.api_key_id)):
            raise errors.too_many_refused_bytes(wait_ms)

    async def _may_be_repeated(self, services: Services, caller: Caller) -> bool:
        """Whether the idempotency key stands for a request already: its answer needs no room."""
        header = self.header(b"idempotency-key")
        digest = idempotency_header.digest_of(header) if header else None
        return digest is not None and await services.commits.read(is_known, caller.api_key_id, digest)

    async def _read_large(self, services: Services, caller: Caller) -> list[bytes]:
        """The pieces of a large body, once there is room for it; raises 413 or `NoRoom`."""
        most_bytes = settings.MAX_BODY_BYTES if self.announced_bytes is None else self.announced_bytes
        if most_bytes > settings.MAX_BODY_BYTES:
            raise errors.body_too_large()
        if caller.is_test:
            self.test_room = await services.test_room.acquire(caller.organization_id, most_bytes)
        room = self.room = await services.room.acquire(caller.organization_id, most_bytes)
        pieces = []
        while (piece := await self._next_piece_in_time(room)) is not None:
            pieces.append(piece)
            self.large_bytes += len(piece)
            if self.large_bytes > most_bytes:
                raise errors.body_too_large()
        return pieces

    async def _next_piece_in_time(self, room: Room) -> bytes | None:
        while not room.must_give_way:
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    return await self.next_piece()
        raise NoRoom("a slow body gave way")

    def note_refusal(self, caller: Caller, error: Exception, failure: Failed) -> None:
        """Count the refused request in the caller's limits, as a repeated one is, and the bytes that were
        read for it.

        A 429 takes nothing here, so that whoever waits as long as told gets in.
        """
        super().note_refusal(caller, error, failure)
        if self.large_bytes:
            self.services.refused_bytes.add(caller.api_key_id, self.large_bytes)
        if not self.has_taken and failure.status != 429:
            self.services.in_background(self.services.rates.take_refused(caller, self.generation_id))

    async def asked(self, services: Services, caller: Caller, request: RequestSummary) -> Asked:
        """The request with its model; raises what is wrong with either for this dialect and model."""
        assert self.dialect is not None, "the dialect is chosen before the request is read"
        if self.dialect.chat.usage_is_opt_in:  # elsewhere the options mean nothing, with a stream or without
            requests.refuse_idle_stream_options(request)
        if not caller.may_use(request.model):
            raise errors.model_not_allowed(request.model)
        model = await services.model(request.model)
        if model is None:
            raise errors.model_not_found(request.model)
        if model.price is None:
            raise NotPriced(request.model)
        if not model.remote_media_allowed:
            requests.refuse_remote_media(request)
        if ignored := requests.ignored_parameters(request, model.extra_parameters):
            self.identifying.append((b"x-chatapi-ignored", ", ".join(ignored).encode()))
        discount = (await services.discounts.get()).get(caller.organization_id, 0)
        price = FREE if caller.is_test else pricing.discounted(model.price, discount)
        return Asked(self.generation_id, caller, self.dialect, request, model, price)

    # ---- what goes out

    async def complete(self, services: Services, asked: Asked) -> None:
        """Take from the limits, admit and enqueue, then answer; a request that was sent before has that one's
        answer.
        """
        later = "respond-async" in _preferences(self.header(b"prefer") or "")
        key = idempotency_header.of(self.header(b"idempotency-key"), asked.request)
        admission = _admission(asked, self.endpoint, key)
        try:
            await self._complete(services, asked, admission, later)
        except AlreadyAdmitted as error:
            if not error.is_same_request:
                raise
            self.is_repeated = True
            content = self._forget_content()
            row = await visible_generation(services, asked.caller, error.generation_id)
            if row.state == State.ADMITTED:
                # Follows the log and has no inbox; the first request's limits are released by its own process.
                await services.enqueue_again(row.id, Job("", content, runs_on=True))
            await self._respond_again(services, row, later)

    async def _complete(
        self, services: Services, asked: Asked, admission: ledger.Admission, later: bool
    ) -> None:
        """A request that is new, or that nobody knows yet to be an old one; what it has taken and not used is
        given back.
        """
        reservation = await self._take(services, asked, admission)
        self.has_taken = True
        self.identifying += reservation.headers()
        inbox = "" if later else services.inbox.name
        starting = services.in_background(
            _start(services, admission, _job(self.content, admission, inbox), self.room)
        )
        self.room = None
        try:
            await (
                self._respond_later(services, asked, admission, starting)
                if later
                else self._respond(services, asked, admission, starting)
            )
        finally:
            services.in_background(_release(services, reservation, self.used_tokens, starting))

    def _forget_content(self) -> bytes:
        """Give up the request's content, and return it: the stream that follows may run for hours."""
        content, self.content = self.content, b""
        return content

    async def _take(self, services: Services, asked: Asked, admission: ledger.Admission) -> Reservation:
        """What it takes from the caller's limits. Where they have no room, `AlreadyAdmitted` for what was
        sent before: that needs none.
        """
        try:
            return await services.rates.take(
                asked.caller, asked.id, model=asked.request.model, tokens=admission.most_tokens
            )
        except RateLimited as error:
            if admission.idempotency is None:
                raise
            known = await services.commits.read(already_admitted, admission.api_key_id, admission.idempotency)
            if known is None:
                raise
            self.identifying += error.headers()
            raise known from None

    async def _respond(
        self, services: Services, asked: Asked, admission: ledger.Admission, starting: "asyncio.Task[None]"
    ) -> None:
        """Relay it; whoever leaves before the end has the generation cancelled."""
        self.answer = self.encoder(asked.dialect, _answer(asked.id, asked.request))
        # Nothing was awaited since it began to start: nothing is missed.
        follower = services.inbox.follow(asked.id, asked.caller.organization_id)
        is_wanted = True
        try:
            # Shielded: a client that leaves now must not leave a hold behind that nobody works on.
            await asyncio.shield(starting)
            self._forget_content()
            self.identifying.append((b"x-generation-id", self.answer.public_id.encode()))
            await self._tell(relay(services, follower, settings.PING_MS), asked.request.stream)
            is_wanted = False
        finally:
            services.inbox.leave(follower)
            # Who sends an idempotency key will come back for the answer.
            if is_wanted and admission.idempotency is None and not _has_failed(starting):
                services.abandon(asked.id)

    async def _respond_later(
        self, services: Services, asked: Asked, admission: ledger.Admission, starting: "asyncio.Task[None]"
    ) -> None:
        """202, with the address of the stream (RFC 7240, "respond-async"): no client's leaving ends this
        generation, once it has that.
        """
        try:
            await asyncio.shield(starting)
            self._forget_content()
            answer = self.encoder(asked.dialect, _answer(asked.id, asked.request))
            self.identifying.append((b"x-generation-id", answer.public_id.encode()))
            await self._send_accepted(answer.public_id, asked.dialect.name)
        except asyncio.CancelledError:
            # Without its address nobody can fetch it, but by an idempotency key.
            if not self.is_started and admission.idempotency is None:
                services.give_up(asked.id)
            raise

    async def _respond_again(self, services: Services, row: Generation, later: bool) -> None:
        """The answer of the generation that this idempotency key stands for already: attached to, or
        replayed.
        """
        assert self.dialect is not None, "the dialect is chosen before anything is admitted"
        self.answer = answer_to(row, self.dialect)
        self.identifying.append((b"x-generation-id", self.answer.public_id.encode()))
        # Of one that never started there is no stream, and never was: the books have its end.
        if row.outcome != Outcome.NOT_STARTED and not await is_kept(services, row):
            raise errors.stream_expired()
        self.identifying.append((b"idempotent-replayed", b"true"))
        if later:
            await self._send_accepted(self.answer.public_id, self.dialect.name)
            return
        self.is_final = row.state == State.SETTLED and not (row.is_waived and row.outcome in MAY_FARE_BETTER)
        await self._tell(follow(services, row, settings.PING_MS), row.is_stream)

    async def _send_accepted(self, public_id: str, dialect: str) -> None:
        path = f"/{dialect}/v1/generations/{public_id}"
        body = {"id": public_id, "object": "generation", "stream_url": f"{path}/stream", "receipt_url": path}
        headers = [(b"location", f"{path}/stream".encode()), (b"preference-applied", b"respond-async")]
        await self.send_json(202, msgspec.json.encode(body), headers)

    async def handle_error(self, error: Exception) -> None:
        """Tell the client: as an HTTP error, or inside the stream when it has begun."""
        if self.is_complete:
            return
        failure = self.told(error)
        if self.is_started and self.answer is not None:
            await self.send_body(self.answer.failed(failure), more=False)
        elif (frames := self._invalid_stream(error, failure)) is not None:
            await self.send_head(200, STREAM_HEADERS)
            await self.send_body(frames, more=False)
        else:
            await self.send_error(failure)

    def _invalid_stream(self, error: Exception, failure: Failed) -> bytes | None:
        """What a dialect tells inside a stream about a request that was not valid."""
        if self.dialect is None or not isinstance(error, InvalidRequest) or not error.is_stream:
            return None
        return self.dialect.chat.invalid_stream(failure)

    async def _tell(self, batches: AsyncIterator[list[AnyDelta]], is_stream: bool) -> None:
        await (self._stream(batches) if is_stream else self._collect(batches))
        failpoint("view.after_terminal")

    async def _stream(self, batches: AsyncIterator[list[AnyDelta]]) -> None:
        """Relay deltas as they come; the first one decides the status."""
        assert self.answer is not None
        async for batch in batches:
            if not self.is_started:
                if batch and isinstance(batch[0], Failed):
                    await self._send_failure(batch[0])
                    return
                await self.send_head(200, STREAM_HEADERS)
            is_last = bool(batch) and isinstance(batch[-1], TERMINAL)
            if is_last and isinstance(batch[-1], Usage):
                self.used_tokens = batch[-1].total_tokens
            rest = await self._send_beginning(self.answer, batch) if len(batch) > PIECE_DELTAS else batch
            await self.send_body(self.answer.encode(rest) if rest else PING, more=not is_last)

    async def _send_beginning(self, answer: OpenAI, batch: list[AnyDelta]) -> list[AnyDelta]:
        """Send a long batch in pieces, but the last one, which it answers; between them others have their
        turn.
        """
        last_start = (len(batch) - 1) // PIECE_DELTAS * PIECE_DELTAS
        for start in range(0, last_start, PIECE_DELTAS):
            await self.send_body(answer.encode(batch[start : start + PIECE_DELTAS]))
            await asyncio.sleep(0)  # also lets the news arrive that the client has left
        return batch[last_start:]

    async def _collect(self, batches: AsyncIterator[list[AnyDelta]]) -> None:
        """Wait for the end, then answer with one object."""
        assert self.answer is not None
        completion = Completion()
        async for batch in batches:
            for delta in batch:
                completion.add(delta)
        if completion.failure is not None:
            await self._send_failure(completion.failure)
        else:
            self.used_tokens = completion.usage.total_tokens if completion.usage else None
            await self.send_json(200, self.answer.body(completion))

    async def _send_failure(self, failure: Failed) -> None:
        """A failure instead of an answer. One that the key would only repeat invites nobody back; losing
        touch is another matter.
        """
        if self.is_final and failure not in (LOST, CLOSING):
            failure = msgspec.structs.replace(failure, retry_after_ms=None)
            if errors.NO_RETRY not in errors.headers(failure):  # SDKs do not understand it twice
                self.identifying.append(errors.NO_RETRY)
        await self.send_error(failure)


def _admission(asked: Asked, endpoint: str, key: Idempotency | None) -> ledger.Admission:
    """What is asked for and held."""
    caller, request, model = asked.caller, asked.request, asked.model
    return ledger.Admission(
        id=asked.id,
        organization_id=caller.organization_id,
        project_id=caller.project_id,
        api_key_id=caller.api_key_id,
        time_zone=caller.time_zone,
        is_test=caller.is_test,
        model=request.model,
        endpoint=endpoint,
        dialect=asked.dialect.name,
        is_stream=request.stream,
        choices_count=request.choices_count,
        sampled_count=request.sampled_count,
        max_output_tokens=_cap(request.max_output_tokens, model.max_output_tokens),
        prompt_tokens_bound=request.prompt_tokens_bound(model.context_window),
        max_prompt_tokens=request.max_prompt_tokens(model.context_window),
        price=asked.price,
        queue_ttl_ms=settings.QUEUE_TTL_MS,
        includes_usage=request.include_usage,
        idempotency=key,
    )


def _cap(wish: int | None, most: int) -> int:
    return most if wish is None else min(wish, most)


def answer_to(row: Generation, dialect: Dialect) -> OpenAI:
    """The encoder that has written, or would write, the answer of a generation that was admitted before."""
    answer = Answer(row.id.hex, identity.created(row.id), row.model, row.choices_count, row.includes_usage)
    return (dialect.text if row.endpoint == TEXT else dialect.chat)(answer)


def _answer(generation_id: UUID, request: RequestSummary) -> Answer:
    include_usage = request.stream and request.include_usage
    return Answer(
        generation_id.hex,
        identity.created(generation_id),
        request.model,
        request.choices_count,
        include_usage,
    )


def _job(content: bytes, admission: ledger.Admission, inbox: str) -> Job:
    runs_on = admission.idempotency is not None or not inbox
    return Job(inbox, content, runs_on)


async def _start(services: Services, admission: ledger.Admission, job: Job, room: Room | None) -> None:
    """Admit, then enqueue: runs to its end even if the client leaves meanwhile, so that no hold is left
    behind.
    """
    try:
        await services.commits.write(ledger.admit, admission)
        failpoint("admit.after_commit")
        await services.enqueue(admission.id, job)
        failpoint("enqueue.after")
    finally:
        if room is not None:
            room.release()


async def _release(
    services: Services, reservation: Reservation, used_tokens: int | None, starting: "asyncio.Task[None]"
) -> None:
    """Give back what it did not use: all of it if it never ran, which the books would not know."""
    if not starting.done():  # its client has left while it was being admitted
        await asyncio.wait([starting])
    await services.rates.release(reservation, 0 if _has_failed(starting) else used_tokens)


async def visible_generation(services: Services, caller: Caller, generation_id: UUID) -> Generation:
    """The caller's generation with that id; raises 404, the same for another tenant's."""
    row = await services.commits.read(
        lambda: access.visible_to(caller, Generation.objects.filter(id=generation_id)).first()
    )
    if row is None:
        raise errors.generation_not_found()
    return row


def _preferences(header: str) -> set[str]:
    """The names of what the client prefers (RFC 7240, section 2), without what they are set to."""
    return {
        preference.partition(";")[0].partition("=")[0].strip().lower() for preference in header.split(",")
    }


def _has_failed(task: "asyncio.Task[None]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
