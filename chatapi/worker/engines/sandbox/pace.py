"""Paces the sandbox: its answers cost nothing, and Redis keeps each of them for minutes, read or not."""

import asyncio
from collections.abc import Hashable, Sequence

from chatapi.wire.deltas import AnyDelta

# What the answers of one organization may have at once, and what is added each second. A log lives for
# `CHATAPI_STREAM_TTL_MS`, so an organization has up to 91 MiB of its worker in Redis by default.
BURST_BYTES = 16 << 20
BYTES_PER_S = 256 << 10
BURST_S = BURST_BYTES / BYTES_PER_S
# What a delta has in Redis beside its content.
DELTA_BYTES = 6


class Pace:
    """The pace of a worker's answers, for each organization by itself."""

    def __init__(self) -> None:
        # Until when the pace allows what the organization has had; up to `BURST_S` in the future is at once.
        self._spent_until_s: dict[Hashable, float] = {}

    def wait_s(self, organization_id: Hashable) -> float:
        """Return how long the organization's next batch has to wait."""
        spent_until_s = self._spent_until_s.get(organization_id, 0.0)
        return max(0.0, spent_until_s - BURST_S - asyncio.get_running_loop().time())

    def count(self, organization_id: Hashable, batch: Sequence[AnyDelta]) -> None:
        """Count a batch that has waited: one that ends before costs nothing."""
        now = asyncio.get_running_loop().time()
        n_bytes = sum([delta.content_chars for delta in batch]) + DELTA_BYTES * len(batch)
        spent_until_s = max(self._spent_until_s.get(organization_id, 0.0), now)
        self._spent_until_s[organization_id] = spent_until_s + n_bytes / BYTES_PER_S
