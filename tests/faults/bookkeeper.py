"""Checks an installation's books as `verifyledger` does, again and again in one process: starting one takes seconds.

python -m tests.faults.bookkeeper       answers each line on stdin with {"open": 0, "differences": []}
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.installation import ROOT, Installation, die_with_parent, wait_for


class Bookkeeper:
    """The process, as the tests see it."""

    def __init__(self, installation: Installation) -> None:
        self._log = (Path(installation.folder) / "bookkeeper.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.bookkeeper"],
            cwd=ROOT,
            env=installation.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  one C call, no lock
        )

    def close_the_books(self) -> None:
        """Wait until no generation is open; fail if the books are wrong at any moment."""
        wait_for(self._is_settled, "the settlement of everything")

    def stop(self) -> None:
        """End the process."""
        self._process.communicate()
        self._log.close()

    def _is_settled(self) -> bool:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write("check\n")
        self._process.stdin.flush()
        report = json.loads(self._process.stdout.readline())
        assert report["differences"] == []
        return bool(report["open"] == 0)


def main() -> None:
    """Answer until stdin ends."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "chatapi.settings"
    import django

    django.setup()
    from usage.verification import verify

    for _ in sys.stdin:
        report = verify()
        print(json.dumps({"open": report.open_generations, "differences": [str(each) for each in report.differences]}), flush=True)


if __name__ == "__main__":
    main()
