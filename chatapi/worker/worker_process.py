"""Runs the worker process: Celery with an asyncio pool, until SIGTERM."""

import asyncio
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import celery.apps.worker
from celery.exceptions import SecurityWarning
from django.conf import settings

from accounts.loop_clock import clock
from chatapi import tracing
from chatapi.celery import app
from chatapi.serving.liveness import alive
from chatapi.serving.process_tuning import tune_process
from chatapi.serving.watchdog import watched
from chatapi.worker import tasks
from chatapi.worker.pool import run_worker
from chatapi.worker.services import slot_count


@asynccontextmanager
async def services() -> AsyncIterator[None]:
    """Keep the tasks' services, the liveness file and the watchdog while the pool runs."""
    async with tasks.services(), alive("worker"):
        tune_process()
        clock.start(asyncio.get_running_loop())
        with watched():
            yield


def run() -> int:
    """Run generations until a signal; return the exit code."""
    # In a container a worker may be root: its messages are ids in JSON, nothing is unpickled.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    # Celery prints a message on each signal; the log says it already.
    celery.apps.worker.safe_say = lambda *_: None  # type: ignore[attr-defined]  # the stub lacks it
    app.conf.chatapi_worker_services = f"{__name__}:services"
    with tracing.exporting("worker"):
        return run_worker(app, concurrency=slot_count(), drain_seconds=settings.DRAIN_MS / 1_000)
