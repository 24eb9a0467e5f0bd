"""Django as an ASGI application, whose requests may be cancelled from outside without an error that nobody
retrieves.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler


class DjangoApplication(ASGIHandler):
    """Django's handler."""

    async def listen_for_disconnect(self, receive: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
        """Return when the client leaves.

        Django raises `RequestAborted`, for `handle` to ignore. Where `handle` itself is cancelled (the server
        kills what does not end within 10 s of a disconnect), this task goes on alone, and asyncio would log
        "Task exception was never retrieved".
        """
        try:
            await super().listen_for_disconnect(receive)
        except RequestAborted:
            return
