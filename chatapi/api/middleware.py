"""Lets Django's answers be as those of the hot routes: under any host, and with the headers that identify
them.
"""

import time

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.utils.deprecation import MiddlewareMixin

from accounts import client_ip
from chatapi import identity
from chatapi.api.error_pages import is_client_route

WITHOUT_SESSION = frozenset({"/metrics", "/openapi.json", "/docs", "/docs/sandbox.md"})
"""What opens no session and makes no links, beside the API."""


class AnyHostMiddleware(MiddlewareMixin):
    """Lets the API's own routes answer under whatever name they are reached, as the hot routes do: a
    scraper's, a container's, the LAN's.

    A foreign name does harm where a browser has a session, or where a link is made of it. So those pages look
    at `ALLOWED_HOSTS`, and here the name that was sent is not there to be read.
    """

    def process_request(self, request: HttpRequest) -> None:
        """Give the request a name that nothing refuses; before `CommonMiddleware`, which asks for it."""
        if request.path in WITHOUT_SESSION or is_client_route(request.path):
            request.get_host = lambda: "localhost"  # type: ignore[method-assign]


class ForwardedProtoMiddleware(MiddlewareMixin):
    """Drops `X-Forwarded-Proto` unless a trusted proxy sent it: with it, Django takes a request for one that
    came by HTTPS.
    """

    def process_request(self, request: HttpRequest) -> None:
        """Before anything asks whether the request is secure."""
        if not client_ip.is_trusted(request.META.get("REMOTE_ADDR") or "", settings.TRUSTED_PROXIES):
            request.META.pop("HTTP_X_FORWARDED_PROTO", None)


class IdentifyingMiddleware(MiddlewareMixin):
    """`x-request-id` on every answer: the client's own when it is harmless, else a new one. `openai-*` on
    those of the API.
    """

    def process_request(self, request: HttpRequest) -> None:
        """Note when it began."""
        request.META["chatapi.began_at"] = time.monotonic()

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Add the headers."""
        wish = request.headers.get("x-request-id", "").encode(errors="replace")
        response["x-request-id"] = identity.request_id(wish, identity.new_id()).decode()
        if "/v1/" in request.path:
            response["openai-version"] = identity.OPENAI_VERSION
            response["openai-processing-ms"] = str(
                round((time.monotonic() - request.META["chatapi.began_at"]) * 1_000)
            )
        return response


class ThemePolicyMiddleware(MiddlewareMixin):
    """Lets scripts of the admin's pages evaluate expressions, which its theme needs: django-unfold writes
    them for Alpine.js.

    Alpine's build for strict policies (@alpinejs/csp) does not run them: they call global functions,
    `theme()` and `searchCommand()` among them, and have several statements. So this goes when the theme does.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Widen the policy of a page of the admin."""
        if request.path.startswith("/admin/") and response.get("content-type", "").startswith("text/html"):
            response._csp_update = {"script-src": ["'unsafe-eval'"]}  # type: ignore[attr-defined]  # as django-csp's decorator sets it
        return response
