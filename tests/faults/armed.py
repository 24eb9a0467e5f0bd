"""`manage.py` whose failpoints say in its log that they strike: one that never struck has proved nothing.

python -m tests.faults.armed serve --only worker       CHATAPI_FAILPOINTS says which, when and how
"""

import os
import signal
import sys

from tests.installation import Installation, wait_for
from usage import failpoints


def start(installation: Installation, role: str, armed: str) -> None:
    """Let a process with these failpoints take the place of the one that plays this role, and wait until it
    is ready.
    """
    installation.end(role, signal.SIGKILL)
    sign_of_life = installation.folder / f"{role}.alive"
    sign_of_life.unlink(missing_ok=True)
    port = ["--port", str(installation.port)] if role == "web" else []
    installation.run(
        role,
        [sys.executable, "-m", "tests.faults.armed", "serve", "--only", role, *port],
        CHATAPI_FAILPOINTS=armed,
    )
    is_ready = (lambda: installation.get("/readyz")[0] == 200) if role == "web" else sign_of_life.exists
    wait_for(is_ready, f"{role} with {armed}")


def strikes(installation: Installation, role: str, failpoint: str) -> int:
    """Return the number of times that it has struck in processes of this role."""
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
