"""Tells the API's paths from pages, and puts errors of Django's routes into the API's envelope."""

import re

from django.http import HttpRequest, HttpResponse
from rest_framework.request import Request

from chatapi.errors import APIError
from chatapi.wire.dialects import DIALECTS
from chatapi.wire.protocols import PROTOCOLS, error_answer

# Any prefix but those of our pages, so that a misspelled dialect gets an envelope, too.
CLIENT_ROUTE = re.compile(r"/(?:(?!admin/|console/|v1/)(?P<dialect>[^/]+)/)?v1(?:/|$)")
# The first segments of routes behind `/v1/`.
_ROOTS = ("models", "key", "generations", "organization", *{name.partition(".")[0] for name in PROTOCOLS})
_WITHOUT_VERSION = re.compile(rf"(?:/(?:{'|'.join(DIALECTS)}))?/(?:{'|'.join(_ROOTS)})(?:/.*)?")


def is_client_route(path: str) -> bool:
    """Return whether the path is the API's, known or not: below `/v1` or `/<prefix>/v1`, unless the prefix is
    that of a page; or a route of the API without `/v1`, such as `/models`.
    """
    return CLIENT_ROUTE.match(path) is not None or _WITHOUT_VERSION.fullmatch(path) is not None


def is_console_page(path: str) -> bool:
    """Return whether the path is one of the console's, known or not."""
    return path.startswith("/console/")


def is_docs_page(path: str) -> bool:
    """Return whether the path is one of the documentation's, known or not."""
    return path == "/docs" or path.startswith("/docs/")


def envelope(request: HttpRequest | Request, error: APIError) -> HttpResponse:
    """Return the error in the envelope of the path's protocol."""
    request_id = request.META.get("chatapi.request_id", "")
    status, headers, body = error_answer(request.path_info, error.failure, request_id, request.headers)
    response = HttpResponse(body, status=status)
    for name, value in headers:
        response[name.decode()] = value.decode()
    return response
