"""Bounds the bytes of large bodies that are read for a key and then refused.

Each web process counts for itself, because it protects its own memory and time. The count leaks, so that the
whole bound is free again after a minute without refusals.
"""

import time
from typing import Final

WINDOW_S: Final = 60.0
MAX_KEYS: Final = 10_000


class RefusedBytes:
    """The counters of all keys, as leaky buckets."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` is the bound per minute; 0 means no bound."""
        self._max_bytes = max_bytes
        # By key: its bytes, and when they were counted by `time.monotonic`.
        self._counted: dict[int, tuple[float, float]] = {}

    def add(self, api_key_id: int, n_bytes: int) -> None:
        if not self._max_bytes:
            return
        if len(self._counted) >= MAX_KEYS:
            self._counted = {key: found for key, found in self._counted.items() if self._left_bytes(key)}
        self._counted[api_key_id] = self._left_bytes(api_key_id) + n_bytes, time.monotonic()

    def wait_ms(self, api_key_id: int) -> int:
        """Return how long the key must wait before it sends a large body again; 0 if it may now."""
        if not self._max_bytes:
            return 0
        surplus_bytes = self._left_bytes(api_key_id) - self._max_bytes
        return 0 if surplus_bytes < 0 else max(1, round(surplus_bytes * WINDOW_S / self._max_bytes * 1_000))

    def _left_bytes(self, api_key_id: int) -> float:
        """Return the key's bytes that have not leaked yet."""
        counted_bytes, at = self._counted.get(api_key_id, (0.0, 0.0))
        return max(0.0, counted_bytes - (time.monotonic() - at) * self._max_bytes / WINDOW_S)
