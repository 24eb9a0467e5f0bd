"""The worker process: Celery with an asyncio pool, its task, and the services that all tasks share."""

import asyncio
import logging
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import celery.apps.worker
from celery.exceptions import SecurityWarning
from django.conf import settings

from accounts.loop_clock import clock
from chatapi import tracing
from chatapi.celery import GENERATE_TASK, app
from chatapi.delta_stream import StreamUnavailable
from chatapi.serving.liveness import alive
from chatapi.serving.process_tuning import tune_process
from chatapi.serving.watchdog import watched
from chatapi.worker.generate import generate
from chatapi.worker.pool import run_worker
from chatapi.worker.worker_services import WorkerServices, slot_count
from usage.errors import AlreadyResolved, DatabaseUnavailable

log = logging.getLogger(__name__)

_services: WorkerServices | None = None


def run() -> int:
    """Run generations until a signal; return the exit code."""
    # In a container a worker may be root: its messages are ids in JSON, nothing is unpickled.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    # Celery prints a message on each signal; the log says it already.
    celery.apps.worker.safe_say = lambda *_: None  # type: ignore[attr-defined]  # the stub lacks it
    app.conf.chatapi_worker_services = f"{__name__}:services"
    with tracing.exporting("worker"):
        return run_worker(app, concurrency=slot_count(), drain_seconds=settings.DRAIN_MS / 1_000)


@asynccontextmanager
async def services() -> AsyncIterator[None]:
    """Keep the services, the liveness file and the watchdog while the pool runs tasks."""
    global _services
    async with WorkerServices().lifetime() as _services, alive("worker"):
        tune_process()
        clock.start(asyncio.get_running_loop())
        with watched():
            yield
    _services = None


@app.task(name=GENERATE_TASK, Request="chatapi.worker.pool:BriefRequest")
async def generate_task(generation_id: str, v: int = 1) -> None:
    """Run one generation; `v` is the version of these arguments.

    A generation that can't be claimed belongs to another worker, or is left to the reaper.
    """
    assert _services is not None, "the pool enters `services` first"
    try:
        await generate(_services, UUID(generation_id))
    except AlreadyResolved:
        log.info("%s was taken already", generation_id)
    except DatabaseUnavailable as error:
        log.warning("%s could not be claimed and is left to the reaper: %s", generation_id, error)
    except StreamUnavailable as error:
        log.warning("%s is left to another worker: %s", generation_id, error)
