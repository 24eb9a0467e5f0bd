"""Stopping a generation from the pages that show it."""

import asyncio
import logging

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST
from redis.exceptions import RedisError

from accounts import access
from accounts.audit import recorder
from accounts.redis_urls import stream_urls
from chatapi import identity
from chatapi.delta_stream import ByServer, Cancellation, DeltaStream
from chatapi.redis_client import connect
from usage.models import Generation, State

log = logging.getLogger(__name__)


@require_POST
def stop(request: HttpRequest, generation_id: str) -> HttpResponse:
    """Ask the workers to stop a generation; its client is told, and pays for the output until then.

    The response is 204 or 503 for scripts, which accept JSON, and a redirect to Live for forms.
    """
    if not request.user.has_perm("usage.change_generation"):
        raise PermissionDenied
    parsed = identity.parse_id(generation_id)
    row = access.seen_by(request.user, Generation.objects.filter(pk=parsed)).first() if parsed else None
    if row is None:
        raise Http404("There is no such request.")
    if not access.may(request.user, "usage.change_generation", row):
        raise PermissionDenied
    is_done = row.state == State.SETTLED or _ask_to_stop(request, row)
    if request.headers.get("accept") == "application/json":
        return HttpResponse(status=204 if is_done else 503)
    if is_done:
        messages.success(
            request, f"{row} had already ended." if row.state == State.SETTLED else f"Asked to stop {row}."
        )
    else:
        messages.error(request, f"{row} could not be stopped: Redis does not respond.")
    return redirect("admin:live")


def _ask_to_stop(request: HttpRequest, row: Generation) -> bool:
    """Return whether Redis has the request to stop, which is then in the audit log."""
    try:
        # A view runs in a thread without an event loop.
        asyncio.run(_cancel(row))
    except RedisError as error:
        log.warning("could not stop %s: %r", row, error)
        return False
    recorder.record("asked to stop", row)
    return True


async def _cancel(row: Generation) -> None:
    url = ByServer(stream_urls()).of(row.id)
    async with connect(url, max_connections=1) as redis:
        stream = DeltaStream(redis, settings.REDIS_KEY_PREFIX, ttl_ms=settings.STREAM_TTL_MS)
        await stream.cancel(row.id, Cancellation.STOPPED, ttl_ms=settings.CANCELLED_TTL_MS)
