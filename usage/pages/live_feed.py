"""The WebSocket of the Live page: one snapshot a second for all who see the same, sent as differences."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import aclosing
from functools import lru_cache, partial
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import DatabaseError

from accounts.sign_in.sessions import SignIn
from usage.pages import live
from usage.pages.live import Seen, Sight, Snapshot

log = logging.getLogger(__name__)

TICK_S = 1.0
# The close code for a page whose contents may have changed, which reloads (RFC 6455, section 7.4.2).
RELOAD = 4001

# Each open page's sign-in and what its person sees, by the future that ends it.
Open = dict["asyncio.Future[None]", tuple[SignIn, Sight]]


class Snapshots:
    """Snapshots of open generations, read once a tick while there are followers."""

    def __init__(self, read: Callable[[Snapshot], Awaitable[Snapshot]], tick_s: float = TICK_S) -> None:
        self._read = read
        self._tick_s = tick_s
        self._newest: Snapshot = {}
        self._ticks = 0
        self._followers = 0
        self._reading: asyncio.Task[None] | None = None
        self._ticked = asyncio.Event()

    async def follow(self) -> AsyncGenerator[Snapshot, None]:
        """Yield the newest snapshot and each later one; a slow follower misses some."""
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
            try:
                self._newest = await self._read(self._newest)
            except DatabaseError as error:  # the pages show that nothing comes; the next tick tries again
                log.warning("could not read open generations: %r", error)
            except Exception:
                log.exception("could not read open generations")
            else:
                self._ticks += 1
                # A new event for each tick: one event could be cleared before a waiting follower runs.
                self._ticked, ticked = asyncio.Event(), self._ticked
                ticked.set()
            # A large snapshot can be slow: at most a fifth of the time is spent on reading.
            await asyncio.sleep(max(self._tick_s, 4 * (time.monotonic() - began)))


@lru_cache(maxsize=1_000)
def snapshots_of(sight: Sight) -> Snapshots:
    """Return the snapshots of this sight, shared by everyone who sees the same."""
    return Snapshots(database_sync_to_async(partial(live.snapshot, sight=sight)))


class OpenPages:
    """The open pages and what each may show; checked once a tick, all together."""

    def __init__(self, read: Callable[[Collection[SignIn]], Awaitable[Seen]], tick_s: float = TICK_S) -> None:
        self._read = read
        self._tick_s = tick_s
        self._open: Open = {}
        self._checking: asyncio.Task[None] | None = None

    async def until_changed(self, sign_in: SignIn, sight: Sight) -> None:
        """Wait until the person no longer sees exactly this."""
        changed = asyncio.get_running_loop().create_future()
        self._open[changed] = (sign_in, sight)
        if self._checking is None:
            self._checking = asyncio.create_task(self._keep_checking())
        try:
            await changed
        finally:
            del self._open[changed]
            if not self._open:
                self._checking.cancel()
                self._checking = None

    async def _keep_checking(self) -> None:
        while True:
            began = time.monotonic()
            try:
                # A page that opens during the read was checked after it began.
                checked = dict(self._open)
                self._end_changed(checked, await self._read({sign_in for sign_in, _ in checked.values()}))
            except DatabaseError as error:  # the feed has no news then; the next tick tries again
                log.warning("could not check the people who look: %r", error)
            except Exception:
                log.exception("could not check the people who look")
                self._end_changed(self._open, {})  # nobody may look
            await asyncio.sleep(max(self._tick_s, 4 * (time.monotonic() - began)))

    def _end_changed(self, pages: Open, seen: Seen) -> None:
        for changed, (sign_in, sight) in pages.items():
            is_same = sign_in in seen and seen[sign_in] == sight
            if not is_same and not changed.done():
                changed.set_result(None)


_see = database_sync_to_async(live.sights_of)
# The open pages of this process.
OPEN_PAGES = OpenPages(_see)


class LiveFeed(AsyncWebsocketConsumer):  # type: ignore[misc]  # Channels has no types
    """The WebSocket of one browser that shows the Live page, or the console's Start of one organization."""

    _tasks: tuple["asyncio.Task[None]", ...] = ()

    async def connect(self) -> None:
        """Accept people who may look; closing before accepting is an HTTP 403."""
        sign_in = SignIn.of(self.scope["user"], self.scope["session"])
        seen = await _see([sign_in]) if sign_in else {}
        if sign_in is None or sign_in not in seen:
            await self.close()
            return
        shown = self._of_url(seen[sign_in])
        if shown is None:
            await self.close()
            return
        await self.accept()
        # The page stays open for hours, in which its person may sign out or be removed.
        pushing = asyncio.create_task(self._push(snapshots_of(shown)))
        watching = asyncio.create_task(self._watch(sign_in, seen[sign_in], pushing))
        self._tasks = (pushing, watching)

    def _of_url(self, seen: Sight) -> Sight | None:
        """Return the part of the URL's organization. The admin's URL has none, and shows whole organizations
        only: None for a person who sees none.
        """
        named = self.scope["url_route"]["kwargs"].get("organization_id")
        if named is not None:
            return seen.of_organization(int(named))
        return None if seen.organizations == () else Sight(seen.organizations)

    async def disconnect(self, code: int) -> None:
        for task in self._tasks:
            task.cancel()

    async def receive(
        self, text_data: str | None = None, bytes_data: bytes | None = None, **kwargs: Any
    ) -> None:
        """Ignore messages of the browser."""

    async def _push(self, snapshots: Snapshots) -> None:
        shown: Snapshot = {}
        async with aclosing(snapshots.follow()) as followed:
            async for newest in followed:
                await self.send(text_data=live.difference(shown, newest, time.time_ns() // 1_000_000))
                shown = newest

    async def _watch(self, sign_in: SignIn, sight: Sight, pushing: "asyncio.Task[None]") -> None:
        await OPEN_PAGES.until_changed(sign_in, sight)
        pushing.cancel()
        await self.close(code=RELOAD)
