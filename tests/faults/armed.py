"""Runs `manage.py` with failpoints that write to its log when they strike, because one that never struck has
proved nothing.

python -m tests.faults.armed serve --only worker       CHATAPI_FAILPOINTS says which, when and how
"""

import os
import sys
from collections.abc import Callable

from tests.installation import Installation, wait_for
from usage import failpoints

LEASE_MS = 1_500
ENVIRONMENT = {"CHATAPI_LEASE_MS": str(LEASE_MS), "CHATAPI_QUEUE_TTL_MS": "2500"}
"""The settings of an installation whose failpoints strike: a request that was never queued is closed soon."""
CARRIERS = {"admit": "web", "enqueue": "web", "view": "web"} | dict.fromkeys(
    ("reaper", "watch", "dispatch", "deliver"), "reaper"
)
"""The processes that pass the failpoints of this name; a worker passes the others."""
ACTIONS = {"kill9": "kill9", "raise": "raise", "sleep": f"sleep:{LEASE_MS / 1_000 + 1}"}
"""A sleep outlasts the lease."""
HITS = {"delta.before_publish": 5, "delta.after_publish": 5}
"""The pass at which a failpoint strikes, so that it strikes in mid-stream; all others strike at the first."""


def carrier(failpoint: str) -> str:
    """Return the role of the process that passes this failpoint."""
    return CARRIERS.get(failpoint.partition(".")[0], "worker")


class Strike:
    """A failpoint that is armed in a new process, which takes the place of the one that passes it."""

    def __init__(self, installation: Installation, failpoint: str, action: str, hit: int = 1) -> None:
        self.failpoint, self.action, self.carrier = failpoint, action, carrier(failpoint)
        self._installation = installation
        self._before = strikes(installation, self.carrier, failpoint)
        start(installation, self.carrier, f"{failpoint}={ACTIONS[action]}@{hit}")

    @property
    def has_struck(self) -> bool:
        """Return whether it has struck since it was armed."""
        return strikes(self._installation, self.carrier, self.failpoint) > self._before

    def wait(self, is_answered: Callable[[], bool]) -> None:
        """Wait until it has struck and, if it kills, until the process is dead; fail if the client is
        answered and it has never struck.
        """
        wait_for(lambda: self.has_struck or is_answered(), f"{self.failpoint} to strike")
        # A failpoint behind the answer may strike a moment after it.
        wait_for(lambda: self.has_struck, f"{self.failpoint} to strike behind the answer", 2)
        if self.action == "kill9":
            self._installation.processes[self.carrier].wait(5)


def start(installation: Installation, role: str, armed: str) -> None:
    """Replace the process of this role by one with these failpoints, and wait until it is ready."""
    installation.replace(role, "-m", "tests.faults.armed", CHATAPI_FAILPOINTS=armed)


def strikes(installation: Installation, role: str, failpoint: str) -> int:
    """Return the number of times that the failpoint has struck in processes of this role."""
    return installation.log(role).count(f"failpoint {failpoint} strikes")


def _say_so() -> None:
    strike = failpoints._Failpoint.strike

    def strike_and_say_so(self: failpoints._Failpoint, name: str) -> None:
        if self.hit in {None, self.hits + 1}:
            print(f"failpoint {name} strikes", flush=True)
        strike(self, name)

    failpoints._Failpoint.strike = strike_and_say_so  # type: ignore[method-assign]


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatapi.settings")
    _say_so()
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
