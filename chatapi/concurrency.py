"""Asyncio helpers of web and worker.

Batches, cached values, retries, loops that survive errors, and work that survives cancellation.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)

# The age at which a cached value is refreshed, if its caller asks for nothing else.
MAX_AGE_S = 1.0
RESTART_DELAY_S = 1.0

Item = TypeVar("Item")
Result = TypeVar("Result")
Value = TypeVar("Value")
Loop = Callable[[], Coroutine[Any, Any, None]]


class Batch(Generic[Item, Result]):
    """Combines concurrent calls: those that arrive while `run` is busy go together with its next call."""

    def __init__(self, run: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]]) -> None:
        """`run` returns one result per item, in order; its error goes to all callers of that batch."""
        self._run = run
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, item: Item) -> Result:
        """Return the result for this item. Cancelling the caller does not take the item back."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._task is None:
            self._task = asyncio.create_task(self._drain())
        return await future

    async def _drain(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._answer(batch)
        finally:
            self._task = None

    async def _answer(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._run([item for item, _ in batch])
            if len(results) != len(batch):
                raise RuntimeError(f"{len(results)} results for a batch of {len(batch)}")
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)


class CachedValue(Generic[Value]):
    """A cached value, refreshed when older than `max_age_s`.

    Concurrent callers share one refresh, or its error.
    """

    def __init__(self, read: Callable[[], Awaitable[Value]]) -> None:
        self._read = read
        self._value: Value
        # When the refresh that gave the value began.
        self._read_at = float("-inf")
        self._refreshing: asyncio.Task[None] | None = None

    async def get(self, max_age_s: float = MAX_AGE_S) -> Value:
        """Return the value, at most `max_age_s` old; raises the error of `read`."""
        oldest = time.monotonic() - max_age_s
        # A loop: a refresh that was running when this caller came may have begun too early for it.
        while self._read_at < oldest:
            if self._refreshing is None:
                self._refreshing = asyncio.create_task(self._refresh())
                self._refreshing.add_done_callback(_retrieve_error)
            # Shielded, because other callers wait for it, too.
            await asyncio.shield(self._refreshing)
        return self._value

    async def _refresh(self) -> None:
        began_at = time.monotonic()
        try:
            self._value = await self._read()
            self._read_at = began_at
        finally:
            self._refreshing = None


def _retrieve_error(refreshing: "asyncio.Task[None]") -> None:
    """Mark the error as seen: if all callers were cancelled, asyncio would log it."""
    if not refreshing.cancelled():
        refreshing.exception()


async def supervise(loop: Loop) -> None:
    """Run a loop until this call is cancelled; restart it `RESTART_DELAY_S` after it failed or ended.

    A loop handles the failures that it expects. This is for bugs: they are logged, and must not leave a
    process that looks alive and does half of its work.
    """
    await repeat(RESTART_DELAY_S, "a loop of this process", loop, expected=())


async def repeat(
    every_s: float,
    subject: str,
    *duties: Callable[[], Awaitable[object]],
    expected: tuple[type[Exception], ...],
) -> None:
    """Perform the duties every `every_s`, until this call is cancelled.

    A failure of an `expected` type is one line of the log. Any other one is a bug, which must not stop the
    other duties.
    """
    while True:
        for duty in duties:
            try:
                await duty()
            except expected as error:
                log.warning("%s: %r", subject, error)
            except Exception:
                name = getattr(duty, "func", duty).__qualname__  # of a partial: its function's
                log.exception("%s: %s failed", subject, name)
        await asyncio.sleep(every_s)


async def retry(
    call: Callable[[], Awaitable[Result]], waits_s: Iterable[float], errors: tuple[type[Exception], ...]
) -> Result:
    """Return what the call returns, repeating it after each wait while it raises one of `errors`.

    Raises the error of the last attempt, and any other error at once.
    """
    for wait_s in waits_s:
        try:
            return await call()
        except errors:
            await asyncio.sleep(wait_s)
    return await call()


async def shield_until_done(work: Awaitable[Result]) -> tuple[Result, bool]:
    """Run work to its end even if the caller is cancelled: a commit cannot be undone by leaving.

    Returns its result, and whether the caller was cancelled meanwhile. A second cancellation does cancel the
    work.
    """
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running), False
    except asyncio.CancelledError:
        return await running, True
