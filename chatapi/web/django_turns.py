"""Bounds the number of requests that Django serves at once, and serves client addresses in turn.

Django's views run in threads, one per request, that share the interpreter with the event loop. Without the
bound a client that requests many pages at once would take the loop's time from every stream. The API's views
and the pages for people have a room each, so that a slow page delays no client of the API.
"""

from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
from django.conf import settings

from accounts import forwarding, ip_addresses
from chatapi import errors
from chatapi.api.client_routes import is_client_route
from chatapi.fair_room import FairRoom, NoRoom
from chatapi.web.django_bodies import answer

# Requests in one room at the same time, from all addresses and from one.
THREADS, THREADS_EACH = 8, 4
WAIT_S = 10.0
MOST_WAITING_EACH = 256


class TakingTurns:
    """ASGI middleware that limits and orders the requests before Django."""

    def __init__(self, application: ASGI3Application) -> None:
        self._application = application
        self._api, self._pages = (
            FairRoom(THREADS, THREADS_EACH, wait_s=WAIT_S, most_waiting_each=MOST_WAITING_EACH)
            for _ in ("API", "pages")
        )

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Pass the request on when it is its turn; answer 503 if that takes too long."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        address = ip_addresses.network_of(forwarding.of_scope(scope, settings.TRUSTED_PROXIES).ip)
        try:
            room = await (self._api if is_client_route(scope["path"]) else self._pages).acquire(address)
        except NoRoom:
            refusal = errors.unavailable("Too many requests from this address wait for an answer.")
            await answer(refusal, scope, send)
            return
        try:
            await self._application(scope, receive, send)
        finally:
            room.release()
