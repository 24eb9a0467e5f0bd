"""How many bytes of large bodies were read for a key and then refused: beyond a bound, no more are read for
it.

Each web process counts for itself, because what is spared is its own memory and time. The count is paid off
by time, so that the whole bound is free again after a minute without refusals.
"""

import time
from typing import Final

WINDOW_S: Final = 60.0
MOST_KEYS: Final = 10_000


class RefusedBytes:
    """The counts of all keys."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes`: of refused bodies in a minute; 0: no bound."""
        self._most_bytes = most_bytes
        self._owed: dict[int, tuple[float, float]] = {}

    def add(self, api_key_id: int, n_bytes: int) -> None:
        """Count a refused body."""
        if not self._most_bytes:
            return
        if len(self._owed) >= MOST_KEYS:
            self._owed = {key: found for key, found in self._owed.items() if self._owed_bytes(key)}
        self._owed[api_key_id] = self._owed_bytes(api_key_id) + n_bytes, time.monotonic()

    def wait_ms(self, api_key_id: int) -> int:
        """How long until the key may send a large body again; 0 if it may now."""
        if not self._most_bytes:
            return 0
        surplus_bytes = self._owed_bytes(api_key_id) - self._most_bytes
        return 0 if surplus_bytes < 0 else max(1, round(surplus_bytes * WINDOW_S / self._most_bytes * 1_000))

    def _owed_bytes(self, api_key_id: int) -> float:
        owed_bytes, at = self._owed.get(api_key_id, (0.0, 0.0))
        return max(0.0, owed_bytes - (time.monotonic() - at) * self._most_bytes / WINDOW_S)
