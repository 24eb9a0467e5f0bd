"""The ASGI application: the hot routes of `web/kinds.py`, and Django for everything else."""

import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatapi.settings")

import django
from asgiref.typing import ASGI3Application
from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import WebsocketDenier
from django.conf import settings
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler
from django.urls import re_path

django.setup(set_prefix=False)

from chatapi.web.cors import CrossOrigin  # noqa: E402  needs the settings
from chatapi.web.django_bodies import BoundedBodies  # noqa: E402
from chatapi.web.django_turns import TakingTurns  # noqa: E402
from chatapi.web.event_stream_consumer import EventStreamConsumer  # noqa: E402
from chatapi.web.kinds import KINDS, serve  # noqa: E402  needs the apps to be loaded
from chatapi.web.path_prefix import BelowPrefix  # noqa: E402
from chatapi.web.probes import healthz, readyz  # noqa: E402
from chatapi.web.websocket_origin import SameOrigin  # noqa: E402
from chatapi.wire.dialects import DIALECTS  # noqa: E402
from usage.pages.live_feed import LiveFeed  # noqa: E402


class DjangoApplication(ASGIHandler):
    """Django as an ASGI application whose requests may be cancelled from outside without a log of errors."""

    async def handle(
        self, scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]
    ) -> None:
        """Give Django the path as browsers see it: it takes `FORCE_SCRIPT_NAME` off by itself."""
        await super().handle({**scope, "path": settings.PATH_PREFIX + scope["path"]}, receive, send)

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


django_application = DjangoApplication()
_PREFIX = rf"^(?:(?P<dialect>{'|'.join(sorted(DIALECTS))})/)?v1/"

_routes = ProtocolTypeRouter(
    {
        "http": URLRouter(
            [
                *(
                    re_path(
                        f"{_PREFIX}{kind.path}$",
                        EventStreamConsumer.as_asgi(handler=partial(serve, kind)),
                        name=kind.name,
                    )
                    for kind in KINDS
                ),
                re_path(r"^healthz?$", healthz),  # type: ignore[arg-type]
                re_path(r"^readyz$", readyz),  # type: ignore[arg-type]
                # Channels accepts any ASGI application here.
                re_path(r"", BoundedBodies(TakingTurns(django_application))),  # type: ignore[arg-type]
            ]
        ),
        "websocket": SameOrigin(
            AuthMiddlewareStack(
                URLRouter(
                    [
                        re_path(r"^admin/live/feed$", LiveFeed.as_asgi()),
                        re_path(r"^console/(?P<organization_id>[0-9]{1,18})/live/feed$", LiveFeed.as_asgi()),
                        # A 403: without a route for it, it would be an error of ours.
                        re_path(r"", WebsocketDenier.as_asgi()),
                    ]
                )
            )
        ),
    }
)
application: ASGI3Application = _routes
if settings.CORS_ORIGINS:
    application = CrossOrigin(application, settings.CORS_ORIGINS)
if settings.PATH_PREFIX:
    application = BelowPrefix(application, settings.PATH_PREFIX)
