"""Names the signed-in person, or the API key, as the actor of a Django request."""

from collections.abc import Awaitable, Callable
from functools import partial
from inspect import iscoroutinefunction

from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

from accounts import forwarding, ip_addresses
from accounts.audit.recorder import Actor, acting
from accounts.authentication import Caller

Sync = Callable[[HttpRequest], HttpResponseBase]
Async = Callable[[HttpRequest], Awaitable[HttpResponseBase]]


@sync_and_async_middleware
def AuditMiddleware(get_response: Sync | Async) -> Sync | Async:  # noqa: N802  named in settings
    """Read the session only when an act is recorded: otherwise the API's answers would vary by cookie."""
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
    """Return the signed-in person or the authenticated API key; None for nobody."""
    match getattr(request, "user", None):
        case User() as user:
            return Actor(user.pk, user.get_username(), ip_of(request))
        case Caller() as caller:  # set by Django REST Framework
            return Actor(None, f"API key {caller.key_name}", ip_of(request), caller.api_key_id)
    return None


def ip_of(request: HttpRequest) -> str | None:
    """Return the client's IP; None if it is not one, as on a UNIX socket."""
    found = forwarding.of_meta(request.META, settings.TRUSTED_PROXIES).ip
    return found if ip_addresses.is_ip_or_network(found) else None
