"""Serves an application below `CHATAPI_PATH_PREFIX`, for a proxy that shares its host with other services."""

from typing import cast

from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope


class BelowPrefix:
    """ASGI middleware that takes the prefix off a path.

    A path without the prefix stays as it is: proxies may have taken the prefix off, and probes and scrapers
    reach the process without a proxy.
    """

    def __init__(self, application: ASGI3Application, prefix: str) -> None:
        self._application = application
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Pass the request on."""
        if scope["type"] != "lifespan":
            path = scope["path"]
            if path == self._prefix or path.startswith(f"{self._prefix}/"):
                scope = cast(Scope, {**scope, "path": path.removeprefix(self._prefix)})
        await self._application(scope, receive, send)
