"""What is served at which price, read from the database at most once a second per process."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from chatapi.models import ServedModel
from usage import prices
from usage.pricing import Price

T = TypeVar("T")
MAX_AGE_S = 1.0


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A served model as a request needs to know it."""

    id: str
    context_window: int
    max_output_tokens: int
    price: Price | None
    """None: not priced, so not served."""


def load() -> dict[str, CatalogModel]:
    """All active models that have a deployment, by id."""
    current = prices.current()
    return {
        row.id: CatalogModel(row.id, row.context_window, row.max_output_tokens, current.get(row.id))
        for row in ServedModel.objects.filter(is_active=True, deployments__is_active=True).distinct()
    }


class Snapshot(Generic[T]):
    """A value that is read again when it is older than `MAX_AGE_S`; those who ask meanwhile wait for the same reading."""

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._value: T | None = None
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def get(self) -> T:
        """The value, at most a second old."""
        if self._value is None or time.monotonic() - self._read_at > MAX_AGE_S:
            async with self._lock:
                if self._value is None or time.monotonic() - self._read_at > MAX_AGE_S:
                    self._value = await self._read()
                    self._read_at = time.monotonic()
        return self._value
