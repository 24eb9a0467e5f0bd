"""Work that begins with a commit: whoever is cancelled meanwhile sees it through, because leaving undoes nothing in the database."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

Result = TypeVar("Result")


async def unbroken(work: Awaitable[Result]) -> tuple[Result, bool]:
    """What the work answers, and whether we were cancelled meanwhile; a second cancellation breaks it off."""
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running), False
    except asyncio.CancelledError:
        return await running, True
