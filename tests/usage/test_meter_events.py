"""Usage at Stripe: the sum of its events is the ledger's, also after failures and deaths."""

import random
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from django.core.management import CommandError, call_command
from django.db.models import F
from django.test import Client

from accounts.models import APIKey, Organization
from chatapi.doctor import payment as payment_check
from tests.fake_stripe import METER, Stripe
from tests.usage.billing_months import correct, keys_of, set_prices, use
from usage.books import credit
from usage.books.credit import Note
from usage.database.clock import hour_of
from usage.errors import NotBooked, StripeUnavailable
from usage.formatting import usd
from usage.models import SPENT, HourlyUsage, LedgerEntry
from usage.payment import metered_usage, payments, sender
from usage.payment.metered_usage import UNIT_NANODOLLARS
from usage.payment.models import MeterEvent, Payment, State, StripeCustomer
from usage.payment.sender import Outcome, Result
from usage.rollups import closing

START = datetime(2026, 3, 1, 6, 20, tzinfo=UTC)
HOUR = timedelta(hours=1)
CUSTOMER = "cus_fake1"
BACK = "https://chat.example.com/console/1/credit"


class Clock:
    """The time of the database and of Stripe."""

    def __init__(self, stripe: Stripe, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = START
        for module in (metered_usage, sender, payment_check):
            monkeypatch.setattr(module, "database_now", lambda: self.now)
        stripe.now = self.timestamp

    def timestamp(self) -> float:
        return self.now.timestamp()


@pytest.fixture
def clock(stripe: Stripe, monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(stripe, monkeypatch)


@pytest.fixture
def keys(db: None, clock: Clock) -> list[APIKey]:
    """Return keys of an organization whose usage is billed from now on."""
    keys = keys_of("Billed")
    set_prices(random.Random(1), keys)
    metered_usage.bill(keys[0].project.organization, CUSTOMER)
    return keys


def report() -> None:
    while waiting := metered_usage.waiting(1):
        metered_usage.write(*waiting)


def send() -> list[Result]:
    """Send what is due, as the reaper does; return what came of each."""
    results = []
    for claimed in sender.claim():
        outcome = sender.deliver(claimed)
        sender.record(claimed, outcome)
        results.append(outcome.result)
    return results


def settle_all(clock: Clock) -> None:
    """Let days pass until all is sent, without new usage."""
    clock.now += timedelta(hours=2)
    report()
    for _ in range(200):
        if not MeterEvent.objects.filter(due_at__isnull=False).exists():
            return
        send()
        clock.now += timedelta(minutes=30)
    raise AssertionError("events are never sent")


def owed(organization: Organization) -> int:
    """Return the ledger's sum in nanodollars."""
    entries = LedgerEntry.objects.filter(organization=organization, kind__in=SPENT)
    return sum(entries.values_list("amount_nanodollars", flat=True))


def assert_equal(stripe: Stripe, key: APIKey) -> None:
    organization = key.project.organization
    customer = StripeCustomer.objects.get(organization=organization)
    assert stripe.total(CUSTOMER) == owed(organization) // UNIT_NANODOLLARS
    assert customer.reported_nanodollars == owed(organization)


def test_an_hour_is_reported_when_it_is_over(stripe: Stripe, clock: Clock, keys: list[APIKey]) -> None:
    use(random.Random(1), keys[0], clock.now, completion=100)
    for minutes in (0, 40, 44):
        clock.now = START + timedelta(minutes=minutes)
        report()
        assert not MeterEvent.objects.exists()
    clock.now = START + timedelta(minutes=45)
    report()
    assert send() == [Result.THERE]
    (event,) = stripe.events
    assert event["identifier"] == f"{CUSTOMER}:{METER}:2026-03-01T06:1"
    assert datetime.fromtimestamp(event["at"], UTC) == datetime(2026, 3, 1, 6, tzinfo=UTC)
    assert_equal(stripe, keys[0])
    assert send() == []


def test_usage_before_the_customer_was_set_and_of_others_is_not_reported(
    stripe: Stripe, clock: Clock, db: None
) -> None:
    billed, other = keys_of("Billed"), keys_of("Other")
    for keys in (billed, other):
        set_prices(random.Random(1), keys)
        use(random.Random(1), keys[0], START - HOUR, completion=100)
    metered_usage.bill(billed[0].project.organization, CUSTOMER)
    use(random.Random(1), other[0], START, completion=100)
    settle_all(clock)
    assert stripe.events == []


def test_a_fraction_of_the_unit_is_never_lost(stripe: Stripe, clock: Clock, keys: list[APIKey]) -> None:
    for hour in range(5):
        use(random.Random(hour), keys[0], START + hour * HOUR, completion=1)
        clock.now = START + hour * HOUR + HOUR
        report()
        # Each hour costs 0.4 units more than a whole number.
        HourlyUsage.objects.filter(hour=hour_of(START + hour * HOUR)).update(amount_nanodollars=3_400)
    settle_all(clock)
    hours = sum(HourlyUsage.objects.values_list("amount_nanodollars", flat=True))
    assert hours == 17_000
    assert stripe.total(CUSTOMER) == 17
    assert sorted(event["value"] for event in stripe.events if event["value"] > 0)


def test_a_closed_hour_that_changes_gets_a_revision_with_the_difference(
    stripe: Stripe, clock: Clock, keys: list[APIKey]
) -> None:
    use(random.Random(1), keys[0], START, completion=100)
    clock.now += HOUR
    report()
    send()
    hours = HourlyUsage.objects.all()
    for change in (5_000, -7_000):
        hours.update(amount_nanodollars=F("amount_nanodollars") + change)
        clock.now += HOUR
        report()
        assert send() == [Result.THERE]
    assert [event["identifier"][-2:] for event in stripe.events] == [":1", ":2", ":3"]
    assert [event["value"] for event in stripe.events][1:] == [5, -7]
    assert len({event["at"] for event in stripe.events}) == 3, "each has a minute of its own"


def test_revisions_of_an_hour_are_looked_for_apart(stripe: Stripe, clock: Clock, keys: list[APIKey]) -> None:
    use(random.Random(1), keys[0], START, completion=100)
    clock.now += HOUR
    report()
    HourlyUsage.objects.update(amount_nanodollars=F("amount_nanodollars") + 5_000)
    clock.now += HOUR
    report()
    for claimed in sender.claim():
        assert sender.deliver(claimed).result == Result.THERE
    # The process dies here, and Stripe forgets the identifiers.
    clock.now += timedelta(days=2)
    assert send() == [Result.THERE, Result.THERE]
    assert len(stripe.events) == 2


def test_an_hour_of_last_month_that_changes_is_found_within_a_day(
    stripe: Stripe, clock: Clock, keys: list[APIKey]
) -> None:
    use(random.Random(1), keys[0], START, completion=100)
    clock.now += timedelta(days=20)
    report()
    HourlyUsage.objects.update(amount_nanodollars=F("amount_nanodollars") + 9_000)
    clock.now += timedelta(days=1)
    report()
    assert MeterEvent.objects.filter(revision=2, amount_nanodollars=9_000).count() == 1


def test_only_those_of_the_closed_days_that_changed_are_read_by_the_hour(
    stripe: Stripe, clock: Clock, keys: list[APIKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "database_now", lambda: clock.now)
    for day in (1, 2):
        use(random.Random(day), keys[0], START + timedelta(days=day), completion=100)
    clock.now += timedelta(days=20)
    while closing.close_next():
        pass
    report()
    first, second = (HourlyUsage.objects.filter(hour=hour_of(START) + timedelta(days=day)) for day in (1, 2))
    # An hour that is gone shows whether its day is read; one that changes reopens its day.
    first.delete()
    second.update(amount_nanodollars=F("amount_nanodollars") + 9_000)
    clock.now += timedelta(days=1)
    report()
    assert [each.amount_nanodollars for each in MeterEvent.objects.filter(revision=2)] == [9_000]


@pytest.mark.parametrize("mode", ["500", "429", "401", "lost"])
def test_a_failure_is_tried_again_with_growing_pauses(
    stripe: Stripe, clock: Clock, keys: list[APIKey], mode: str
) -> None:
    use(random.Random(1), keys[0], START, completion=100)
    clock.now += HOUR
    report()
    pauses = []
    for _ in range(9):
        stripe.fail(mode)  # type: ignore[arg-type]
        assert send() == [Result.AWAY]
        due_at = MeterEvent.objects.get().due_at
        assert due_at is not None
        pauses.append(due_at - clock.now)
        clock.now = due_at
    assert pauses[0] == timedelta(seconds=30)
    assert pauses == sorted(pauses)
    assert pauses[-1] == HOUR
    assert send() == [Result.THERE]
    assert_equal(stripe, keys[0])


@pytest.mark.parametrize("was_sent", [True, False])
@pytest.mark.parametrize("hours", [1, 19, 21, 30, 24 * 20])
def test_an_event_whose_outcome_was_not_recorded_is_counted_once(
    stripe: Stripe, clock: Clock, keys: list[APIKey], was_sent: bool, hours: int
) -> None:
    use(random.Random(1), keys[0], START, completion=100)
    clock.now += HOUR
    report()
    (claimed,) = sender.claim()
    if was_sent:
        assert sender.deliver(claimed).result == Result.THERE
    # The process dies here.
    clock.now += timedelta(hours=hours)
    settle_all(clock)
    assert len(stripe.events) == 1
    assert_equal(stripe, keys[0])


@pytest.mark.parametrize("hours", [3, 30, 24 * 20])
def test_a_restored_database_reports_nothing_twice(
    stripe: Stripe, clock: Clock, keys: list[APIKey], hours: int
) -> None:
    for hour in range(2):
        use(random.Random(hour), keys[0], START + hour * HOUR, completion=100)
    backup = StripeCustomer.objects.values().get()
    settle_all(clock)
    before = len(stripe.events)
    MeterEvent.objects.all().delete()
    StripeCustomer.objects.update(**backup)
    clock.now += timedelta(hours=hours)
    settle_all(clock)
    assert len(stripe.events) == before > 1
    assert_equal(stripe, keys[0])


def test_an_event_tried_lately_is_not_looked_for_before_stripe_has_added_it_up(
    stripe: Stripe, clock: Clock, keys: list[APIKey]
) -> None:
    use(random.Random(1), keys[0], START, completion=100)
    clock.now += HOUR
    report()
    sender.claim()
    clock.now += timedelta(hours=19, minutes=59)
    sender.claim()
    clock.now += timedelta(minutes=15)
    assert sender.claim() == []
    clock.now += timedelta(hours=2)
    (claimed,) = sender.claim()
    assert claimed.is_to_be_looked_for


def test_a_minute_with_another_sum_is_an_error_and_is_not_sent(
    stripe: Stripe, clock: Clock, keys: list[APIKey], caplog: pytest.LogCaptureFixture
) -> None:
    use(random.Random(1), keys[0], START, completion=100)
    clock.now += HOUR
    report()
    (claimed,) = sender.claim()
    sender.deliver(claimed)
    stripe.events[0]["value"] += 1
    clock.now += timedelta(days=2)
    assert send() == [Result.REFUSED]
    assert "in this minute, not" in caplog.text
    assert len(stripe.events) == 1


def test_a_process_that_stood_still_sends_nothing(stripe: Stripe, clock: Clock, keys: list[APIKey]) -> None:
    use(random.Random(1), keys[0], START, completion=100)
    clock.now += HOUR
    report()
    (claimed,) = sender.claim()
    frozen = replace(claimed, began_at=claimed.began_at - 30 * 60 * 60)
    clock.now += timedelta(hours=30)
    assert sender.deliver(frozen) == Outcome(Result.AWAY, "this process stood still")
    settle_all(clock)
    sender.record(frozen, Outcome(Result.AWAY, "late"))
    assert len(stripe.events) == 1
    assert not MeterEvent.objects.filter(due_at__isnull=False).exists()


def test_an_event_that_stripe_refuses_waits_with_its_error(
    stripe: Stripe, clock: Clock, keys: list[APIKey], caplog: pytest.LogCaptureFixture
) -> None:
    use(random.Random(1), keys[0], START, completion=100)
    clock.now += HOUR
    report()
    MeterEvent.objects.update(meter="unknown")
    assert send() == [Result.REFUSED]
    assert "No active meter found" in caplog.text
    assert "No active meter found" in MeterEvent.objects.get().error
    MeterEvent.objects.update(meter=METER)
    settle_all(clock)
    assert_equal(stripe, keys[0])
    assert MeterEvent.objects.get().error == ""


def test_doctor_and_the_command_say_which_usage_stripe_does_not_get(
    stripe: Stripe, clock: Clock, keys: list[APIKey], capsys: pytest.CaptureFixture[str]
) -> None:
    def found() -> list[str]:
        return [each.text for each in payment_check.check_reported_usage()]

    use(random.Random(1), keys[0], START, completion=100)
    in_order = "The usage of 1 organization is reported to Stripe."
    assert found() == [in_order]
    # No reaper has the meter's name.
    clock.now += timedelta(hours=4)
    assert found() == ["The usage of Billed since 2026-03-01 06:00 UTC is not written down for Stripe."]
    call_command("stripecustomer", "--organization", "Billed")
    assert "written down until 2026-03-01 06:00 UTC; $0.00 are at Stripe" in capsys.readouterr().out
    report()
    assert found() == [in_order]
    MeterEvent.objects.update(meter="unknown")
    assert send() == [Result.REFUSED]
    [text] = found()
    assert text.startswith("Usage since 2026-03-01 06:00 UTC waits for Stripe (reports: 1): No active meter")
    MeterEvent.objects.update(meter=METER)
    settle_all(clock)
    assert found() == [in_order]


@pytest.mark.parametrize("days", [36, 75])
@pytest.mark.parametrize("is_in_the_outbox", [True, False])
def test_after_an_outage_of_more_than_a_month_all_is_reported(
    stripe: Stripe, clock: Clock, keys: list[APIKey], days: int, is_in_the_outbox: bool
) -> None:
    chance = random.Random(days)
    for day in range(days):
        for hour in (0, 1):
            use(chance, keys[0], START + timedelta(days=day, hours=hour), completion=100)
        if is_in_the_outbox:
            clock.now = START + timedelta(days=day, hours=3)
            report()
    clock.now = START + timedelta(days=days)
    settle_all(clock)
    assert len(stripe.events) == MeterEvent.objects.exclude(value=0).count() >= 2 * days
    assert len({event["at"] for event in stripe.events}) == len(stripe.events)
    assert_equal(stripe, keys[0])


def test_two_processes_at_once_send_an_event_once(stripe: Stripe, clock: Clock, keys: list[APIKey]) -> None:
    use(random.Random(1), keys[0], START, completion=100)
    clock.now += HOUR
    report()
    assert metered_usage.waiting(1) == []
    metered_usage.write(keys[0].project.organization_id)  # another process was faster
    assert (len(sender.claim()), len(sender.claim())) == (1, 0)


@pytest.mark.parametrize("seed", range(10))
def test_random_histories_end_with_the_ledgers_sum(
    stripe: Stripe, clock: Clock, keys: list[APIKey], seed: int
) -> None:
    chance = random.Random(seed)

    def die_before_sending() -> None:
        sender.claim()

    def die_after_sending() -> None:
        for claimed in sender.claim():
            sender.deliver(claimed)

    def fail() -> None:
        stripe.fail(chance.choice(["500", "429", "lost"]), times=chance.randrange(1, 4))

    steps: list[Callable[[], object]] = [
        lambda: use(chance, chance.choice(keys), clock.now),
        lambda: use(chance, chance.choice(keys), clock.now, completion=chance.randrange(500)),
        lambda: correct(chance, keys, clock.now, is_rerating=False),
        report, send, send, die_before_sending, die_after_sending, fail,
    ]  # fmt: skip
    for _ in range(70):
        chance.choice(steps)()
        clock.now += timedelta(minutes=chance.choice([0, 1, 1, 20, 61, 300, 1_500]))
    stripe.stop_failing()
    settle_all(clock)
    assert owed(keys[0].project.organization) > 0
    assert_equal(stripe, keys[0])


def test_a_prepaid_organization_is_not_billed_too(stripe: Stripe, db: None) -> None:
    payer, other = (Organization.objects.create(name=name) for name in ("Payer", "Other"))
    credit.require(payer)
    with pytest.raises(NotBooked, match="prepaid only"):
        metered_usage.bill(payer, CUSTOMER)
    metered_usage.bill(other, CUSTOMER)
    credit.require(payer, is_required=False)
    with pytest.raises(NotBooked, match="another organization's"):
        metered_usage.bill(payer, CUSTOMER)


def test_an_organization_with_credit_left_or_an_open_payment_is_not_billed(
    stripe: Stripe, db: None, capsys: pytest.CaptureFixture[str]
) -> None:
    payer, note = Organization.objects.create(name="Payer"), Note("gift", "alice")
    bill = partial(call_command, "stripecustomer", "--organization", "Payer", "--customer", CUSTOMER)
    payments.begin(payer, 500, "alice", BACK)
    with pytest.raises(CommandError, match=r"^A payment of Payer is open: .*$"):
        bill()
    Payment.objects.update(state=State.EXPIRED)
    credit.grant(payer, 10**9, note)
    with pytest.raises(CommandError, match=r"^Payer has \$1\.00 of credit left and .*$"):
        bill()
    credit.refund(payer, 10**9, note)
    stripe.fail("500", times=2)
    with pytest.raises(StripeUnavailable):
        payments.begin(payer, 500, "alice", BACK)
    with pytest.raises(CommandError, match="is open"):
        bill()
    Payment.objects.update(created_at=F("created_at") - HOUR)
    bill()
    with pytest.raises(NotBooked, match="Stripe bills the usage of Payer"):
        payments.begin(payer, 500, "alice", BACK)
    credit.grant(payer, 10**9, note)
    call_command("stripecustomer", "--organization", "Payer", "--customer", "cus_fake2")
    assert capsys.readouterr().out.count("usage from") == 2


def test_a_payment_that_is_booked_at_the_same_moment_is_not_missed(
    stripe: Stripe, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    payer, balance = Organization.objects.create(name="Payer"), credit.balance
    payments.begin(payer, 500, "alice", BACK)

    def balance_before_the_booking(organization: Organization) -> credit.Balance:
        found = balance(organization)
        credit.grant(payer, 5 * 10**9, Note("Paid", "Stripe"))
        Payment.objects.update(state=State.PAID)
        return found

    monkeypatch.setattr(credit, "balance", balance_before_the_booking)
    with pytest.raises(NotBooked, match="open"):
        metered_usage.bill(payer, CUSTOMER)


def test_a_payment_that_stays_open_keeps_nobody_from_being_billed_after_30_days(
    stripe: Stripe, db: None
) -> None:
    payer = Organization.objects.create(name="Payer")
    payments.begin(payer, 500, "alice", BACK)
    Payment.objects.update(created_at=F("created_at") - timedelta(days=29))
    with pytest.raises(NotBooked, match="is open"):
        metered_usage.bill(payer, CUSTOMER)
    Payment.objects.update(created_at=F("created_at") - timedelta(days=1))
    assert metered_usage.bill(payer, CUSTOMER).customer_id == CUSTOMER


def test_a_billed_organization_is_not_prepaid_too(stripe: Stripe, root: Client) -> None:
    payer = Organization.objects.create(name="Payer")
    credit.require(payer, is_required=False)
    metered_usage.bill(payer, CUSTOMER)
    page = f"/admin/usage/credit/{payer.pk}/change/"
    answer = root.post(page, {"is_required": "on"})
    assert "Stripe bills the usage of Payer" in answer.content.decode()
    booking = ("--organization", "Payer", "--usd", "5", "--reason", "r", "--by", "alice", "--require")
    with pytest.raises(CommandError, match="Stripe bills the usage of Payer"):
        call_command("grantcredit", *booking)
    assert not credit.balance(payer).is_required
    assert credit.balance(payer).credited_nanodollars == 0
    metered_usage.end(payer)
    assert root.post(page, {"is_required": "on"}).status_code == 302
    assert credit.balance(payer).is_required


def test_when_billing_ends_all_until_then_is_reported_and_nothing_later(
    stripe: Stripe, clock: Clock, keys: list[APIKey], capsys: pytest.CaptureFixture[str]
) -> None:
    key = keys[0]
    organization = key.project.organization
    use(random.Random(1), key, clock.now, completion=100)
    clock.now += timedelta(hours=2, minutes=20)
    use(random.Random(2), key, clock.now, completion=100)
    before = owed(organization)
    call_command("stripecustomer", "--organization", organization.name, "--end", "--by", "alice")
    assert capsys.readouterr().out == f"The usage of {organization} up to now is reported, and no more.\n"
    clock.now += timedelta(minutes=5)
    use(random.Random(3), key, clock.now, completion=100)
    call_command("stripecustomer", "--organization", organization.name)
    ended = f"{organization}: no usage is reported any more;"
    assert capsys.readouterr().out.startswith(f"{ended} $0.00 are at Stripe, 2 events wait, the oldest of ")
    settle_all(clock)
    assert stripe.total(CUSTOMER) == before // UNIT_NANODOLLARS
    call_command("stripecustomer", "--organization", organization.name)
    assert re.fullmatch(rf"{ended} \$0\.\d+ are at Stripe, 0 events wait\.\n", capsys.readouterr().out)
    with pytest.raises(CommandError, match="has no customer at Stripe"):
        call_command("stripecustomer", "--organization", organization.name, "--end", "--by", "alice")


def test_what_an_earlier_customer_was_billed_is_not_at_the_next_one(
    stripe: Stripe, clock: Clock, keys: list[APIKey], capsys: pytest.CaptureFixture[str]
) -> None:
    use(random.Random(1), keys[0], clock.now, completion=100)
    settle_all(clock)
    sums = []
    for customer in (CUSTOMER, "cus_fake2"):
        organization = keys[0].project.organization.name
        call_command("stripecustomer", "--organization", organization, "--customer", customer)
        sums += re.findall(r"(\S+) are at Stripe, 0 events wait", capsys.readouterr().out)
    assert sums == [usd(owed(keys[0].project.organization)), "$0.00"]


def test_the_customer_of_another_organization_is_free_when_its_last_hour_is_over(
    stripe: Stripe, clock: Clock, keys: list[APIKey]
) -> None:
    other = keys_of("Other")
    set_prices(random.Random(2), other)
    payers = [key.project.organization for key in (keys[0], other[0])]
    use(random.Random(1), keys[0], clock.now, completion=100)
    metered_usage.end(payers[0])
    with pytest.raises(NotBooked, match="was another organization's in an hour"):
        metered_usage.bill(payers[1], CUSTOMER)
    clock.now += HOUR
    metered_usage.bill(payers[1], CUSTOMER)
    use(random.Random(2), other[0], clock.now, completion=100)
    settle_all(clock)
    assert stripe.total(CUSTOMER) == sum(owed(payer) // UNIT_NANODOLLARS for payer in payers)


def test_unreported_hours_do_not_go_to_a_customer_of_another_organization(
    stripe: Stripe, clock: Clock, keys: list[APIKey]
) -> None:
    other = keys_of("Other")
    set_prices(random.Random(2), other)
    first, second = (key.project.organization for key in (keys[0], other[0]))
    metered_usage.bill(second, "cus_fake2")
    for key in (keys[0], other[0]):
        use(random.Random(1), key, clock.now, completion=100)
    metered_usage.end(first)
    # The hour is over, and is reported some minutes later.
    clock.now = hour_of(clock.now) + HOUR + timedelta(minutes=2)
    with pytest.raises(NotBooked, match="was another organization's in an hour"):
        metered_usage.bill(second, CUSTOMER)
    settle_all(clock)
    metered_usage.bill(second, CUSTOMER)
    assert stripe.total("cus_fake2") == owed(second) // UNIT_NANODOLLARS
