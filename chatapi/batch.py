"""Concurrent calls that share one round trip: what comes while one is under way goes together with the next."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batch(Generic[Item, Result]):
    """Calls `run` with the items of all who wait; alone, a call goes at once."""

    def __init__(self, run: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]]) -> None:
        """`run` answers one result per item, in order; if it raises, everyone whose item was in it gets that error."""
        self._run = run
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, item: Item) -> Result:
        """The result for this item. Cancelling the caller does not take the item back."""
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
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
