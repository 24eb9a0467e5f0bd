"""Middleware for Django's routes, which makes the API's answers like those of the hot routes."""

import logging
import re
import time

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponseBase, HttpResponseNotAllowed
from django.middleware.gzip import GZipMiddleware
from django.utils.deprecation import MiddlewareMixin

from accounts import forwarding
from chatapi import identity
from chatapi.api import error_pages
from chatapi.api.client_routes import is_client_route, is_console_page, is_docs_page
from chatapi.log_formats import fields, route_of
from chatapi.wire.protocols import protocol_of

access_log = logging.getLogger("chatapi.access")

# Pages outside the API that open no session.
WITHOUT_SESSION = frozenset({"/metrics", "/oauth/token", "/openapi.json"})
_REFUSES_GZIP = re.compile(r"\bgzip\s*;\s*q=0(\.0*)?\s*(,|$)", re.IGNORECASE)


class AnyHostMiddleware(MiddlewareMixin):
    """Lets the API's routes answer under any host name, such as a container's, as the hot routes do.

    A foreign host name does harm on pages with a session, and in links that are made from it. Those pages
    check `ALLOWED_HOSTS`; all other routes see an allowed name instead of a foreign one.
    """

    def process_request(self, request: HttpRequest) -> None:
        """Give the request an allowed host name, before `CommonMiddleware` checks it."""
        path = request.path_info
        if path in WITHOUT_SESSION or is_docs_page(path) or is_client_route(path):
            try:
                request.get_host()
            except DisallowedHost:
                request.get_host = lambda: "localhost"  # type: ignore[method-assign]


class ForwardedMiddleware(MiddlewareMixin):
    """Gives the request the scheme and the host that its client used, as a trusted proxy names them."""

    def process_request(self, request: HttpRequest) -> None:
        """Set the values before anything reads them; Django checks the host against `ALLOWED_HOSTS`."""
        forwarded = forwarding.of_meta(request.META, settings.TRUSTED_PROXIES)
        if forwarded.scheme:
            request.META["chatapi.scheme"] = forwarded.scheme
        if forwarded.host:
            request.META["HTTP_HOST"] = forwarded.host


class IdentifyingMiddleware(MiddlewareMixin):
    """Sets `x-request-id` on every answer, the client's if it is harmless. Keeps the API's answers out of
    caches, and sets `openai-*` on them.
    """

    def process_request(self, request: HttpRequest) -> None:
        """Store the start time and the request id, which an error repeats."""
        request.META["chatapi.began_at"] = time.monotonic()
        sent_id = request.headers.get("x-request-id", "").encode(errors="replace")
        request.META["chatapi.request_id"] = identity.request_id(sent_id, identity.new_id()).decode()

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Set the headers, and log the route: the path itself may contain a secret, such as an invitation."""
        response["x-request-id"] = request.META["chatapi.request_id"]
        elapsed_ms = round((time.monotonic() - request.META["chatapi.began_at"]) * 1_000)
        access = fields(method=request.method, status=response.status_code, ms=elapsed_ms)
        access_log.info("%s", route_of(request), extra=access)
        if is_client_route(request.path_info):
            response["cache-control"] = "no-store"  # it depends on the key
            response["openai-version"] = identity.OPENAI_VERSION
            response["openai-processing-ms"] = str(elapsed_ms)
            for name in protocol_of(request.path_info, request.headers).request_id_headers:
                response[name.decode()] = request.META["chatapi.request_id"]
        return response


class CompressedPagesMiddleware(GZipMiddleware):
    """Compresses whole pages only: the compression of a stream would delay its parts."""

    def process_request(self, request: HttpRequest) -> None:
        """Drop a gzip that the client refuses by a weight of 0, which `re_accepts_gzip` does not read."""
        if _REFUSES_GZIP.search(request.META.get("HTTP_ACCEPT_ENCODING", "")):
            request.META["HTTP_ACCEPT_ENCODING"] = "identity"

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Compress a whole page; its length varies by up to 100 bytes, against BREACH (docs/security.md)."""
        is_page = response.get("content-type", "").startswith("text/html") and not response.streaming
        return super().process_response(request, response) if is_page else response


class FormAddressMiddleware(MiddlewareMixin):
    """Shows a page if a person opens a URL of the console or the admin that takes only a form."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Replace Django's answer, which has no text."""
        is_page = request.path_info.startswith(("/admin/", "/console/"))
        is_opened = request.method in ("GET", "HEAD") and isinstance(response, HttpResponseNotAllowed)
        return error_pages.takes_a_form(request, response["Allow"]) if is_page and is_opened else response


class PagePolicyMiddleware(MiddlewareMixin):
    """Narrows which content the console's and the documentation's pages may load."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Replace the policy, by the attribute that django-csp's decorators set."""
        is_page = response.get("content-type", "").startswith("text/html")
        if is_page and (is_console_page(request.path_info) or is_docs_page(request.path_info)):
            own = ["script-src", "style-src", "img-src", "connect-src"]
            response._csp_replace = {  # type: ignore[attr-defined]
                "default-src": ["'none'"],
                **{name: ["'self'"] for name in own},
            }
        return response
