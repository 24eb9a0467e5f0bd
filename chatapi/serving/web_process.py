"""Runs the web process: the server with the ASGI application, until SIGTERM."""

from django.conf import settings
from django.urls import reverse

from accounts.loop_clock import clock
from chatapi.asgi import application
from chatapi.serving.process_tuning import tune_process
from chatapi.serving.watchdog import watched
from chatapi.web.event_loop import loop
from chatapi.web.limits import Limits
from chatapi.web.readiness import start_draining
from chatapi.web.server import Lifecycle, serve
from chatapi.web.services import Services


class WebLifecycle(Lifecycle):
    """Passes the server's stages of stopping on to the application."""

    def draining(self) -> None:
        """Make /readyz fail from now on."""
        start_draining()

    def deadline(self) -> None:
        """End the streams that still run, each with a proper last chunk."""
        Services.end_streams()


def run(*, host: str, port: int) -> None:
    """Serve until a signal; raises `OSError` or `OverflowError` when the address can't be listened on."""
    limits = Limits(
        max_body_bytes=settings.MAX_BODY_BYTES,
        stall_seconds=settings.STALL_MS / 1_000,
        max_connections=settings.MAX_CONNECTIONS,
        max_connections_per_address=settings.MAX_CONNECTIONS_PER_ADDRESS,
        lame_duck_seconds=settings.LAME_DUCK_MS / 1_000,
        drain_seconds=settings.DRAIN_MS / 1_000,
    )
    # It imports the views and pages: in the first request that would block the event loop for 200 ms.
    reverse("admin:index")
    tune_process()
    clock.start(loop)
    with watched():
        serve(
            application,
            host=host,
            port=port,
            limits=limits,
            lifecycle=WebLifecycle(),
            trusted_proxies=settings.TRUSTED_PROXIES,
        )
