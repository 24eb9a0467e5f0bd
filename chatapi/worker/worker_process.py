"""The worker process: Celery with our pool, until SIGTERM."""

import asyncio
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import celery.apps.worker
from celery.exceptions import SecurityWarning
from django.conf import settings

from accounts.loop_clock import clock
from chatapi.celery import app
from chatapi.serving.liveness import alive
from chatapi.serving.process_tuning import tune_process
from chatapi.serving.watchdog import watched
from chatapi.worker import tasks
from chatapi.worker.pool import run_worker


@asynccontextmanager
async def services() -> AsyncIterator[None]:
    """What the tasks need, and the sign of life from the loop that they run on."""
    async with tasks.services(), alive("worker"):
        tune_process()
        clock.start(asyncio.get_running_loop())
        with watched():
            yield


def run() -> int:
    """Run generations until a signal; returns the exit code."""
    # In a container a worker may be root: its messages are ids in JSON, nothing is unpickled.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    celery.apps.worker.safe_say = _say_nothing  # type: ignore[attr-defined]  # the stub lacks it
    app.conf.chatapi_worker_services = f"{__name__}:services"
    return run_worker(app, concurrency=settings.WORKER_CONCURRENCY, drain_seconds=settings.DRAIN_MS / 1_000)


def _say_nothing(*_: Any) -> None:
    """Takes the place of Celery's own words on a signal: whoever sent it knows."""
