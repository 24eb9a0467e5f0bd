"""Django as an ASGI application whose requests may be cancelled from outside without a log of errors."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler


class DjangoApplication(ASGIHandler):
    async def listen_for_disconnect(self, receive: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
        """Return when the client leaves.

        Django raises `RequestAborted`, which `handle` ignores. If `handle` is cancelled (the server cancels
        requests that run on 10 s after a disconnect), this task is left alone, and asyncio would log "Task
        exception was never retrieved".
        """
        try:
            await super().listen_for_disconnect(receive)
        except RequestAborted:
            return
