"""Decides when this worker treats a web process as dead."""

from collections.abc import Collection

from django.conf import settings

from accounts import loop_clock
from chatapi.delta_stream import Signs

# How long a web process may be missing from Redis: longer than it needs to announce itself again after Redis
# has lost its data.
PRESUMED_DEAD_S = 2.0


class Absences:
    """Remembers since when web processes have been missing or silent.

    Time during which this worker could not look does not count.
    """

    def __init__(self) -> None:
        self._silent_since: dict[str, float] = {}
        self._gone_since: dict[str, float] = {}

    def forget(self) -> None:
        """Start again: this worker could not look."""
        self._silent_since, self._gone_since = {}, {}

    def dead(self, names: Collection[str], signs: Signs) -> set[str]:
        """Return the dead ones: gone for `PRESUMED_DEAD_S`, or connected and silent for `HUNG_MS`."""
        now = loop_clock.monotonic()
        silent = set(names) - signs.heard - signs.unknown
        self._silent_since = {name: self._silent_since.get(name, now) for name in silent}
        self._gone_since = {name: self._gone_since.get(name, now) for name in silent - signs.connected}
        gone = {name for name, since in self._gone_since.items() if now - since > PRESUMED_DEAD_S}
        return gone | {
            name for name, since in self._silent_since.items() if now - since > settings.HUNG_MS / 1_000
        }
