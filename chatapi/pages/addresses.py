"""The admin's pages that are no model's: their addresses, and what they need of this package."""

import asyncio
import logging

from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, path
from django.views.decorators.http import require_POST
from redis.exceptions import RedisError

from accounts import access
from accounts.audit import recorder
from chatapi import identity
from chatapi.delta_stream import Cancellation, DeltaStream
from chatapi.pages import catalog_pages, deployment_health, deployment_pages, price_pages
from chatapi.redis_client import connect
from chatapi.wire.dialects import DIALECTS
from usage.models import Generation, State
from usage.pages import audit, booking, exports, live, overview, request_list

log = logging.getLogger(__name__)


def urls() -> list[URLPattern]:
    """The pages' routes, within the admin and for those who may enter it."""
    view = admin.site.admin_view
    return [
        path("", view(overview_page), name="index"),
        path("live/", view(live.page), name="live"),
        path("live/feed", view(no_feed), name="live_feed"),
        path("live/<str:generation_id>/stop", view(stop), name="live_stop"),
        path("requests/", view(requests_page), name="requests"),
        path("requests/export.<str:form>", view(exports.requests), name="requests_export"),
        path("overview.<str:form>", view(exports.overview), name="overview_export"),
        path("ledger/<int:entry_id>/correct", view(booking.correct_page), name="ledger_correct"),
        path("credit/grant", view(booking.grant_page), name="credit_grant"),
        path("credit/refund", view(booking.refund_page), name="credit_refund"),
        path("audit/", view(audit.list_page), name="audit"),
        path("<str:app_label>/<str:model_name>/<path:object_id>/history/", view(audit.history), name="history"),
        path("requests/<str:generation_id>", view(request_list.receipt_page), name="request"),
        path("prices/", view(price_pages.prices_page), name="prices"),
        path("catalog/import", view(catalog_pages.import_page), name="catalog_import"),
        path("catalog/export", view(catalog_pages.export), name="catalog_export"),
        path("deployments/<int:deployment_id>/test", view(deployment_pages.test_page), name="deployment_test"),
    ]


def overview_page(request: HttpRequest) -> HttpResponse:
    """The Overview, with the deployments of the catalog."""
    return overview.page(request, recent_deployments=deployment_health.recent)


def requests_page(request: HttpRequest) -> HttpResponse:
    """The list of requests, with the dialects that there are."""
    return request_list.list_page(request, dialects=DIALECTS)


def no_feed(request: HttpRequest) -> HttpResponse:
    """Who asks for the feed by HTTP: it is a WebSocket, and asgi.py routes those."""
    return HttpResponse(
        "This is a WebSocket.\n", status=426, headers={"Upgrade": "websocket", "Connection": "Upgrade"}, content_type="text/plain"
    )


@require_POST
def stop(request: HttpRequest, generation_id: str) -> HttpResponse:
    """Ask the workers to stop a generation: whoever listens to it gets a normal end, with the usage so far.

    A script that asks for JSON is answered 204 or 503, a form goes back to Live.
    """
    if not request.user.has_perm("usage.change_generation"):
        raise PermissionDenied
    parsed = identity.parse_id(generation_id)
    row = access.seen_by(request.user, Generation.objects.filter(pk=parsed)).first() if parsed else None
    if row is None:
        raise Http404("There is no such request.")
    if not access.may(request.user, "usage.change_generation", row):
        raise PermissionDenied
    is_told = row.state == State.SETTLED or _ask_to_stop(request, row)
    if request.headers.get("accept") == "application/json":
        return HttpResponse(status=204 if is_told else 503)
    if is_told:
        messages.success(request, f"{row} had ended already." if row.state == State.SETTLED else f"Asked to stop {row}.")
    else:
        messages.error(request, f"{row} could not be stopped: Redis does not answer.")
    return redirect("admin:live")


def _ask_to_stop(request: HttpRequest, row: Generation) -> bool:
    """Whether Redis has taken the wish; it is in the audit log then."""
    try:
        # A view runs in a thread of its own, so it may have an event loop of its own.
        asyncio.run(_cancel(row))
    except (RedisError, OSError) as error:
        log.warning("could not stop %s: %r", row, error)
        return False
    recorder.record("asked to stop", row)
    return True


async def _cancel(row: Generation) -> None:
    async with connect(settings.STREAMS_URL, max_connections=1) as redis:
        stream = DeltaStream(redis, settings.REDIS_KEY_PREFIX, ttl_ms=settings.STREAM_TTL_MS)
        await stream.cancel(row.id, Cancellation.ASKED, ttl_ms=2 * settings.QUEUE_TTL_MS)
