"""A process's loops: each runs as long as the process, whatever happens in it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)

AGAIN_AFTER_S = 1.0


async def for_ever(loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a loop, and again a second after it has failed or ended; until this is cancelled.

    A loop deals with the failures that it expects. This is for the others: a bug in one loop is told in the log, and must not leave a
    process that looks alive and does half of its work.
    """
    while True:
        try:
            await loop()
        except Exception:
            log.exception("%s failed", loop.__qualname__)
        await asyncio.sleep(AGAIN_AFTER_S)
