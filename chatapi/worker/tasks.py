"""Defines the Celery tasks, and holds the services that they share."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from chatapi.celery import GENERATE_TASK, app
from chatapi.delta_stream import StreamUnavailable
from chatapi.worker.generate import generate
from chatapi.worker.services import Services
from usage.errors import AlreadyResolved, DatabaseUnavailable

log = logging.getLogger(__name__)

_services: Services | None = None


@asynccontextmanager
async def services() -> AsyncIterator[None]:
    """Start the services before the first task, and stop them after the last."""
    global _services
    async with Services().lifetime() as _services:
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
