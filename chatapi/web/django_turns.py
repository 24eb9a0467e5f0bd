"""Bounds the number of requests that Django serves at once, and serves client addresses in turn.

Django's views run in threads, one per request, that share the interpreter with the event loop. Without the
bound a client that requests many pages at once would take the loop's time from every stream. The API's views
and the pages for people have a room each, so that a slow page delays no client of the API. Answers that are
sent in pieces have another one, so that a client that reads slowly delays no page.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from asgiref.sync import sync_to_async
from asgiref.typing import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    HTTPResponseStartEvent,
    Scope,
)
from django.conf import settings
from django.db import close_old_connections

from accounts import forwarding, ip_addresses
from chatapi import errors
from chatapi.api.client_routes import is_client_route
from chatapi.fair_room import FairRoom, NoRoom, Room
from chatapi.web.django_bodies import answer

# Requests in one room at the same time, from all addresses and from one.
THREADS, THREADS_EACH = 8, 4
# Answers that are sent in pieces, for which Django waits while their client reads.
DOWNLOADS, DOWNLOADS_EACH = 64, 4
WAIT_S = 10.0
MOST_WAITING_EACH = 256
# Each waiting answer holds its page in memory.
MOST_WAITING_DOWNLOADS_EACH = 16

_NO_ROOM = errors.unavailable("Too many requests are waiting for an answer. Try again in a moment.")


class _Reply:
    """Sends Django's messages. `room` is that of the page, and of a download once a first piece is sent."""

    def __init__(
        self, room: Room, acquire_download: Callable[[], Awaitable[Room]], send: ASGISendCallable
    ) -> None:
        self.room = room
        self._acquire_download = acquire_download
        self._send = send
        self._start: HTTPResponseStartEvent | None = None

    async def send(self, message: ASGISendEvent) -> None:
        """Send the message. Raises `NoRoom` before anything is sent, if there is none for a download."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        is_download = message["type"] == "http.response.body" and message.get("more_body", False)
        if is_download:
            # The thread would keep its database connection, one of few, while the client reads.
            await sync_to_async(close_old_connections)()
        if self._start is not None:
            if is_download:
                self.room.release()
                self.room = await self._acquire_download()
            await self._send(self._start)
            self._start = None
        await self._send(message)


class TakingTurns:
    """ASGI middleware that limits and orders the requests before Django."""

    def __init__(self, application: ASGI3Application) -> None:
        self._application = application
        self._api, self._pages = (
            FairRoom(THREADS, THREADS_EACH, wait_s=WAIT_S, most_waiting_each=MOST_WAITING_EACH)
            for _ in ("API", "pages")
        )
        self._downloads = FairRoom(
            DOWNLOADS, DOWNLOADS_EACH, wait_s=WAIT_S, most_waiting_each=MOST_WAITING_DOWNLOADS_EACH
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
            await answer(_NO_ROOM, scope, send)
            return
        reply = _Reply(room, partial(self._downloads.acquire, address), send)
        try:
            await self._application(scope, receive, reply.send)
        except NoRoom:
            await answer(_NO_ROOM, scope, send)
        finally:
            reply.room.release()
