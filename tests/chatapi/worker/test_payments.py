"""The reaper's duties of payment: the failure of one payment or event, or of one duty, delays no other."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial

import pytest
from django.utils import timezone

from accounts.models import Organization
from chatapi.worker.reaper import payments as reaper
from tests import locked_database
from tests.fake_stripe import METER, Stripe
from tests.usage.billing_months import keys_of, set_prices, use
from usage.books import credit
from usage.database.clock import hour_of
from usage.database.group_commit import GroupCommit
from usage.errors import DatabaseUnavailable, StripeUnavailable
from usage.payment import payments
from usage.payment.models import MeterEvent, Payment, StripeCustomer

pytestmark = pytest.mark.django_db(transaction=True)

CENT = payments.NANODOLLARS_PER_CENT


def paid(stripe: Stripe, names: list[str]) -> list[Payment]:
    """Return a paid payment of each new organization, all of them due."""
    found = []
    for cents, name in enumerate(names, start=500):
        payer = Organization.objects.create(name=name)
        payments.begin(payer, cents, "alice", "https://chat.example.com/credit")
        payment = Payment.objects.get(organization=payer)
        stripe.pay(payment.session_id)
        found.append(payment)
    Payment.objects.update(look_at=timezone.now() - timedelta(seconds=1))
    return found


def turn(duty: Callable[[GroupCommit], Awaitable[None]]) -> None:
    """Do a duty once; it raises if Stripe failed."""

    async def once() -> None:
        commits = GroupCommit()
        try:
            await duty(commits)
        finally:
            await commits.close()

    asyncio.run(once())


def test_a_payment_that_stripe_fails_for_keeps_no_other_from_its_credit(stripe: Stripe) -> None:
    first, *others = paid(stripe, ["A", "B", "C"])
    Payment.objects.filter(pk=first.pk).update(look_at=timezone.now() - timedelta(minutes=1))
    stripe.fail("500", first.session_id, times=10)
    with pytest.raises(StripeUnavailable):
        turn(reaper.look_at_payments)
    turn(reaper.look_at_payments)
    for payment in others:
        assert credit.balance(payment.organization).nanodollars == payment.amount_cents * CENT
    assert credit.balance(first.organization).nanodollars == 0


def test_an_event_that_stripe_fails_for_keeps_no_other_from_stripe(stripe: Stripe) -> None:
    hour = hour_of(timezone.now()) - timedelta(hours=2)
    for number, name in enumerate("ABC"):
        MeterEvent.objects.create(
            organization=Organization.objects.create(name=name),
            customer_id=f"cus_{name}",
            meter=METER,
            hour=hour - timedelta(hours=30) if name == "A" else hour,
            revision=1,
            stamped_at=hour,
            amount_nanodollars=1_000,
            value=1,
            due_at=hour + timedelta(minutes=number),
        )
    # The first one is old, so it is looked for.
    stripe.fail("500", "event_summaries", times=10)
    with pytest.raises(StripeUnavailable):
        turn(partial(reaper.report_usage, paused={}))
    turn(partial(reaper.report_usage, paused={}))
    assert sorted(event["customer"] for event in stripe.events) == ["cus_B", "cus_C"]


def test_usage_that_can_not_be_written_keeps_no_other_from_stripe(
    stripe: Stripe, caplog: pytest.LogCaptureFixture
) -> None:
    hour = hour_of(timezone.now()) - timedelta(hours=3)
    for name, since in (("A", hour - timedelta(hours=2)), ("B", hour)):
        (key, *_) = keys = keys_of(name)
        set_prices(random.Random(1), keys)
        use(random.Random(1), key, hour + timedelta(minutes=1), completion=100)
        owner = key.project.organization
        StripeCustomer.objects.create(
            organization=owner, customer_id=f"cus_{name}", billed_from=hour, reported_until=since
        )
    # A row that is already there refuses the first organization's.
    first = StripeCustomer.objects.get(customer_id="cus_A").organization
    MeterEvent.objects.create(
        organization=first,
        customer_id="cus_A",
        meter=METER,
        hour=hour,
        revision=2,
        stamped_at=hour + timedelta(minutes=58),
        amount_nanodollars=0,
        value=0,
    )
    paused: dict[int, float] = {}
    report_usage = partial(reaper.report_usage, paused=paused)
    turn(report_usage)
    assert [event["customer"] for event in stripe.events] == ["cus_B"]
    assert f"organization {first.pk}" in caplog.text
    # What fails may have been slow, so that it is not tried again each second.
    turn(report_usage)
    assert caplog.text.count(f"organization {first.pk}") == 1
    MeterEvent.objects.filter(organization=first).delete()
    assert 0 < paused[first.pk] - time.monotonic() <= reaper.PAUSE_S
    paused[first.pk] = time.monotonic()
    turn(report_usage)
    assert sorted(event["customer"] for event in stripe.events) == ["cus_A", "cus_B"]
    assert not paused


def test_usage_that_a_locked_database_does_not_take_is_one_line_of_the_log(
    stripe: Stripe, caplog: pytest.LogCaptureFixture
) -> None:
    hour = hour_of(timezone.now()) - timedelta(hours=3)
    owner = Organization.objects.create(name="A")
    StripeCustomer.objects.create(
        organization=owner, customer_id="cus_A", billed_from=hour, reported_until=hour
    )
    table = MeterEvent._meta.db_table
    with (
        locked_database.impatient(),
        locked_database.locked(table),
        suppress(DatabaseUnavailable),  # on PostgreSQL, the events that are due can't be read, either
    ):
        turn(partial(reaper.report_usage, paused={}))
    [line] = [record for record in caplog.records if "is not reported" in record.getMessage()]
    assert line.exc_info is None


def test_a_bug_in_one_duty_does_not_stop_the_other(
    stripe: Stripe, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done = asyncio.Event()

    async def look_at_payments(_: GroupCommit) -> None:
        raise LookupError("a bug")

    async def report_usage(*_: object) -> None:
        done.set()

    monkeypatch.setattr(reaper, "look_at_payments", look_at_payments)
    monkeypatch.setattr(reaper, "report_usage", report_usage)

    async def keep(commits: GroupCommit) -> None:
        keeping = asyncio.create_task(reaper.keep_payments(commits))
        waiting = asyncio.create_task(done.wait())
        await asyncio.wait([keeping, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=30)
        assert not keeping.done()
        keeping.cancel()

    turn(keep)
    assert done.is_set()
    assert "look_at_payments failed" in caplog.text
