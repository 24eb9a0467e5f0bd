"""How Django itself tells an error: the envelope below /v1 and the dialects' prefixes, a small HTML page
elsewhere.
"""

import re

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string

from chatapi import errors
from chatapi.errors import INVALID, APIError
from chatapi.wire.deltas import Failed
from chatapi.wire.dialects import DIALECTS, OpenAI

_CLIENT_ROUTE = re.compile(r"/(?:(?!admin/|v1/)(?P<dialect>[^/]+)/)?v1(?:/|$)")
"""Whatever stands where a dialect would: who misspells one is a client, too."""
_PAGES = {
    400: ("Bad request", "The server could not make sense of this request."),
    403: ("Not allowed", "You may not do this."),
    404: ("Not found", "There is no page at this address."),
    500: ("Something went wrong", "The server had an error. It has been logged; please try again."),
}


def is_client_route(path: str) -> bool:
    """Whether it is below /v1, also behind a dialect's prefix or what is meant as one."""
    return _CLIENT_ROUTE.match(path) is not None


def envelope(error: APIError) -> HttpResponse:
    """The error as a JSON answer with its status and headers."""
    failure = error.failure
    response = HttpResponse(
        OpenAI.error_body(failure), status=failure.status, content_type="application/json"
    )
    for name, value in errors.headers(failure):
        response[name.decode()] = value.decode()
    return response


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """400: a host that is not ours, a form that is too large."""
    return _answer(
        request, APIError(Failed("The server can't accept this request.", INVALID, "bad_request", status=400))
    )


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    """403."""
    return _answer(
        request, APIError(Failed("You may not do this.", INVALID, "permission_denied", status=403))
    )


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """404."""
    route = _CLIENT_ROUTE.match(request.path)
    if route and route["dialect"] and route["dialect"] not in DIALECTS:
        return envelope(_unknown_dialect(request.path))
    return _answer(request, errors.not_found(request.path))


def server_error(request: HttpRequest) -> HttpResponse:
    """500."""
    return _answer(request, errors.internal_error())


def _unknown_dialect(path: str) -> APIError:
    dialects = ", ".join(f"/{name}/v1" for name in sorted(DIALECTS))
    message = f"Invalid URL ({path}). The API is at /v1, and in one dialect at {dialects}. See /docs for the routes."
    return APIError(Failed(message, INVALID, "unknown_url", status=404))


def _answer(request: HttpRequest, error: APIError) -> HttpResponse:
    if is_client_route(request.path):
        return envelope(error)
    status = error.failure.status
    title, sentence = _PAGES[status]
    # Without the request: what made an error may be what a context processor would need.
    return HttpResponse(
        render_to_string("chatapi/error.html", {"status": status, "title": title, "sentence": sentence}),
        status=status,
    )
