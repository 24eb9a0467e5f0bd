"""Shows that a process without HTTP lives: its loop touches a file, and a health check reads the age."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from django.conf import settings

log = logging.getLogger(__name__)

INTERVAL_S = 5.0


@asynccontextmanager
async def alive(role: str) -> AsyncIterator[None]:
    """Touch `<state folder>/<role>.alive` while the block runs, for docker-compose.yml's health checks."""
    path = settings.STATE_DIR / f"{role}.alive"

    async def keep_fresh() -> None:
        while True:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            except OSError as error:  # the disk may be full for a while; only health checks read the file
                log.warning("%s can't be touched: %s", path, error)
            await asyncio.sleep(INTERVAL_S)

    touching = asyncio.create_task(keep_fresh())
    try:
        yield
    finally:
        touching.cancel()
        with suppress(OSError):
            path.unlink()
