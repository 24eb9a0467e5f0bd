"""Checks an installation's books as `verifyledger` does, again and again in one process: starting one takes
seconds.

python -m tests.faults.bookkeeper       answers each line on stdin, `check` or `rows`, with a line of JSON
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.installation import ROOT, Installation, die_with_parent, wait_for

PATIENCE_S = 15


class Row(NamedTuple):
    """A generation as the books have it, its amount as the ledger has it."""

    id: str
    outcome: str
    usage_source: str
    prompt_tokens: int
    completion_tokens: int
    charges: int
    overages: int
    amount_nanodollars: int
    seconds: float
    """From its admission to its settlement."""
    endpoint: str = "chat.completions"
    worker: str = ""
    """The process that claimed it: host, random digits, process id."""


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

    def close_the_books(self, timeout_s: float = 30) -> None:
        """Wait until no generation is open; fail if the books are wrong at any moment."""
        wait_for(self._is_settled, "the settlement of everything", timeout_s)

    def rows(self) -> list[Row]:
        """Return all generations, oldest first."""
        return [Row(*values) for values in self._ask("rows")]

    def check(self) -> dict[str, Any]:
        """Return the number of open generations, the differences, and the budgets beyond their limits."""
        report: dict[str, Any] = self._ask("check")
        return report

    def stop(self) -> None:
        """End the process."""
        self._process.communicate()
        self._log.close()

    def _is_settled(self) -> bool:
        report = self.check()
        assert report["differences"] == []
        return bool(report["open"] == 0)

    def _ask(self, question: str) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def _check() -> dict[str, Any]:
    from usage.database.clock import database_now
    from usage.models import Budget
    from usage.verification import verify

    report = verify(now=database_now())
    pending = sorted(set(Budget.objects.exclude(pending_nanodollars=0).values_list("id", flat=True)))
    return {
        "open": report.open_generations,
        "differences": [str(each) for each in report.differences],
        "over limit": [str(each) for each in report.notes],
        "pending": pending,
    }


def _rows() -> list[Row]:
    from django.db.models import Count, Q, Sum

    from usage.models import Generation, Kind

    of_kind = {
        kind: Count("ledger_entries", filter=Q(ledger_entries__kind=kind))
        for kind in (Kind.CHARGE, Kind.OVERAGE)
    }
    rows = Generation.objects.annotate(
        charges=of_kind[Kind.CHARGE],
        overages=of_kind[Kind.OVERAGE],
        amount=Sum("ledger_entries__amount_nanodollars", default=0),
    )
    return [
        Row(
            row.id.hex,
            row.outcome,
            row.usage_source,
            row.prompt_tokens,
            row.completion_tokens,
            row.charges,
            row.overages,
            row.amount,
            (row.settled_at - row.admitted_at).total_seconds() if row.settled_at else 0.0,
            row.endpoint,
            row.worker,
        )
        for row in rows.order_by("id")
    ]


def main() -> None:
    """Answer until stdin ends."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "chatapi.settings"
    import django

    django.setup()
    for line in sys.stdin:
        print(json.dumps(_patiently({"check": _check, "rows": _rows}[line.strip()])), flush=True)


def _patiently(question: Callable[[], Any]) -> Any:
    """Ask until the database answers, which a test may have killed."""
    from django.db import OperationalError, connection

    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            return question()
        except OperationalError:
            connection.close()
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.2)


if __name__ == "__main__":
    main()
