"""Says who acts while Django answers a request: the person who is signed in."""

from collections.abc import Awaitable, Callable
from functools import partial
from inspect import iscoroutinefunction

from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

from accounts import client_address
from accounts.audit.recorder import Actor, acting

Sync = Callable[[HttpRequest], HttpResponseBase]
Async = Callable[[HttpRequest], Awaitable[HttpResponseBase]]


@sync_and_async_middleware
def AuditMiddleware(get_response: Sync | Async) -> Sync | Async:  # noqa: N802  settings name it like its neighbours
    """The session is looked at only when something is recorded: answers of the API must not come to vary by
    cookie.
    """
    if iscoroutinefunction(get_response):

        async def asynchronous(request: HttpRequest) -> HttpResponseBase:
            with acting(partial(actor_of, request)):
                return await get_response(request)  # type: ignore[no-any-return]

        return asynchronous

    def synchronous(request: HttpRequest) -> HttpResponseBase:
        with acting(partial(actor_of, request)):
            return get_response(request)  # type: ignore[return-value]

    return synchronous


def actor_of(request: HttpRequest) -> Actor | None:
    """The person who is signed in; None: nobody is, or an API key asks."""
    user = getattr(request, "user", None)
    if user is None or not isinstance(user, User):
        return None
    return Actor(user.pk, user.get_username(), address_of(request))


def address_of(request: HttpRequest) -> str | None:
    """Where the request came from; None where that is not an address, as on a UNIX socket."""
    found = client_address.of(
        request.META.get("REMOTE_ADDR", ""),
        request.headers.get("x-forwarded-for", ""),
        settings.TRUSTED_PROXIES,
    )
    return found if client_address.is_network(found) else None
