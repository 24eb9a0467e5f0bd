"""Tells the workers which generations to stop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings

from chatapi.concurrency import Batch, retry
from chatapi.delta_stream import ByServer, Cancellation, DeltaStream, StreamUnavailable

log = logging.getLogger(__name__)

# Seconds between attempts to cancel a generation in Redis; one that is not cancelled runs on and is charged.
RETRY_S = (0.5, 1, 2)
InBackground = Callable[[Coroutine[Any, Any, Any]], "asyncio.Task[Any]"]


class Cancellations:
    """The cancellations that a web process sends."""

    def __init__(self, streams: ByServer[DeltaStream], in_background: InBackground) -> None:
        self._streams = streams
        self._in_background = in_background
        # Thousands of clients may leave at once: a connection for each would hold up all streams.
        self._batches = ByServer([Batch(partial(self._cancel_all, stream)) for stream in streams])

    def abandon(self, generation_id: UUID) -> None:
        """Tell the worker, in the background, that the generation's client has left."""
        self._in_background(self._cancel(generation_id, Cancellation.CLIENT_LEFT))

    def give_up(self, generation_id: UUID) -> None:
        """Stop, in the background, a generation that nobody can fetch: its client never got the id."""
        self._in_background(self._cancel(generation_id, Cancellation.ASKED))

    async def cancel(self, generation_id: UUID) -> None:
        """Tell the worker to stop the generation, before this call returns. Raises `StreamUnavailable`."""
        stream = self._streams.of(generation_id)
        await stream.cancel(generation_id, Cancellation.ASKED, ttl_ms=settings.CANCELLED_TTL_MS)

    async def _cancel(self, generation_id: UUID, why: Cancellation) -> None:
        cancel = partial(self._batches.of(generation_id), (generation_id, why))
        await retry_or_warn(cancel, f"could not cancel {generation_id.hex}, which runs on")

    async def _cancel_all(
        self, stream: DeltaStream, cancellations: Sequence[tuple[UUID, Cancellation]]
    ) -> list[None]:
        await stream.cancel_all(cancellations, ttl_ms=settings.CANCELLED_TTL_MS)
        return [None] * len(cancellations)


async def retry_or_warn(attempt: Callable[[], Awaitable[object]], consequence: str) -> None:
    """Attempt it, and again after `RETRY_S`; if the last attempt fails too, log the consequence."""
    try:
        await retry(attempt, RETRY_S, (StreamUnavailable,))
    except StreamUnavailable as error:
        log.warning("%s: %s", consequence, error)
