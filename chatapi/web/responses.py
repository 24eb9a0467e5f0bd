"""The way out of a completion: now, later, or again for a request that was sent before."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from django.conf import settings

from chatapi import errors
from chatapi.process_metrics import CLIENT_FIRST_TOKEN
from chatapi.task_queue import QueueClass
from chatapi.web.exchange import Exchange
from chatapi.web.generations import begin_answer
from chatapi.web.relay import CLOSING, LOST, Pace, frames_of, relay
from chatapi.web.resumption import follow, is_kept
from chatapi.web.services import Services
from chatapi.wire.deltas import TERMINAL, AnyDelta, Content, Failed, Usage
from chatapi.wire.protocols import Answer, Dialect
from chatapi.wire.protocols.envelope import NO_RETRY, STREAM_HEADERS, retry_headers, whole_headers
from chatapi.wire.protocols.protocol import Encoder, Folder
from usage.books.ledger import Admission
from usage.books.settlement import RETRYABLE_OUTCOMES
from usage.failpoints import failpoint
from usage.models import Generation, Outcome, State

# The most deltas that are encoded and sent at once.
PIECE_DELTAS: Final = 128


async def respond(
    exchange: Exchange,
    services: Services,
    admission: Admission,
    dialect: Dialect,
    admitting: "asyncio.Task[None]",
) -> Usage | None:
    """Send the completion while it is generated, and return its usage, if it ended well.

    A client that leaves before the end has the generation cancelled, unless it can come back with an
    idempotency key.
    """
    # Nothing was awaited since `admitting` began: no delta is missed.
    inbox = services.inboxes.of(admission.id)
    follower = inbox.follow(admission.id, admission.organization_id)
    is_wanted = True
    try:
        # Shielded: a client that leaves now must not leave a hold behind that nobody works on.
        await asyncio.shield(admitting)
        exchange.is_admitted = True
        # Flex requests wait for others by design.
        if admission.queue_class == QueueClass.INTERACTIVE and not admission.is_test:
            exchange.timed_model = admission.model
        answer = begin_answer(exchange, admission, dialect)
        batches = relay(services, follower, settings.PING_MS)
        usage = await _deliver(exchange, dialect, answer, batches, admission.is_stream)
        is_wanted = False
        if usage is not None and dialect.encoder is None and admission.idempotency is None:
            services.queue.forget(admission.id)  # without a stream, it can't be asked for again
        return usage
    finally:
        inbox.leave(follower)
        if is_wanted and admission.idempotency is None and not has_failed(admitting):
            services.cancellations.abandon(admission.id)


async def respond_later(
    exchange: Exchange,
    services: Services,
    admission: Admission,
    dialect: Dialect,
    admitting: "asyncio.Task[None]",
    state: bytes,
) -> None:
    """Send 202 with the URL of the stream (RFC 7240, "respond-async"). A request in the background, which has
    a `state`, gets its protocol's own answer, or the stream.

    Once the client has the URL or an id, its leaving does not end the generation.
    """
    try:
        await asyncio.shield(admitting)
        exchange.is_admitted = True
        answer = begin_answer(exchange, admission, dialect)
        if not state or dialect.accepted is None:
            await _send_accepted(exchange, answer, dialect)
        elif admission.is_stream:
            batches = follow(services, admission, settings.PING_MS)
            await _deliver(exchange, dialect, answer, batches, is_stream=True)
        else:
            await exchange.send_json(200, dialect.accepted(answer, state))
    except asyncio.CancelledError:
        # Without the URL nobody can fetch the answer, unless by an idempotency key.
        if not exchange.is_started and admission.idempotency is None:
            services.cancellations.give_up(admission.id)
        raise


async def respond_again(
    exchange: Exchange,
    services: Services,
    row: Generation,
    dialect: Dialect,
    *,
    is_later: bool,
    state: bytes,
) -> None:
    """Send the answer of the generation that an idempotency key stands for, from its beginning; `state` as in
    `respond_later`.
    """
    answer = begin_answer(exchange, row, dialect)
    # A generation that never started has no log; its row holds the outcome.
    if row.outcome != Outcome.NOT_STARTED and not await is_kept(services, row):
        raise errors.stream_expired()
    exchange.response_headers.append((b"idempotent-replayed", b"true"))
    if is_later and state and dialect.accepted is not None and not row.is_stream:
        await exchange.send_json(200, dialect.accepted(answer, state))
        return
    if is_later and not state:
        await _send_accepted(exchange, answer, dialect)
        return
    is_final = row.state == State.SETTLED and not (row.is_waived and row.outcome in RETRYABLE_OUTCOMES)
    batches = follow(services, row, settings.PING_MS)
    await _deliver(exchange, dialect, answer, batches, row.is_stream, is_final=is_final)


def has_failed(task: "asyncio.Task[None]") -> bool:
    """Return whether the task has ended without success."""
    return task.done() and (task.cancelled() or task.exception() is not None)


async def _send_accepted(exchange: Exchange, answer: Answer, dialect: Dialect) -> None:
    public_id = dialect.public_id(answer.id)
    prefix = f"/{dialect.name}" if dialect.name else ""
    path = f"{settings.PATH_PREFIX}{prefix}/v1/generations/{public_id}"
    body = {"id": public_id, "object": "generation", "stream_url": f"{path}/stream", "receipt_url": path}
    headers = [(b"location", f"{path}/stream".encode()), (b"preference-applied", b"respond-async")]
    await exchange.send_json(202, msgspec.json.encode(body), headers)


async def _deliver(
    exchange: Exchange,
    dialect: Dialect,
    answer: Answer,
    batches: AsyncIterator[list[AnyDelta]],
    is_stream: bool,
    *,
    is_final: bool = False,
) -> Usage | None:
    """Send the deltas as a stream or as one object; return the usage, if the generation ended well.

    `is_final`: an idempotency key would only repeat a failure.
    """
    if is_stream and dialect.encoder is not None:
        exchange.encoder = dialect.encoder(answer)
        usage, failure = await _stream(exchange, exchange.encoder, batches, dialect.keep_alive)
    else:
        usage, failure = await _collect(exchange, dialect.folder(answer), batches)
    if failure is not None:
        # The key would only repeat this failure: no retry. A failure of this connection alone may be retried.
        if is_final and failure not in (LOST, CLOSING):
            failure = msgspec.structs.replace(failure, retry_after_ms=None)
            if NO_RETRY not in retry_headers(failure):  # SDKs misread the header if it is sent twice
                exchange.response_headers.append(NO_RETRY)
        await exchange.send_error(failure)
    failpoint("view.after_terminal")
    return usage


async def _stream(
    exchange: Exchange, encoder: Encoder, batches: AsyncIterator[list[AnyDelta]], keep_alive: bytes
) -> tuple[Usage | None, Failed | None]:
    """Send deltas as they come. If the first one is a failure, return it: it decides the status."""
    usage, has_begun, pace = None, False, Pace(settings.PING_MS)
    async for batch in batches:
        if not has_begun:
            if batch and isinstance(batch[0], Failed):
                return None, batch[0]
            await exchange.send_head(200, STREAM_HEADERS)
            has_begun = True
        is_last = bool(batch) and isinstance(batch[-1], TERMINAL)
        if is_last:
            usage = _note_end(exchange, batch[-1])
        rest = batch if len(batch) <= PIECE_DELTAS else await _send_pieces(exchange, encoder, batch)
        frames = _timed_frames(exchange, encoder, rest)
        if pace.needs_keep_alive(rest, has_frames=bool(frames)) and not is_last:
            frames = keep_alive
        sending = exchange.send_body(frames, more=not is_last)
        # Thousands of streams wait here for their clients or their next batch. `relay` holds the batch, too.
        batch.clear()
        del rest, frames
        await sending
    return usage, None


async def _send_pieces(exchange: Exchange, encoder: Encoder, batch: list[AnyDelta]) -> list[AnyDelta]:
    """Send a long batch piece by piece, and return the last piece, which is not sent."""
    last_start = (len(batch) - 1) // PIECE_DELTAS * PIECE_DELTAS
    for start in range(0, last_start, PIECE_DELTAS):
        await exchange.send_body(_timed_frames(exchange, encoder, batch[start : start + PIECE_DELTAS]))
        await asyncio.sleep(0)  # others have their turn, and the client's leaving is noticed
    return batch[last_start:]


def _timed_frames(exchange: Exchange, encoder: Encoder, deltas: list[AnyDelta]) -> bytes:
    """Return the frames of deltas, and count how long the client waited for the first frame of content."""
    if exchange.timed_model is None:
        return frames_of(encoder, deltas)
    # One by one up to that frame: `Started` has frames, and some content has none in this dialect.
    frames = b""
    for number, delta in enumerate(deltas, start=1):
        frame = frames_of(encoder, [delta])
        frames += frame
        if frame and isinstance(delta, Content):
            CLIENT_FIRST_TOKEN.observe(time.monotonic() - exchange.began_at, exchange.timed_model)
            exchange.timed_model = None
            return frames + frames_of(encoder, deltas[number:])
    return frames


def _note_end(exchange: Exchange, end: AnyDelta) -> Usage | None:
    """Note how the stream ends, and return its usage if it ends well."""
    if isinstance(end, Failed):
        exchange.note_failure(end)
    return end if isinstance(end, Usage) else None


async def _collect(
    exchange: Exchange, folder: Folder, batches: AsyncIterator[list[AnyDelta]]
) -> tuple[Usage | None, Failed | None]:
    """Wait for the end, then send one object; a failure is returned."""
    async for batch in batches:
        for delta in batch:
            folder.add(delta)
    if folder.failure is not None:
        return None, folder.failure
    await send_folded(exchange, folder)
    return folder.usage, None


async def send_folded(exchange: Exchange, folder: Folder) -> None:
    """Send the object of a folder that has all deltas."""
    headers, body = whole_headers(exchange.protocol.answer_media_type), folder.body()
    if isinstance(body, bytes):
        await exchange.send_whole(200, body, headers)
        return
    await exchange.send_head(200, headers)
    for piece in body:
        await exchange.send_body(piece)
        await asyncio.sleep(0)  # others have their turn, and the client's leaving is noticed
    await exchange.send_body(b"", more=False)
