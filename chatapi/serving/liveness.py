"""A process without HTTP shows that its event loop turns: it touches a file, and a health check looks at the
file's age.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from django.conf import settings

log = logging.getLogger(__name__)

INTERVAL_S = 5.0


@asynccontextmanager
async def alive(role: str) -> AsyncIterator[None]:
    """Keep `<state folder>/<role>.alive` fresh while the block runs; docker-compose.yml's health checks read
    it.
    """
    path = settings.STATE_DIR / f"{role}.alive"
    path.parent.mkdir(parents=True, exist_ok=True)

    async def keep_fresh() -> None:
        while True:
            try:
                path.touch()
            except OSError as error:  # a full disk gets room again
                log.warning("%s can't be touched: %s", path, error)
            await asyncio.sleep(INTERVAL_S)

    touching = asyncio.create_task(keep_fresh())
    try:
        yield
    finally:
        touching.cancel()
        path.unlink(missing_ok=True)
