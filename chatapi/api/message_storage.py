"""Keeps the messages of pages in a cookie that no other service of the same host gets."""

from typing import Any

from django.conf import settings
from django.contrib.messages.storage.cookie import CookieStorage
from django.contrib.messages.storage.fallback import FallbackStorage
from django.contrib.messages.storage.session import SessionStorage
from django.http import HttpResponseBase


class MessageCookie(CookieStorage):
    """Django's cookie under another name: a cookie with Django's name and the path "/" would hide it."""

    cookie_name = "chatapi_messages"


class MessageStorage(FallbackStorage):
    """Django's storage, with the path of our other cookies: Django writes "/"."""

    storage_classes = (MessageCookie, SessionStorage)

    def update(self, response: HttpResponseBase) -> list[Any] | None:
        """Write the messages; return those that were not stored."""
        unstored = super().update(response)
        if MessageCookie.cookie_name in response.cookies:
            response.cookies[MessageCookie.cookie_name]["path"] = settings.SESSION_COOKIE_PATH
        return unstored
