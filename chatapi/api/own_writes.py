"""Lets people see their own changes: for a while after a form, their pages do not read the replica."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from inspect import iscoroutinefunction
from typing import Final

from django.conf import settings
from django.core.exceptions import MiddlewareNotUsed
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

from chatapi.api.client_routes import is_client_route
from usage.database.replica import MAX_LAG_S, REPLICA, primary_only

Sync = Callable[[HttpRequest], HttpResponseBase]
Async = Callable[[HttpRequest], Awaitable[HttpResponseBase]]

COOKIE: Final = "chatapi_wrote"
# A replica is read while it is at most `MAX_LAG_S` behind; the rest allows for the age of that check.
_KEPT_S: Final = 2 * MAX_LAG_S
# RFC 9110, section 9.2.1
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


@sync_and_async_middleware
def OwnWritesMiddleware(get_response: Sync | Async) -> Sync | Async:  # noqa: N802  named in settings
    """Let a form's answer, and the pages that its browser opens in the next minute, read the primary only."""
    if REPLICA not in settings.DATABASES:
        raise MiddlewareNotUsed
    if iscoroutinefunction(get_response):

        async def asynchronous(request: HttpRequest) -> HttpResponseBase:
            with _reading(request):
                response: HttpResponseBase = await get_response(request)
            return _remembering(request, response)

        return asynchronous

    def synchronous(request: HttpRequest) -> HttpResponseBase:
        with _reading(request):
            response: HttpResponseBase = get_response(request)  # type: ignore[assignment]
        return _remembering(request, response)

    return synchronous


def _reading(request: HttpRequest) -> AbstractContextManager[None]:
    return primary_only() if request.method not in _SAFE or COOKIE in request.COOKIES else nullcontext()


def _remembering(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    """Set the cookie in the answer to a form; clients of the API keep none."""
    if request.method not in _SAFE and not is_client_route(request.path_info):
        response.set_cookie(
            COOKIE,
            "1",
            max_age=_KEPT_S,
            path=settings.SESSION_COOKIE_PATH,
            secure=settings.SECURE_COOKIES,
            httponly=True,
            samesite="Lax",
        )
    return response
