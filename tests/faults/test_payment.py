"""Payments and reports of usage, whose process is killed at each step: the credit is what was paid less what
was given back, and the sum at Stripe is the ledger's.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests import fake_stripe
from tests.fake_stripe import DAY_S, Stripe
from tests.installation import ROOT, Installation
from usage.failpoints import OF_PAYMENTS

pytestmark = [pytest.mark.xdist_group("payment"), pytest.mark.timeout(300)]

CUSTOMER = "cus_fake1"
# An organization that pays in advance, and one whose usage of the last day Stripe bills.
MAKE = f"""
import random
from datetime import timedelta
from accounts.models import Organization
from tests.usage.billing_months import keys_of, set_prices, use
from usage.database.clock import database_now
from usage.payment.models import StripeCustomer
from usage.database.clock import hour_of
Organization.objects.create(name="Payer")
chance, keys = random.Random(1), keys_of("Billed")
set_prices(chance, keys)
now = database_now()
for hours in range(30, 1, -1):
    use(chance, chance.choice(keys), now - timedelta(hours=hours), completion=chance.randrange(500))
first = hour_of(now) - timedelta(hours=40)
owner = keys[0].project.organization
StripeCustomer.objects.create(
    organization=owner, customer_id="{CUSTOMER}", billed_from=first, reported_until=first
)
"""
BEGIN = """
from accounts.models import Organization
from usage.payment import payments
payments.begin(Organization.objects.get(name="Payer"), 1_000, "alice", "https://chat.example.com/credit")
"""
TURN = """
import asyncio
from chatapi.worker.reaper.payments import look_at_payments, report_usage
from usage.database.group_commit import GroupCommit
async def turn():
    commits = GroupCommit()
    try:
        for _ in range(3):
            await look_at_payments(commits)
            await report_usage(commits, {})
    finally:
        await commits.close()
asyncio.run(turn())
"""
# What time does to leases and pauses; the last statement is the time for which Stripe knows identifiers.
LATER = """
from datetime import timedelta
from usage.database.clock import database_now
from usage.payment.models import MeterEvent, Payment
Payment.objects.exclude(session_id="").update(look_at=database_now())
MeterEvent.objects.filter(due_at__isnull=False).update(due_at=database_now())
"""
MUCH_LATER = f"""{LATER}
ago = database_now() - timedelta(hours=30)
MeterEvent.objects.filter(first_tried_at__isnull=False).update(first_tried_at=ago, last_tried_at=ago)
"""
SUMS = """
from accounts.models import Organization
from usage.books import credit
from usage.models import SPENT, LedgerEntry
print(credit.balance(Organization.objects.get(name="Payer")).credited_nanodollars)
entries = LedgerEntry.objects.filter(kind__in=SPENT, organization__name="Billed")
print(sum(entries.values_list("amount_nanodollars", flat=True)))
"""
OF_BEGINNING = ("payment.after_row", "payment.after_session")
OF_BOOKING = ("payment.before_tx", "payment.in_tx", "payment.after_commit")
OF_REPORTS = ("meter.in_tx", "meter.before_send", "meter.after_send", "meter.after_record")


@pytest.fixture
def stripe() -> Iterator[Stripe]:
    with fake_stripe.serving() as fake:
        yield fake


@pytest.fixture
def made(tmp_path_factory: pytest.TempPathFactory, stripe: Stripe) -> Iterator[Installation]:
    """Prepare a database with both organizations; no process runs."""
    installation = Installation(tmp_path_factory.mktemp("payment"), **stripe.environment)
    installation.output_of("migrate")
    run(installation, MAKE)
    yield installation
    installation.verify()


def run(installation: Installation, program: str, failpoint: str = "") -> str:
    """Run the program; with a failpoint it must be killed there."""
    done = subprocess.run(
        [sys.executable, "manage.py", "shell", "--no-imports", "-c", program],
        cwd=ROOT,
        env=installation.environment | {"CHATAPI_FAILPOINTS": f"{failpoint}=kill9" if failpoint else ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    expected = -signal.SIGKILL if failpoint else 0
    assert done.returncode == expected, failpoint + done.stderr
    return done.stdout


def sums(installation: Installation) -> tuple[int, int]:
    """Return the payer's credit in cents and the billed usage in Stripe's unit."""
    credited, owed = map(int, run(installation, SUMS).split())
    return credited // 10_000_000, owed // 1_000


def test_a_payment_is_booked_once_after_any_death(made: Installation, stripe: Stripe) -> None:
    for failpoint in OF_BEGINNING:
        run(made, BEGIN, failpoint)
    assert len(stripe.sessions) == 1, "the first process died before it asked Stripe"
    run(made, BEGIN)
    *_, session_id = stripe.sessions
    intent = stripe.pay(session_id)["id"]
    for given_back in (0, 400, 100):
        if given_back:
            stripe.refund(intent, given_back)
        for failpoint in OF_BOOKING:
            run(made, LATER)
            run(made, TURN, failpoint)
    run(made, LATER)
    run(made, TURN)
    assert sums(made)[0] == 1_000 - 400 - 100


@pytest.mark.parametrize("later", [LATER, MUCH_LATER], ids=["soon", "after Stripe forgot"])
def test_usage_is_counted_once_after_any_death(made: Installation, stripe: Stripe, later: str) -> None:
    for failpoint in (*OF_REPORTS, *OF_REPORTS[1:]):
        run(made, TURN, failpoint)
        if later == MUCH_LATER:
            for event in stripe.events:
                event["received"] -= 2 * DAY_S
        run(made, later)
    for _ in range(3):
        run(made, TURN)
        run(made, LATER)
    _, owed = sums(made)
    assert stripe.total(CUSTOMER) == owed > 0
    assert len(stripe.events) > 20


def test_each_failpoint_is_tested() -> None:
    assert {*OF_BEGINNING, *OF_BOOKING, *OF_REPORTS} == set(OF_PAYMENTS)
