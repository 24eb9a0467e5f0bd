"""Django's routes: reads of the API, under /v1 and each dialect's prefix, and the pages for people.

asgi.py serves `POST /v1/chat/completions`, the other hot routes and the probes before Django.
"""

from typing import Any

from django.contrib import admin
from django.urls import include, path

from accounts.audit import recorder
from accounts.models import Certificate, FederationRule, ServiceAccount, WorkloadIdentityProvider
from chatapi.api import (
    error_pages,
    management,
    metrics,
    openapi,
    organization,
    statements,
    token_exchange,
    views,
)
from chatapi.docs.views import front_page
from chatapi.pages import admin_urls
from chatapi.wire.dialects import DIALECTS
from usage.models import SpendAlert
from usage.payment import webhook
from usage.payment.models import Payment, StripeCustomer

client_routes = [
    path("models", views.Models.as_view()),
    path("models/<path:model>", views.OneModel.as_view()),
    path("key", views.Key.as_view()),
    path("generations/<str:generation_id>", views.Receipt.as_view()),
    *organization.routes,
    *statements.routes,
    *management.urls,
]

admin.autodiscover()
site: Any = admin.site  # our own `Site`
site.watch_changes()
# Those that have no page of the admin.
recorder.watch(
    [
        *(Certificate, ServiceAccount, WorkloadIdentityProvider, FederationRule),
        *(SpendAlert, Payment, StripeCustomer),
    ]
)
site.extra_urls = admin_urls.urls  # the theme's site reads them

urlpatterns = [
    path("", front_page, name="front"),
    path("metrics", metrics.metrics),
    path("oauth/token", token_exchange.exchange_token),
    path("stripe/webhook", webhook.receive),
    path("", include("chatapi.docs.urls")),
    path("openapi.json", openapi.document, name="openapi"),
    path("admin/", admin.site.urls),
    path("console/", include("chatapi.console.urls")),
    path("console/", include("chatapi.console.account_urls")),
    path("v1/", include(client_routes)),
    *(path(f"{dialect}/v1/", include(client_routes)) for dialect in DIALECTS),
]

handler400 = error_pages.bad_request
handler403 = error_pages.permission_denied
handler404 = error_pages.not_found
handler500 = error_pages.server_error
