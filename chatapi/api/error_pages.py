"""Django's error handlers: the API's envelope on its routes, a page in HTML elsewhere."""

import logging
import re
import sys

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from rest_framework.request import Request

from chatapi import errors
from chatapi.errors import INVALID, APIError
from chatapi.wire.deltas import Failed
from chatapi.wire.dialects import DIALECTS
from chatapi.wire.protocols import PROTOCOLS, error_answer
from usage.errors import is_unavailable

# Any prefix but those of our pages, so that a misspelled dialect gets an envelope, too.
_CLIENT_ROUTE = re.compile(r"/(?:(?!admin/|console/|v1/)(?P<dialect>[^/]+)/)?v1(?:/|$)")
_WITHOUT_VERSION = re.compile(rf"((?:/(?:{'|'.join(DIALECTS)}))?)(/[^/]+.*)")
# The first segments of routes behind `/v1/`.
_ROOTS = {"models", "key", "generations", "organization", *(name.partition(".")[0] for name in PROTOCOLS)}
_PAGES = {
    400: ("Bad request", "The server could not make sense of this request."),
    403: ("Not allowed", "Your account may not do this. An owner of the organization can change your role."),
    404: ("Not found", "There is no page at this address."),
    500: ("Something went wrong", "The server had an error. It has been logged; please try again."),
    503: ("Not available now", "The database does not answer, or not in time. Please try again in a moment."),
}
log = logging.getLogger(__name__)


def is_client_route(path: str) -> bool:
    """Return whether the path is below /v1, after any prefix but that of a page, or is meant to be."""
    return _CLIENT_ROUTE.match(path) is not None or _with_version(path) is not None


def is_console_page(path: str) -> bool:
    """Return whether the path is one of the console's, known or not."""
    return path.startswith("/console/")


def is_docs_page(path: str) -> bool:
    """Return whether the path is one of the documentation's, known or not."""
    return path == "/docs" or path.startswith("/docs/")


def _with_version(path: str) -> str | None:
    """Return the path with the `/v1` that its client has left out, or None if that would be no route."""
    found = _WITHOUT_VERSION.fullmatch(path)
    return f"{found[1]}/v1{found[2]}" if found and found[2].split("/")[1] in _ROOTS else None


def envelope(request: HttpRequest | Request, error: APIError) -> HttpResponse:
    """Return the error in the envelope of the path's protocol."""
    request_id = request.META.get("chatapi.request_id", "")
    status, headers, body = error_answer(request.path_info, error.failure, request_id, request.headers)
    response = HttpResponse(body, status=status)
    for name, value in headers:
        response[name.decode()] = value.decode()
    return response


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer 400, for example to a host that is not allowed or a form that is too large."""
    failure = Failed("The server can't accept this request.", INVALID, "bad_request", status=400)
    return _answer(request, APIError(failure))


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    failure = Failed("You may not do this.", INVALID, "permission_denied", status=403)
    return _answer(request, APIError(failure))


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    route = _CLIENT_ROUTE.match(request.path_info)
    if route and route["dialect"] and route["dialect"] not in DIALECTS:
        root = settings.PATH_PREFIX
        prefixes = ", ".join(f"{root}/{name}/v1" for name in sorted(DIALECTS))
        message = f"Invalid URL ({request.path}). The API is at {root}/v1, and in one dialect at {prefixes}."
        failure = Failed(f"{message} See {root}/docs for the routes.", INVALID, "unknown_url", status=404)
        return envelope(request, APIError(failure))
    meant = _with_version(request.path_info)
    return _answer(request, errors.not_found(request.path, meant and settings.PATH_PREFIX + meant))


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer 503 while the database is away, else 500."""
    error = sys.exception()
    if isinstance(error, Exception) and is_unavailable(error):
        log.warning("the database is not available: %s", error)
        return _answer(request, errors.unavailable("The service can't read its books right now."))
    return _answer(request, errors.internal_error())


def _answer(request: HttpRequest, error: APIError) -> HttpResponse:
    if is_client_route(request.path_info):
        return envelope(request, error)
    status = error.failure.status
    title, sentence = _PAGES[status]
    template = "console/error.html" if is_console_page(request.path_info) else "chatapi/error.html"
    # Without the request: a context processor may need the part of it that failed.
    return HttpResponse(
        render_to_string(template, {"status": status, "title": title, "sentence": sentence}), status=status
    )
