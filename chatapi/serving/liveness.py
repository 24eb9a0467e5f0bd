"""Shows that a process without HTTP lives: its loop touches a file, and a health check reads the age."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from django.conf import settings

from chatapi.concurrency import repeat

INTERVAL_S = 5.0


@asynccontextmanager
async def alive(role: str) -> AsyncIterator[None]:
    """Touch `<state folder>/<role>.alive` while the block runs, for docker-compose.yml's health checks."""
    path = settings.STATE_DIR / f"{role}.alive"

    async def touch() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    # The disk may be full for a while; only health checks read the file.
    touching = asyncio.create_task(repeat(INTERVAL_S, f"{path} can't be touched", touch, expected=(OSError,)))
    try:
        yield
    finally:
        touching.cancel()
        with suppress(OSError):
            path.unlink()
