"""Runs the web process: the server with the ASGI application, until SIGTERM."""

import socket
from dataclasses import replace

from django.conf import settings
from django.urls import reverse

from accounts.loop_clock import clock
from chatapi import tracing
from chatapi.asgi import application
from chatapi.serving.process_tuning import tune_process
from chatapi.serving.watchdog import watched
from chatapi.web.probes import start_draining
from chatapi.web.server.server import serve
from chatapi.web.server.server_limits import ServerLimits
from chatapi.web.server.transport import loop
from chatapi.web.services import Services

# Web processes that share a socket accept few connections per turn of their loops: the least busy one, whose
# turns are the shortest, takes the most. A single process takes more, so that no client waits behind a burst.
ACCEPTS_PER_TURN_SHARED = 8


def run(listener: socket.socket, *, is_shared: bool = False) -> int:
    """Serve until a signal; `is_shared`: other processes accept from this socket, too."""
    limits = ServerLimits(
        max_body_bytes=settings.MAX_BODY_BYTES,
        stall_seconds=settings.STALL_MS / 1_000,
        max_connections=settings.MAX_CONNECTIONS,
        max_connections_per_address=settings.MAX_CONNECTIONS_PER_ADDRESS,
        lame_duck_seconds=settings.LAME_DUCK_MS / 1_000,
        drain_seconds=settings.DRAIN_MS / 1_000,
    )
    if is_shared:
        limits = replace(limits, accepts_per_turn=ACCEPTS_PER_TURN_SHARED)
    # It imports the views and pages: in the first request that would block the event loop for 200 ms.
    reverse("admin:index")
    tune_process()
    clock.start(loop)
    with watched(), tracing.exporting("web"):
        serve(
            application,
            listener=listener,
            limits=limits,
            trusted_proxies=settings.TRUSTED_PROXIES,
            on_draining=start_draining,
            on_deadline=Services.end_streams,
        )
    return 0
