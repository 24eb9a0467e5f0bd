"""Stopping a generation from the pages that show it."""

import asyncio
import logging
from collections.abc import Collection, Sequence

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from accounts import access
from accounts.audit import recorder
from accounts.models import Organization
from chatapi import identity
from chatapi.delta_stream import Cancellation, DeltaStream, StreamUnavailable
from chatapi.redis_servers import stream_servers
from usage.insights import RunningGeneration
from usage.models import Generation, State
from usage.pages.filters import is_id
from usage.pages.links import page_url
from usage.pages.live import running_of

PERMISSION = "usage.change_generation"

log = logging.getLogger(__name__)


@require_POST
def stop(request: HttpRequest, generation_id: str) -> HttpResponse:
    """Ask the workers to stop a generation; its client gets an error, and pays for the output until then.

    The response is 204 or 503 for scripts, which accept JSON, and a redirect to Live for forms.
    """
    if not request.user.has_perm(PERMISSION):
        raise PermissionDenied
    parsed = identity.parse_id(generation_id)
    row = access.seen_by(request.user, Generation.objects.filter(pk=parsed)).first() if parsed else None
    if row is None:
        raise Http404("There is no such request.")
    if not access.may(request.user, PERMISSION, row):
        raise PermissionDenied
    return answer(request, row, reverse("admin:live"))


def answer(request: HttpRequest, row: Generation, live_url: str) -> HttpResponse:
    """Stop a generation that the person may stop; return the response to a script or a form."""
    is_done = row.state == State.SETTLED or ask_to_stop([row])
    if request.headers.get("accept") == "application/json":
        return HttpResponse(status=204 if is_done else 503)
    if is_done:
        messages.success(
            request, f"{row} had already ended." if row.state == State.SETTLED else f"Asked to stop {row}."
        )
    else:
        messages.error(request, f"{row} could not be stopped: Redis does not respond.")
    return redirect(live_url)


@require_POST
def stop_all_of_key(request: HttpRequest) -> HttpResponse:
    """Ask the workers to stop those running requests of a key that the person may stop."""
    key_id = stop_key(request, _organizations(request))
    return redirect(page_url("live", {"key": key_id}))


@require_POST
def stop_all_of_end_user(request: HttpRequest) -> HttpResponse:
    """Ask the workers to stop those running requests of an end user that the person may stop."""
    return redirect(page_url("live", stop_end_user(request, _organizations(request))))


def _organizations(request: HttpRequest) -> tuple[int, ...] | None:
    """Return the organizations whose requests the person may stop (None: all of them)."""
    if not request.user.has_perm(PERMISSION):
        raise PermissionDenied
    if access.organizations_of(request.user) is None:
        return None
    allowed = access.where_may(request.user, PERMISSION, Organization.objects.all())
    return tuple(allowed.values_list("pk", flat=True))


def stop_key(request: HttpRequest, organizations: Collection[int] | None) -> str:
    """Stop the running requests of the form's key in these organizations (None: in all); return the key's id.

    At most as many are stopped as the page shows.
    """
    key_id = request.POST.get("key", "")
    key_id = key_id if is_id(key_id) else ""
    _stop_all(request, running_of(organizations, int(key_id)) if key_id else [], "key")
    return key_id


def stop_end_user(request: HttpRequest, organizations: Collection[int] | None) -> dict[str, str]:
    """Stop the running requests of the form's end user in these organizations (None: in all); return the
    filters of Live that have them.

    The form names the project, too: the same name in another project is someone else. At most as many are
    stopped as the page shows.
    """
    project_id, name = request.POST.get("project", ""), request.POST.get("end_user", "")
    if not is_id(project_id) or not name:
        messages.error(request, "Nothing was stopped: choose an end user and its project.")
        return {"end_user": name}
    _stop_all(request, running_of(organizations, end_user=(int(project_id), name)), "end user")
    return {"project": project_id, "end_user": name}


def _stop_all(request: HttpRequest, running: Sequence[RunningGeneration], owner: str) -> None:
    """Stop the requests, and say how many they were; `owner` is what they have in common."""
    if not running:
        messages.success(request, f"No request of this {owner} is running.")
    elif ask_to_stop(list(Generation.objects.filter(pk__in=[each.id for each in running]))):
        messages.success(request, f"Asked to stop {len(running):,} request{'s' * (len(running) > 1)}.")
    else:
        messages.error(request, "The requests could not be stopped: Redis does not respond. Try again.")


def ask_to_stop(rows: Sequence[Generation]) -> bool:
    """Ask Redis to stop the generations and record those that it accepted; return whether it accepted all."""
    # A view runs in a thread without an event loop.
    asked = asyncio.run(_cancel(rows))
    for row in asked:
        recorder.record("asked to stop", row)
    return len(asked) == len(rows)


async def _cancel(rows: Sequence[Generation]) -> list[Generation]:
    """Cancel the generations; return those for which the server of their streams has accepted that."""
    async with stream_servers() as servers:
        by_stream: dict[DeltaStream, list[Generation]] = {}
        for row in rows:
            try:
                by_stream.setdefault(servers.of(row.id), []).append(row)
            except StreamUnavailable as error:
                log.warning("could not stop %s: %r", row, error)
        # At the same time, so that a server that does not respond does not delay the others.
        asked = await asyncio.gather(*(_cancel_on(stream, own) for stream, own in by_stream.items()))
    return [row for own in asked for row in own]


async def _cancel_on(stream: DeltaStream, rows: Sequence[Generation]) -> list[Generation]:
    asked: list[Generation] = []
    try:
        for row in rows:
            await stream.cancel(row.id, Cancellation.STOPPED, ttl_ms=settings.CANCELLED_TTL_MS)
            asked.append(row)
    except StreamUnavailable as error:
        log.warning("could not stop %s: %r", ", ".join(map(str, rows[len(asked) :][:3])), error)
    return asked
