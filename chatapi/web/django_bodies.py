"""Bounds the request bodies that reach Django: only a signed-in person may send more than 64 KiB.

Django reads a whole body before it checks anything else. Of its routes only pages of the admin take large
forms and files, and the API's routes take small JSON bodies only.
"""

from http.cookies import CookieError, SimpleCookie
from importlib import import_module
from typing import Any

from asgiref.typing import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    HTTPScope,
    Scope,
)
from channels.db import database_sync_to_async
from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest

from accounts import access
from chatapi import errors, identity
from chatapi.delta_stream import StreamUnavailable
from chatapi.errors import APIError
from chatapi.fair_room import NoRoom, Room
from chatapi.web.body_room import LARGE_BYTES
from chatapi.web.services import Services
from chatapi.wire.protocols import error_answer

_ADMIN = "/admin/"


class BoundedBodies:
    """ASGI middleware that bounds bodies before Django."""

    def __init__(self, application: ASGI3Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Pass the request on; disconnect and answer with an error if its body is too large."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        body = _Body(scope, receive)
        try:
            await self._application(scope, body.receive, send)
        finally:
            if body.room is not None:
                body.room.release()
        if body.refusal is not None:  # Django got a disconnect in place of the body, and has not answered
            await answer(body.refusal, scope, send)


class _Body:
    """The arriving body of one request."""

    def __init__(self, scope: HTTPScope, receive: ASGIReceiveCallable) -> None:
        self.room: Room | None = None
        self.refusal: APIError | None = None
        """The error that ended the reading; None if there was none."""
        self._scope = scope
        self._receive = receive
        length = _header(scope, b"content-length")
        self._announced_bytes = int(length) if length.isdigit() else 0
        self._arrived_bytes = 0

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next message, or a disconnect if the body may not be sent."""
        try:
            await self._check()
            message = await self._receive()
            if message["type"] == "http.request":
                self._arrived_bytes += len(message.get("body", b""))
                await self._check()
        except APIError as refusal:
            self.refusal = refusal
            return {"type": "http.disconnect"}
        return message

    async def _check(self) -> None:
        n_bytes = max(self._announced_bytes, self._arrived_bytes)
        if n_bytes > settings.MAX_BODY_BYTES:
            raise errors.body_too_large()
        if n_bytes <= LARGE_BYTES or self.room is not None:
            return
        is_form = self._scope["method"] == "POST" and self._scope["path"].startswith(_ADMIN)
        person_id = await self._signed_in() if is_form else None
        if person_id is None:
            raise errors.body_too_large()
        try:
            room = (await Services.get()).room
            # The other parties are organizations, by their ids, which are positive.
            self.room = await room.acquire(-person_id, self._announced_bytes or settings.MAX_BODY_BYTES)
        except (NoRoom, StreamUnavailable) as error:
            raise errors.unavailable("The service can't take large requests right now.") from error

    async def _signed_in(self) -> int | None:
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(_header(self._scope, b"cookie").decode("latin-1"))
        except CookieError:
            return None
        session = cookies.get(settings.SESSION_COOKIE_NAME)
        return None if session is None else await database_sync_to_async(_person_of)(session.value)


def _person_of(session_key: str) -> int | None:
    """Return the id of the session's person if they may enter the admin."""
    request: Any = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    person = get_user(request)
    return person.pk if person.is_authenticated and access.may_enter(person) else None


def _header(scope: HTTPScope, name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key == name), b"")


async def answer(error: APIError, scope: HTTPScope, send: ASGISendCallable) -> None:
    """Answer with the error in the envelope of the path's protocol."""
    request_id = identity.request_id(None, identity.new_id()).decode()
    status, headers, body = error_answer(scope["path"], error.failure, request_id)
    await send({"type": "http.response.start", "status": status, "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": body, "more_body": False})
