"""Paces the sandbox: its answers cost nothing, and Redis keeps each of them for minutes, read or not."""

import asyncio
from collections.abc import Hashable, Sequence

from chatapi.wire.deltas import AnyDelta

# The bytes of one organization's answers that may be written at once, and those that each second adds. A log
# lives for `CHATAPI_STREAM_TTL_MS`, so by default a worker has up to 91 MiB of an organization in Redis.
BURST_BYTES = 16 << 20
BYTES_PER_S = 256 << 10
BURST_S = BURST_BYTES / BYTES_PER_S
# What a delta has in Redis beside its content.
DELTA_BYTES = 6


class Pace:
    """The pace of a worker's answers, for each organization by itself."""

    def __init__(self) -> None:
        # When the pace has made up for the organization's bytes. Up to `BURST_S` before, no batch waits.
        self._spent_until_s: dict[Hashable, float] = {}
        self._pruned_at_s = 0.0

    def wait_s(self, organization_id: Hashable) -> float:
        """Return how long the organization's next batch has to wait."""
        spent_until_s = self._spent_until_s.get(organization_id, 0.0)
        return max(0.0, spent_until_s - BURST_S - asyncio.get_running_loop().time())

    def count(self, organization_id: Hashable, batch: Sequence[AnyDelta]) -> None:
        """Count a batch after its wait: if the answer ends during the wait, the batch costs nothing."""
        now = asyncio.get_running_loop().time()
        n_bytes = sum([delta.content_chars for delta in batch]) + DELTA_BYTES * len(batch)
        spent_until_s = max(self._spent_until_s.get(organization_id, 0.0), now)
        self._spent_until_s[organization_id] = spent_until_s + n_bytes / BYTES_PER_S
        if now > self._pruned_at_s + BURST_S:
            # Not at every batch: this looks at all organizations that had one since.
            self._pruned_at_s = now
            self._spent_until_s = {key: until for key, until in self._spent_until_s.items() if until > now}
