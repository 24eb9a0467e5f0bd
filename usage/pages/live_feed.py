"""The WebSocket behind the Live page: one snapshot a second for all who see the same, and to each only what has changed for them."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from functools import lru_cache, partial
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import DatabaseError

from accounts import access
from usage.pages import live
from usage.pages.live import Snapshot

TICK_S = 1.0
LIFETIME_S = 300.0
"""After that the browser connects again, so that a session that has ended stops seeing."""
COME_AGAIN = 4000
"""The close code that says so (4000 to 4999 are an application's own, RFC 6455 section 7.4.2)."""


class Snapshots:
    """What runs now, read once a tick while at least one follows."""

    def __init__(self, read: Callable[[Snapshot], Awaitable[Snapshot]], tick_s: float = TICK_S) -> None:
        self._read = read
        self._tick_s = tick_s
        self._newest: Snapshot = {}
        self._ticks = 0
        self._followers = 0
        self._reading: asyncio.Task[None] | None = None
        self._ticked = asyncio.Event()

    async def follow(self) -> AsyncGenerator[Snapshot, None]:
        """The newest snapshot, and each later one; who is slow misses some."""
        self._followers += 1
        if self._reading is None:
            self._reading = asyncio.create_task(self._keep_reading())
        seen = self._ticks
        try:
            while True:
                while seen == self._ticks:
                    await self._ticked.wait()
                seen = self._ticks
                yield self._newest
        finally:
            self._followers -= 1
            if not self._followers:
                self._reading.cancel()
                self._reading = None

    async def _keep_reading(self) -> None:
        while True:
            began = time.monotonic()
            with suppress(DatabaseError):  # who looks sees that nothing comes; the next tick tries again
                self._newest = await self._read(self._newest)
                self._ticks += 1
                # A fresh one for the next tick: it is never cleared while someone waits for it.
                self._ticked, ticked = asyncio.Event(), self._ticked
                ticked.set()
            # A big snapshot on a slow machine takes its time: reading is at most a fifth of it.
            await asyncio.sleep(max(self._tick_s, 4 * (time.monotonic() - began)))


@lru_cache(maxsize=1_000)
def snapshots_of(organizations: tuple[int, ...] | None) -> Snapshots:
    """Those of these organizations, or of all: one for everyone who sees the same."""
    return Snapshots(database_sync_to_async(partial(live.snapshot, organizations=organizations)))


class LiveFeed(AsyncWebsocketConsumer):  # type: ignore[misc]  # Channels has no types
    """One browser that looks at the Live page."""

    _pushing: "asyncio.Task[None] | None" = None

    async def connect(self) -> None:
        """Let in who may look; before it is accepted, closing is an HTTP 403."""
        user = self.scope["user"]
        if not await database_sync_to_async(live.may_look)(user):
            await self.close()
            return
        organizations = await database_sync_to_async(access.organizations_of)(user)
        await self.accept()
        self._pushing = asyncio.create_task(self._push(snapshots_of(organizations)))

    async def disconnect(self, code: int) -> None:
        """The browser has left."""
        if self._pushing is not None:
            self._pushing.cancel()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **kwargs: Any) -> None:
        """Nothing that a browser says matters."""

    async def _push(self, snapshots: Snapshots) -> None:
        shown: Snapshot = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(LIFETIME_S), aclosing(snapshots.follow()) as followed:
                async for newest in followed:
                    await self.send(text_data=live.difference(shown, newest, time.time_ns() // 1_000_000))
                    shown = newest
        await self.close(code=COME_AGAIN)
