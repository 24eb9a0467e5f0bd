"""Bounds the generations of one organization that wait or run, so that others find free workers.

The count costs nothing for most requests: a process remembers the last count and what it has admitted since,
and reads the books only for an organization that may be near the bound.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

from chatapi import errors
from chatapi.concurrency import CachedValue

# The greatest age of a count that refuses a request: generations that have ended since still count.
MAX_COUNT_AGE_S: Final = 0.05
# Refused callers of one organization get growing `Retry-After` times, so that they do not all return at once
# and slow other organizations down. When a generation will end is unknown, so the times are short.
COME_BACK_INTERVAL_S: Final = 0.005
MIN_RETRY_AFTER_S: Final = 1.0
MAX_RETRY_AFTER_S: Final = 30.0


class OpenGenerations:
    """The open generations of all organizations, as far as this process knows."""

    def __init__(self, count: Callable[[], Awaitable[dict[int, int]]], most: int) -> None:
        """`count` returns the number of open generations by organization; `most` is the bound of each."""
        self._count = count
        self._most = most
        self._counts = CachedValue(self._read)
        self._open: dict[int, int] = {}
        # By organization, since the last count.
        self._admitted: Counter[int] = Counter()
        self._arriving: Counter[int] = Counter()
        self._last_comes_back_at: dict[int, float] = {}
        """By organization: the latest time at which a refused caller is to come back."""

    @contextmanager
    def arriving(self, organization_id: int, *, may_repeat: bool = False) -> Iterator[None]:
        """Count a request that waits for its turn in this process; raise the 429 if as many wait already as
        may be open: each takes 20 KB.

        `may_repeat`: an earlier request may have created this one's generation, so it is refused only at
        twice that number.
        """
        if self._arriving[organization_id] >= self._most * (2 if may_repeat else 1):
            raise self._refusal(organization_id)
        self._arriving[organization_id] += 1
        try:
            yield
        finally:
            self._arriving[organization_id] -= 1

    async def add(self, organization_id: int) -> None:
        """Count one more generation. Raises as `check`."""
        await self.check(organization_id)
        self._admitted[organization_id] += 1

    async def check(self, organization_id: int) -> None:
        """Raise a 429 if the organization has as many generations as it may.

        Other processes' admissions of the last moment are not known here, so the bound is approximate.
        """
        if self._estimate(organization_id) >= self._most // 2:
            await self._counts.get(MAX_COUNT_AGE_S)
            if self._estimate(organization_id) >= self._most:
                raise self._refusal(organization_id)

    def _estimate(self, organization_id: int) -> int:
        return self._open.get(organization_id, 0) + self._admitted[organization_id]

    async def _read(self) -> dict[int, int]:
        before, self._admitted = self._admitted, Counter()
        try:
            self._open = await self._count()
        except BaseException:
            self._admitted += before  # `_open` does not include them yet
            raise
        return self._open

    def _refusal(self, organization_id: int) -> errors.APIError:
        now = monotonic()
        last_at = max(self._last_comes_back_at.get(organization_id, now), now)
        comes_back_at = min(last_at + COME_BACK_INTERVAL_S, now + MAX_RETRY_AFTER_S)
        self._last_comes_back_at[organization_id] = comes_back_at
        retry_after_s = max(comes_back_at - now, MIN_RETRY_AFTER_S)
        return errors.too_many_open_generations(self._most, round(retry_after_s * 1_000))
