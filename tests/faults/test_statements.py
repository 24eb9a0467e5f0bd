"""Statements, whose process is killed at each step, or that several processes issue at once."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.installation import ROOT, Installation
from usage.failpoints import OF_STATEMENTS

pytestmark = [pytest.mark.xdist_group("statements"), pytest.mark.timeout(300)]

# Requests of two organizations in two months that are over.
MAKE = """
import random
from datetime import timedelta
from tests.usage.billing_months import keys_of, set_prices, use
from usage.database.clock import database_now
from usage.statements.month import Month
first = Month.of(database_now()).previous.previous
for name in ("Acme", "Umbrella"):
    chance, keys = random.Random(name), keys_of(name)
    set_prices(chance, keys)
    for hours in (3, 9, 30 * 24, 45 * 24):
        use(chance, chance.choice(keys), first.start + timedelta(hours=hours), completion=100)
"""
CLOSE = "from tests.usage.billing_months import close_all; close_all()"
# The second of the four statements is written when the process dies for the fifth time, and so on.
DEATHS = [
    ("itemize.in_tx", 1), ("itemize.in_tx", 20), ("statement.before_tx", 1), ("statement.before_tx", 2),
    ("statement.in_tx", 2), ("statement.after_commit", 1),
]  # fmt: skip
LIST = """
from usage.models import ItemizedDay, Statement
for row in Statement.objects.order_by("month", "organization"): print(row, row.digest)
print(ItemizedDay.objects.count())
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Prepare a database with two months that are over; no process runs."""
    installation = Installation(tmp_path_factory.mktemp("statements"))
    installation.output_of("migrate")
    installation.shell(MAKE)
    yield installation
    installation.verify()


def begin(installation: Installation, failpoints: str = "") -> "subprocess.Popen[str]":
    """Start a process that does what a reaper does for statements."""
    return subprocess.Popen(
        [sys.executable, "manage.py", "shell", "--no-imports", "-c", CLOSE],
        cwd=ROOT,
        env=installation.environment | {"CHATAPI_FAILPOINTS": failpoints},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> None:
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors


def listed(installation: Installation) -> list[str]:
    return installation.shell(LIST).splitlines()


def test_each_month_has_one_statement_after_every_death(made: Installation) -> None:
    for name, hit in DEATHS:
        dying = begin(made, f"{name}=kill9@{hit}")
        dying.communicate(timeout=120)
        assert dying.returncode == -signal.SIGKILL, f"{name} was not reached"
        made.verify()
    assert {name for name, _ in DEATHS} == set(OF_STATEMENTS)
    for each in [begin(made) for _ in range(3)]:
        finish(each)
    *statements, days = listed(made)
    assert [line.rpartition(" ")[0][7:] for line in statements] == [" of Acme", " of Umbrella"] * 2
    assert int(days) > 55
    finish(begin(made))
    assert listed(made) == [*statements, days]
