"""The hot endpoints, one consumer each: authenticate, parse, admit, enqueue, relay."""

import asyncio
import logging
from typing import Any, ClassVar, cast
from uuid import UUID

from django.conf import settings

from accounts.authentication import Caller
from chatapi import errors, identity
from chatapi.catalog import CatalogModel
from chatapi.delta_stream import StreamUnavailable
from chatapi.errors import APIError
from chatapi.web.event_stream_consumer import EventStreamConsumer
from chatapi.web.inbox import Follower
from chatapi.web.relay import Patience, relay
from chatapi.web.services import Services
from chatapi.wire import dialects, requests
from chatapi.wire.deltas import TERMINAL, Completion, Failed
from chatapi.wire.dialects import Answer, OpenAI
from chatapi.wire.requests import ChatRequest
from usage import ledger
from usage.errors import NotPriced
from usage.pricing import FREE

log = logging.getLogger(__name__)

PING = b": ping\n\n"
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
JSON_HEADERS = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]


class ChatCompletions(EventStreamConsumer):
    """`POST /v1/chat/completions`, streaming or not (OpenAI's API reference, "Create chat completion")."""

    endpoint: ClassVar[str] = "chat.completions"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.request_headers: dict[bytes, bytes] = {}
        self.identifying: list[tuple[bytes, bytes]] = []
        self.answer: OpenAI | None = None

    async def handle(self, body: bytes) -> None:
        """Answer one request; every failure before the first byte is a JSON error with its own status."""
        self.request_headers = dict(self.scope["headers"])
        generation_id = identity.new_id()
        self.identifying = [(b"x-request-id", identity.request_id(self.request_headers.get(b"x-request-id"), generation_id))]
        self._check_form()
        services = await Services.get()
        caller = await services.authenticate(self._header(b"authorization"))
        dialect = self._dialect(caller)
        request = requests.parse_chat(body)
        model = await self._model(services, request.model)
        admission = _admission(generation_id, caller, request, model, self.endpoint, dialect.name)
        self.answer = dialect(_answer(generation_id, request))
        await self._run(services, admission, request)

    async def _run(self, services: Services, admission: ledger.Admission, request: ChatRequest) -> None:
        """Admit and enqueue, then answer; whoever leaves before the end has the generation cancelled."""
        follower = services.inbox.follow(admission.id)
        starting = services.in_background(_start(services, admission, request))
        is_wanted = True
        try:
            # Shielded: a client that leaves now must not leave a hold behind that nobody works on.
            await asyncio.shield(starting)
            self.identifying.append((b"x-generation-id", identity.public_id(admission.id).encode()))
            await (self._stream if request.stream else self._collect)(services, follower)
            is_wanted = False
        finally:
            services.inbox.leave(follower)
            if is_wanted and not _has_failed(starting):
                services.abandon(admission.id)

    async def handle_error(self, error: Exception) -> None:
        """Tell the client: as an HTTP error, or inside the stream when it has begun."""
        told = _told(error)
        if self.is_complete:
            return
        if self.is_started and self.answer is not None:
            await self.send_body(self.answer.failed(told.failure), more=False)
        else:
            await self._send_error(told.failure)

    async def _stream(self, services: Services, follower: Follower) -> None:
        """Relay deltas as they come; the first one decides the status."""
        assert self.answer is not None
        async for batch in relay(services, follower, _patience()):
            if not self.is_started:
                if batch and isinstance(batch[0], Failed):
                    await self._send_error(batch[0])
                    return
                await self.send_headers(200, [*STREAM_HEADERS, *self.identifying])
            is_last = bool(batch) and isinstance(batch[-1], TERMINAL)
            await self.send_body(self.answer.encode(batch) if batch else PING, more=not is_last)

    async def _collect(self, services: Services, follower: Follower) -> None:
        """Wait for the end, then answer with one object."""
        assert self.answer is not None
        completion = Completion()
        async for batch in relay(services, follower, _patience()):
            for delta in batch:
                completion.add(delta)
        if completion.failure is not None:
            await self._send_error(completion.failure)
        else:
            await self._send_json(200, self.answer.body(completion))

    async def _send_error(self, failure: Failed) -> None:
        await self._send_json(failure.status, OpenAI.error_body(failure), errors.headers(failure))

    async def _send_json(self, status: int, body: bytes, more_headers: list[tuple[bytes, bytes]] | None = None) -> None:
        length = (b"content-length", b"%d" % len(body))
        await self.send_headers(status, [*JSON_HEADERS, length, *self.identifying, *(more_headers or [])])
        await self.send_body(body, more=False)

    def _check_form(self) -> None:
        if self.scope["method"] != "POST":
            self.identifying.append((b"allow", b"POST"))
            raise errors.method_not_allowed(self.scope["method"], "POST")
        media_type = (self._header(b"content-type") or "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise errors.unsupported_media_type()

    def _header(self, name: bytes) -> str | None:
        value = self.request_headers.get(name)
        return None if value is None else value.decode("latin-1")

    def _dialect(self, caller: Caller) -> type[OpenAI]:
        route = cast(dict[str, Any], self.scope)["url_route"]  # Channels adds it to ASGI's own keys
        prefix = route["kwargs"].get("dialect") or ""
        return dialects.choose(self._header(b"x-chatapi-dialect") or "", prefix, caller.default_dialect, settings.DEFAULT_DIALECT)

    async def _model(self, services: Services, name: str) -> CatalogModel:
        model = (await services.catalog.get()).get(name)
        if model is None:
            raise errors.model_not_found(name)
        if model.price is None:
            raise NotPriced(name)
        return model


def _admission(
    generation_id: UUID, caller: Caller, request: ChatRequest, model: CatalogModel, endpoint: str, dialect: str
) -> ledger.Admission:
    """What is asked for and held: prompt tokens are bounded by the prompt's bytes, a picture's by the context window."""
    bound = model.context_window if request.has_media else min(request.prompt_bytes, model.context_window)
    return ledger.Admission(
        id=generation_id,
        organization_id=caller.organization_id,
        project_id=caller.project_id,
        api_key_id=caller.api_key_id,
        time_zone=caller.time_zone,
        is_test=caller.is_test,
        model=request.model,
        endpoint=endpoint,
        dialect=dialect,
        is_stream=request.stream,
        choices_count=request.choices_count,
        max_output_tokens=_cap(request.max_output_tokens, model.max_output_tokens),
        prompt_tokens_bound=bound,
        price=FREE if caller.is_test or model.price is None else model.price,
        queue_ttl_ms=settings.QUEUE_TTL_MS,
    )


def _cap(wish: int | None, most: int) -> int:
    return most if wish is None else min(wish, most)


def _answer(generation_id: UUID, request: ChatRequest) -> Answer:
    include_usage = request.stream and request.include_usage
    return Answer(generation_id.hex, identity.created(generation_id), request.model, request.choices_count, include_usage)


async def _start(services: Services, admission: ledger.Admission, request: ChatRequest) -> None:
    """Admit, then enqueue: runs to its end even if the client leaves meanwhile, so that no hold is left behind."""
    await services.commits.write(ledger.admit, admission)
    await services.enqueue(admission.id, requests.to_bytes(request))


def _has_failed(task: "asyncio.Task[None]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _patience() -> Patience:
    return Patience(settings.PING_MS, settings.LEASE_MS + settings.REAPER_MS)


def _told(error: Exception) -> APIError:
    if isinstance(error, StreamUnavailable):
        return errors.unavailable("The service can't reach its workers right now. Nothing was charged.")
    told = errors.from_exception(error)
    if told.failure.code == "internal_error":
        log.error("a request failed", exc_info=error)
    return told
