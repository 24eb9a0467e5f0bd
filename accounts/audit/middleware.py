"""Names the signed-in person, or the API key, as the actor of a Django request."""

from collections.abc import Awaitable, Callable
from functools import partial
from inspect import iscoroutinefunction

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

from accounts.audit.recorder import Actor, acting
from accounts.authentication import Caller
from accounts.forwarding import client_ip

SyncHandler = Callable[[HttpRequest], HttpResponseBase]
AsyncHandler = Callable[[HttpRequest], Awaitable[HttpResponseBase]]


@sync_and_async_middleware
def AuditMiddleware(  # noqa: N802  named in settings
    get_response: SyncHandler | AsyncHandler,
) -> SyncHandler | AsyncHandler:
    """Make the signed-in person, or the API key, the actor of what a request changes.

    The session is read only when an act is recorded: otherwise all answers of the API would vary by cookie.
    """
    if iscoroutinefunction(get_response):

        async def asynchronous(request: HttpRequest) -> HttpResponseBase:
            with acting(partial(_actor_of, request)):
                return await get_response(request)  # type: ignore[no-any-return]

        return asynchronous

    def synchronous(request: HttpRequest) -> HttpResponseBase:
        with acting(partial(_actor_of, request)):
            return get_response(request)  # type: ignore[return-value]

    return synchronous


def _actor_of(request: HttpRequest) -> Actor | None:
    """Return the signed-in person or the authenticated API key; None for nobody."""
    match getattr(request, "user", None):
        case User() as user:
            return Actor(user.pk, user.get_username(), client_ip(request))
        case Caller() as caller:  # set by Django REST Framework
            return Actor(None, f"API key {caller.key_name}", client_ip(request), caller.api_key_id)
    return None
