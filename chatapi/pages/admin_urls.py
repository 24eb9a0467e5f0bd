"""URLs of the admin's pages that belong to no model."""

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path

from chatapi.models import ModelKind
from chatapi.pages import (
    catalog_pages,
    deployment_pages,
    event_pages,
    price_timeline,
    stopping,
    stored_response_pages,
    upstream_models,
    webhook_admin,
)
from chatapi.pages.organization_page import organization_page
from chatapi.wire.dialects import DIALECTS
from chatapi.wire.protocols import PROTOCOLS
from usage.pages import audit, booking, budget_pages, exports, live, overview, request_list, statement_pages


def urls() -> list[URLPattern]:
    """Return the routes, relative to the admin's URL; each requires a person who may enter the admin."""
    view = admin.site.admin_view
    return [
        path("", view(overview_page), name="index"),
        path("live/", view(live.page), name="live"),
        path("live/feed", view(no_feed), name="live_feed"),
        path("live/stop-key", view(stopping.stop_all_of_key), name="live_stop_key"),
        path("live/stop-end-user", view(stopping.stop_all_of_end_user), name="live_stop_end_user"),
        path("live/<str:generation_id>/stop", view(stopping.stop), name="live_stop"),
        path("requests/", view(requests_page), name="requests"),
        path("requests/export.<str:file_format>", view(exports.requests), name="requests_export"),
        path("overview.<str:file_format>", view(exports.overview), name="overview_export"),
        path("ledger/<int:entry_id>/correct", view(booking.correct_page), name="ledger_correct"),
        path("credit/grant", view(booking.grant_page), name="credit_grant"),
        path("credit/refund", view(booking.refund_page), name="credit_refund"),
        path("organizations/<int:organization_id>", view(organization_page), name="organization"),
        path("budgets/", view(budget_pages.list_page), name="budgets"),
        path("budgets/<int:limit_id>", view(budget_pages.budget_page), name="budget"),
        path("statements/", view(statement_pages.list_page), name="statements"),
        path(
            "statements/<int:organization_id>/<str:period>.<str:file_format>",
            view(statement_pages.statement_file),
            name="statement_file",
        ),
        # After the file, whose URL it would match, too.
        path(
            "statements/<int:organization_id>/<str:period>",
            view(statement_pages.statement_page),
            name="statement",
        ),
        path("audit/", view(audit.list_page), name="audit"),
        path(
            "<str:app_label>/<str:model_name>/<path:object_id>/history/", view(audit.history), name="history"
        ),
        # After the export, whose URL it would match, too.
        path("requests/<str:generation_id>", view(request_list.receipt_page), name="request"),
        path(
            "stored-responses/<uuid:response_id>/content",
            view(stored_response_pages.content_page),
            name="stored_response_content",
        ),
        path("mail/", view(event_pages.mail_page), name="mail"),
        path("webhooks/<int:endpoint_id>/rotate", view(webhook_admin.rotate), name="webhook_rotate"),
        path("webhooks/<int:endpoint_id>/test", view(webhook_admin.send_test), name="webhook_test"),
        path(
            "webhooks/<int:endpoint_id>/deliveries/<int:delivery_id>/replay",
            view(webhook_admin.replay),
            name="webhook_replay",
        ),
        path("prices/", view(price_timeline.prices_page), name="prices"),
        path("prices/<int:price_id>/withdraw", view(price_timeline.withdraw), name="price_withdraw"),
        path("catalog/import", view(catalog_pages.import_page), name="catalog_import"),
        path("catalog/export", view(catalog_pages.export), name="catalog_export"),
        path("deployments/upstream-models", view(upstream_models.names), name="upstream_models"),
        path(
            "deployments/<int:deployment_id>/test", view(deployment_pages.test_page), name="deployment_test"
        ),
    ]


def overview_page(request: HttpRequest) -> HttpResponse:
    """Show the Overview with the catalog's deployments and kinds of models."""
    catalog = deployment_pages.Catalog.read()
    return overview.page(
        request,
        recent_deployments=lambda: deployment_pages.recent_deployments(catalog.deployments),
        model_kinds={model: kind for model, kind in catalog.kinds.items() if kind != ModelKind.CHAT},
    )


def requests_page(request: HttpRequest) -> HttpResponse:
    """Show the list of requests, with filters for the endpoints and dialects that there are."""
    endpoints = [name for name, protocol in PROTOCOLS.items() if not protocol.counts_tokens]
    return request_list.list_page(request, endpoints=endpoints, dialects=DIALECTS)


def no_feed(request: HttpRequest) -> HttpResponse:
    """Refuse HTTP for the feed, which is a WebSocket; `asgi.py` routes WebSockets."""
    return HttpResponse(
        "This is a WebSocket.\n",
        status=426,
        headers={"Upgrade": "websocket", "Connection": "Upgrade"},
        content_type="text/plain",
    )
