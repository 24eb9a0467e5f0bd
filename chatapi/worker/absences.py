"""When this worker takes a web process for dead."""

from collections.abc import Collection

from django.conf import settings

from accounts import loop_clock
from chatapi.presence import Signs

PRESUMED_DEAD_S = 2.0
"""How long a web process may be gone from Redis: longer than it takes to announce itself to one that has just
lost its data.
"""


class Absences:
    """Since when which web processes have been missing, as far as this worker has seen: time in which it
    could not look does not count.
    """

    def __init__(self) -> None:
        self._silent_since: dict[str, float] = {}
        self._gone_since: dict[str, float] = {}

    def forget(self) -> None:
        """It could not look."""
        self._silent_since, self._gone_since = {}, {}

    def dead(self, names: Collection[str], signs: Signs) -> set[str]:
        """Those of the web processes that are dead: gone, or connected for very long without a word."""
        now = loop_clock.monotonic()
        silent = set(names) - signs.heard
        self._silent_since = {name: self._silent_since.get(name, now) for name in silent}
        self._gone_since = {name: self._gone_since.get(name, now) for name in silent - signs.connected}
        gone = {name for name, since in self._gone_since.items() if now - since > PRESUMED_DEAD_S}
        return gone | {
            name for name, since in self._silent_since.items() if now - since > settings.HUNG_MS / 1_000
        }
