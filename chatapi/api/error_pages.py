"""Django's error handlers: the API's envelope for its clients, a page in HTML for people."""

import logging
import re
import sys
from functools import cache

from django.conf import settings
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string

from chatapi import errors
from chatapi.api import openapi_routes
from chatapi.api.client_routes import CLIENT_ROUTE, envelope, is_client_route, is_console_page
from chatapi.errors import INVALID, APIError
from chatapi.wire.deltas import Failed
from chatapi.wire.dialects import DIALECTS
from usage.errors import is_unavailable

# An optional dialect, then any number of `/v1`: some clients join a base URL and a path that do not fit.
_VERSIONS = re.compile(rf"(?P<dialect>(?:/(?:{'|'.join(DIALECTS)}))?)(?:/v1)*+(?P<rest>/.+)")
_PAGES = {
    400: ("Bad request", "The server could not make sense of this request."),
    403: ("Not allowed", "Your role does not allow this, or only operators of this service may do it."),
    404: ("Not found", "There is no page at this URL."),
    405: ("Only for a form", "This URL takes a form. Open the page that has it, and press its button."),
    500: ("Something went wrong", "The server had an error. It has been logged; please try again."),
    503: ("Not available now", "The database does not answer, or not in time. Please try again in a moment."),
}
log = logging.getLogger(__name__)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer 400, for example to a host that is not allowed or a form that is too large."""
    failure = Failed("The server can't accept this request.", INVALID, "bad_request", status=400)
    # The text of a `BadRequest` is written for users; other errors may repeat what the client sent.
    return _answer(request, APIError(failure), str(exception) if type(exception) is BadRequest else "")


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    failure = Failed("You may not do this.", INVALID, "permission_denied", status=403)
    return _answer(request, APIError(failure))


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    route, root = CLIENT_ROUTE.match(request.path_info), settings.PATH_PREFIX
    if route and route["dialect"] and route["dialect"] not in DIALECTS:
        prefixes = ", ".join(f"{root}/{name}/v1" for name in sorted(DIALECTS))
        message = f"Invalid URL ({request.path}). The API is at {root}/v1, and in one dialect at {prefixes}."
        failure = Failed(f"{message} See {root}/docs for the routes.", INVALID, "unknown_url", status=404)
        return envelope(request, APIError(failure))
    meant = _meant(request.path_info)
    return _answer(request, errors.not_found(request.path, f"{root}/docs", meant and root + meant))


def _meant(path: str) -> str | None:
    """Return the path with exactly one `/v1` and no surplus slashes if that is a route, else None."""
    found = _VERSIONS.fullmatch(re.sub(r"/+", "/", path).rstrip("/"))
    if found and any(route.fullmatch(f"/v1{found['rest']}") for route in _routes()):
        return f"{found['dialect']}/v1{found['rest']}"
    return None


@cache
def _routes() -> list[re.Pattern[str]]:
    templates = (path.replace("{model}", ".+") for path in openapi_routes.paths())
    return [re.compile(re.sub(r"\{\w+\}", "[^/]+", template)) for template in templates]


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer 503 if the database is unavailable, else 500."""
    error = sys.exception()
    if isinstance(error, Exception) and is_unavailable(error):
        log.warning("the database is not available: %s", " ".join(str(error).split()))
        return _answer(request, errors.unavailable("The service can't read its books right now."))
    return _answer(request, errors.internal_error())


def _answer(request: HttpRequest, error: APIError, said: str = "") -> HttpResponse:
    if is_client_route(request.path_info) or request.content_type == "application/json":
        return envelope(request, error)
    return _page(request, error.failure.status, said)


def takes_a_form(request: HttpRequest, allow: str) -> HttpResponse:
    """Answer 405 to a person who opened the URL of a form; `allow` is the header of the answer."""
    response = _page(request, 405)
    response["Allow"] = allow
    return response


def _page(request: HttpRequest, status: int, said: str = "") -> HttpResponse:
    title, sentence = _PAGES[status]
    template = "console/error.html" if is_console_page(request.path_info) else "chatapi/error.html"
    # Without the request: a context processor may need the part of it that failed.
    context = {
        "status": status,
        "title": title,
        "sentence": said or sentence,
        "leads_to_admin": status == 405 and request.path_info.startswith("/admin/"),
    }
    return HttpResponse(render_to_string(template, context), status=status)
