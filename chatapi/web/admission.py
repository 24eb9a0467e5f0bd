"""The second half of the way in: reserve a valid request's limits, admit it, enqueue it, and respond."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

from django.conf import settings
from redis.exceptions import RedisError

from accounts import end_users
from accounts.authentication import Caller
from accounts.errors import RateLimited
from accounts.limits import NOTHING_USED, Amounts, Limit
from accounts.rate_limits import Reservation
from chatapi import errors, response_store
from chatapi.catalog import CatalogModel
from chatapi.delta_stream import Job, KeptRequest
from chatapi.process_metrics import ADMISSION
from chatapi.task_queue import Entry, QueueClass
from chatapi.web import idempotency_header
from chatapi.web.byte_windows import WindowFull
from chatapi.web.candidates import Fallback
from chatapi.web.exchange import Exchange
from chatapi.web.generations import visible_generation
from chatapi.web.rates import used_amounts
from chatapi.web.responses import has_failed, respond, respond_again, respond_later
from chatapi.web.services import Services
from chatapi.web.validation import ValidatedRequest
from chatapi.wire.deltas import Usage
from chatapi.wire.parsed_request import RequestSummary
from usage.books import ledger
from usage.books.idempotency import Idempotency, already_admitted
from usage.errors import AlreadyAdmitted
from usage.failpoints import failpoint
from usage.models import State


async def complete(exchange: Exchange, services: Services, request: ValidatedRequest) -> None:
    """Admit the request and respond; a repeat with an idempotency key gets the first request's answer."""
    preferences = (exchange.header(b"prefer") or "").lower().split(",")  # RFC 7240, section 2
    names = {each.partition(";")[0].partition("=")[0].strip() for each in preferences}
    background_state = request.state if request.summary.is_background else b""
    # `respond-async` needs a protocol with streams, because the answer is fetched as a stream.
    is_later = bool(background_state) or ("respond-async" in names and request.dialect.encoder is not None)
    exchange.id = services.inboxes.place(exchange.id)
    key = idempotency_header.of(exchange.header(b"idempotency-key"), request.summary)
    queue_class = _queue_class(request, is_later=is_later)
    admission = _admission(exchange, request, key, queue_class)
    try:
        reservation = await _take_from_limits(exchange, services, request, admission)
        if request.room is not None:
            exchange.rooms.remove(request.room)  # `_admit` releases it, whether the client stays or not
        inbox = "" if is_later else services.inboxes.name
        admitting = services.in_background(_admit(exchange, services, request, admission, inbox))
        usage: Usage | None = None
        try:
            if is_later:
                await respond_later(
                    exchange, services, admission, request.dialect, admitting, background_state
                )
            else:
                usage = await respond(exchange, services, admission, request.dialect, admitting)
        finally:
            if not reservation.is_empty:
                # If several models may have answered, only the books say which one did.
                known = usage if usage and not admission.fallbacks else None
                services.in_background(_release(services, reservation, known, admitting))
        return
    except AlreadyAdmitted as error:
        if not error.is_same_request:
            raise
        first_id = error.generation_id
    row = await visible_generation(services, request.caller, first_id)
    if row.state == State.ADMITTED:
        # The answer is read from the log, so the job names no inbox. The first request's process releases its
        # reservation.
        entry = Entry(row.id.hex, row.organization_id, queue_class)
        job = Job("", request.content, True, request.is_not_kept, exchange.span.headers)
        stores_response = bool(request.caller.stores_responses_days)
        await services.queue.enqueue_again(entry, KeptRequest(row.id, job, request.state, stores_response))
    request.content = request.state = b""
    if request.room is not None:
        request.room.release()  # a refusal by limits comes before `_admit`, which would release it
    await respond_again(exchange, services, row, request.dialect, is_later=is_later, state=background_state)


def _admission(
    exchange: Exchange, request: ValidatedRequest, key: Idempotency | None, queue_class: QueueClass
) -> ledger.Admission:
    caller, summary, model = request.caller, request.summary, request.model
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
        max_output_tokens=_output_cap(summary, model),
        prompt_tokens_bound=summary.prompt_tokens_bound(model.context_window),
        max_prompt_tokens=summary.max_prompt_tokens(model.context_window),
        price=request.price,
        queue_ttl_ms=settings.QUEUE_TTL_MS,
        queue_class=queue_class.value,
        includes_usage=summary.include_usage,
        idempotency=key,
        fallbacks=tuple([_candidate(summary, each) for each in request.fallbacks]),
    )


def _candidate(summary: RequestSummary, fallback: Fallback) -> ledger.Candidate:
    model = fallback.model
    return ledger.Candidate(
        model.id,
        fallback.name,
        _output_cap(summary, model),
        summary.max_prompt_tokens(model.context_window),
        fallback.price,
        summary.prompt_tokens_bound(model.context_window),
    )


def _output_cap(summary: RequestSummary, model: CatalogModel) -> int:
    """Return the most tokens of each choice: the client's limit, up to that of the model."""
    asked = summary.max_output_tokens
    return model.max_output_tokens if asked is None else min(asked, model.max_output_tokens)


