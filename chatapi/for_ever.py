"""A process's loops: each runs as long as the process, whatever happens in it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)

AGAIN_AFTER_S = 1.0


Loop = Callable[[], Coroutine[Any, Any, None]]


async def for_ever(loop: Loop) -> None:
    """Run a loop, and again a second after it has failed or ended; until this is cancelled.

    A loop deals with the failures that it expects. This is for the others: a bug in one loop is told in the log, and must not leave a
    process that looks alive and does half of its work.
    """
    while True:
        running = loop()
        try:
            await running
        except Exception:
            log.exception("%s failed", running)
        await asyncio.sleep(AGAIN_AFTER_S)