async def _take_from_limits(
    exchange: Exchange, services: Services, request: ValidatedRequest, admission: ledger.Admission
) -> Reservation:
    """Reserve what the request may use of the caller's rate limits.

    Raises `RateLimited` or another refusal if there is no room, but `AlreadyAdmitted` for a repeat, which
    needs none.
    """
    try:
        queue_class = QueueClass(admission.queue_class or QueueClass.INTERACTIVE)
        await services.queue_age.check(request.caller.organization_id, queue_class)
        await services.open_generations.add(request.caller.organization_id)
        more = await end_user_limits(services, request.caller, admission.end_user)
        reservation = await services.rates.take(
            request.caller,
            exchange.id,
            model=request.model.id,
            amounts=Amounts(tokens=admission.most_tokens),
            more=more,
            fallbacks=[each.model for each in admission.fallbacks],
        )
    except (RateLimited, errors.APIError) as error:
        if (first := await _earlier_request(services, admission)) is None:
            raise
        if isinstance(error, RateLimited):
            exchange.add_limits(error)
        raise first from None
    exchange.is_counted = True
    exchange.add_limits(reservation)
    return reservation


async def _earlier_request(services: Services, admission: ledger.Admission) -> AlreadyAdmitted | None:
    """Return the earlier request with this idempotency key, or None."""
    if admission.idempotency is None:
        return None
    return await services.commits.read(already_admitted, admission.api_key_id, admission.idempotency)


async def end_user_limits(services: Services, caller: Caller, end_user: str | None) -> Sequence[Limit]:
    """Return the limits of the end user, if the caller's project counts them."""
    if end_user is None or not caller.counts_end_users:
        return ()
    if not caller.has_own_end_user_limits:
        return end_users.named(caller.end_user_limits, end_user)
    return await services.commits.read(end_users.limits, caller.project_id, end_user, caller.end_user_limits)


async def _admit(
    exchange: Exchange, services: Services, request: ValidatedRequest, admission: ledger.Admission, inbox: str
) -> None:
    """Admit the request, then enqueue it; without an inbox, its answer is fetched later.

    This runs to its end even if the client leaves meanwhile, so that no hold is left behind.
    """
    try:
        try:
            counter = await _take_room_for_state(services, request)
        except errors.APIError:
            if (first := await _earlier_request(services, admission)) is None:
                raise
            raise first from None
        try:
            await services.commits.write(ledger.admit, admission)
        except Exception:
            # The client gets this error, not one of Redis; a counter that is not released expires.
            with suppress(RedisError):
                if counter is not None:
                    await services.states.release(counter, len(request.state))
            raise
        failpoint("admit.after_commit")
        runs_on = admission.idempotency is not None or not inbox
        job = Job(inbox, request.content, runs_on, request.is_not_kept, exchange.span.headers)
        stores_response = bool(request.caller.stores_responses_days)
        queue_class = QueueClass(admission.queue_class or QueueClass.INTERACTIVE)
        entry = Entry(admission.id.hex, admission.organization_id, queue_class)
        await services.queue.enqueue(entry, job, request.state, stores_response=stores_response)
        request.content = request.state = b""
        if not admission.is_test:
            ADMISSION.observe(monotonic() - exchange.began_at)
        exchange.span.add_event("enqueued")
        failpoint("enqueue.after")
    finally:
        if request.room is not None:
            request.room.release()


def _queue_class(request: ValidatedRequest, *, is_later: bool) -> QueueClass:
    if request.summary.is_flex:
        return QueueClass.FLEX
    return QueueClass.BACKGROUND if is_later else QueueClass.INTERACTIVE


async def _take_room_for_state(services: Services, request: ValidatedRequest) -> str | None:
    """Count the bytes of the state, and return the key of their counter.

    If the organization has stored too much, drop the state; raise 429 for a background request, which needs
    it.
    """
    if not request.state:
        return None
    caller = request.caller
    if caller.stores_responses_days and await services.has_full_store(caller.organization_id):
        refusal = errors.too_many_responses(response_store.MAX_RESPONSES, response_store.MAX_BYTES)
    else:
        try:
            return await services.states.take(caller.organization_id, len(request.state))
        except WindowFull as error:
            refusal = errors.too_much_state(
                services.states.max_bytes, settings.STREAM_TTL_MS, error.retry_after_ms
            )
    if request.summary.is_background:
        raise refusal
    request.state, request.is_not_kept = b"", True
    return None


async def _release(
    services: Services, reservation: Reservation, usage: Usage | None, admitting: "asyncio.Task[None]"
) -> None:
    """Release the part of the reservation that the request did not use: all of it if it never ran."""
    if not admitting.done():  # the client left meanwhile
        await asyncio.wait([admitting])
    used = None
    if has_failed(admitting):
        used = NOTHING_USED
    elif usage:
        used = used_amounts(reservation.taken, usage.prompt_tokens, usage.completion_tokens)
    await services.rates.release(reservation, used)
