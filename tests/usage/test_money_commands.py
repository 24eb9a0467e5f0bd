"""The commands about money, as an operator runs them."""

from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from accounts.models import APIKey
from tests.usage.conftest import NOW, PRICE, completed, limit, run
from tests.usage.triggers import without_triggers
from usage import verification
from usage.books import corrections, credit, ledger, prices
from usage.books.credit import Note
from usage.database.clock import database_now
from usage.errors import NotBooked
from usage.models import Budget, LedgerEntry
from usage.pricing import Price
from usage.verification import seals, verify

Ask = Callable[..., ledger.Admission]
Manage = Callable[..., str]


@pytest.fixture
def manage(key: APIKey, capsys: pytest.CaptureFixture[str]) -> Manage:
    """Run a command; answers what it prints."""

    def run_command(*words: str) -> str:
        call_command(*words)
        return capsys.readouterr().out

    return run_command


BOOKING = ("--organization", "Ledger stories", "--reason", "invoice 17", "--by", "alice")


def test_credit_is_granted_required_and_refunded(manage: Manage, key: APIKey) -> None:
    granted = manage("grantcredit", *BOOKING, "--usd", "10.00", "--require")
    assert granted == "Granted $10.00 to Ledger stories, whose balance is $10.00.\n"
    assert credit.balance(key.project.organization).is_required
    assert (
        manage("refundcredit", *BOOKING, "--usd", "2.5")
        == "Refunded $2.50 to Ledger stories, whose balance is $7.50.\n"
    )
    entry = LedgerEntry.objects.get(kind="refund")
    assert (entry.reason, entry.recorded_by) == ("invoice 17", "alice")


def test_a_payment_is_booked_once(manage: Manage) -> None:
    for message in ("Granted $3.00 to", "Already booked as"):
        assert message in manage("grantcredit", *BOOKING, "--usd", "3", "--reference", "pay_1")
    assert LedgerEntry.objects.count() == 1


def test_a_used_reference_is_refused_with_its_amount_in_dollars(manage: Manage, ask: Ask) -> None:
    manage("grantcredit", *BOOKING, "--usd", "10", "--reference", "pay_1")
    grant = LedgerEntry.objects.get()
    message = rf"ledger entry {grant.pk}, a grant of \$10\.00 for Ledger stories\.$"
    with pytest.raises(CommandError, match=message):
        manage("refundcredit", *BOOKING, "--usd", "1", "--reference", "pay_1")
    ledger.admit(NOW, [admission := ask()])
    ledger.settle(NOW, [completed(run(admission))])
    charge = LedgerEntry.objects.latest("id").pk
    corrections.correct(charge, -1_000, Note("wrong", "alice", "ticket 4"))
    with pytest.raises(
        CommandError, match=rf"a correction of -\$0\.000001 for chatcmpl-{admission.id.hex}\.$"
    ):
        manage("grantcredit", *BOOKING, "--usd", "1", "--reference", "ticket 4")
    with pytest.raises(NotBooked, match=message):
        corrections.correct(charge, -1_000, Note("wrong", "alice", "pay_1"))


@pytest.mark.parametrize(
    "usd", ["-1", "0", "ten", "0.0000000001", "0.12345678900000000000000000000000000001"]
)
def test_what_is_no_amount_is_refused(manage: Manage, usd: str) -> None:
    with pytest.raises(CommandError):
        manage("grantcredit", *BOOKING, f"--usd={usd}")
    assert not LedgerEntry.objects.exists()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--reason", "x" * 501, "at most 500"),
        ("--reference", "x" * 129, "at most 128"),
        ("--by", "\udce9", "not UTF-8 text"),
    ],
)
def test_what_the_books_can_not_hold_is_refused(
    manage: Manage, option: str, value: str, message: str
) -> None:
    with pytest.raises(CommandError, match=message):
        manage("grantcredit", *BOOKING, "--usd", "1", option, value)
    assert not LedgerEntry.objects.exists()


def test_an_organization_that_is_not_there_is_refused(manage: Manage) -> None:
    with pytest.raises(CommandError, match="There is no organization 'Nobody'"):
        manage("grantcredit", "--organization", "Nobody", "--usd", "1", "--reason", "why")


def test_no_more_is_refunded_than_there_is(manage: Manage) -> None:
    manage("grantcredit", *BOOKING, "--usd", "1")
    with pytest.raises(CommandError, match=r"Only \$1 of the credit is unused"):
        manage("refundcredit", *BOOKING, "--usd", "1.01")


def test_a_period_is_re_rated(manage: Manage, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask()])
    ledger.settle(NOW, [completed(run(admission), prompt=10, completion=5)])
    prices.change("story", Price(0, 0, PRICE.output_per_mtok_nanodollars), NOW - timedelta(hours=1))
    order = ("rerate", "--model", "story", "--from", "2026-11-21", "--to", "2026-11-22T00:00:00Z")
    assert manage(*order, "--dry-run") == "1 of 1 charge would be corrected, by -$0.00001 in sum.\n"
    assert manage(*order) == "1 of 1 charge corrected, by -$0.00001 in sum.\n"
    assert manage(*order) == "0 of 1 charge corrected, by $0.00 in sum.\n"
    assert Budget.objects.filter(posted_nanodollars=10_000).count() == 9


def test_a_model_that_never_was_is_not_re_rated(manage: Manage, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask(model="dear")])
    ledger.settle(NOW, [completed(run(admission))])
    prices.change("new", PRICE)
    for model, message in (("dear", "0 of 1 charge corrected"), ("new", "0 of 0 charges corrected")):
        assert message in manage("rerate", "--model", model, "--from", "2026-11-21", "--to", "2026-11-22")
    with pytest.raises(CommandError, match="There is no model 'nope'"):
        manage("rerate", "--model", "nope", "--from", "2026-11-21", "--to", "2026-11-22")


def test_a_period_that_ends_before_it_begins_is_not_re_rated(manage: Manage) -> None:
    prices.change("story", PRICE)
    with pytest.raises(CommandError, match="--from must be before --to"):
        manage("rerate", "--model", "story", "--from", "2026-11-22", "--to", "2026-11-21")


@pytest.mark.parametrize("moment", ["yesterday", "2026-13-01", "9999-12-31T23:59:59-12:00", ""])
def test_what_is_no_time_is_refused(manage: Manage, moment: str) -> None:
    with pytest.raises(CommandError, match="is not a date"):
        manage("rerate", "--model", "story", "--from", moment, "--to", "2026-11-22")


# ---- verifyledger


def test_right_books_are_right_with_their_newest_seal(
    manage: Manage, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    now = database_now()
    ledger.admit(now, [admission := ask()])
    ledger.settle(now, [completed(run(admission, now))])
    seal = seals.seal()
    assert seal
    message = (
        "The books are right: 1 generation (0 open), 1 ledger entry (1 sealed){}, no difference.\n"
        "Newest seal: {}\n"
    )
    assert manage("verifyledger") == message.format("", seal.digest)
    since = ", all since 2020-01-01T00:00:00+00:00"
    assert manage("verifyledger", "--seal", seal.digest, "--since", "2020-01-01") == message.format(
        since, seal.digest
    )
    with pytest.raises(CommandError, match=r"^1 difference in"):
        call_command("verifyledger", "--seal", "f" * 64)
    assert capsys.readouterr().out == f"Newest seal: {seal.digest}\n"


@pytest.mark.parametrize("hours", [-8, 5.5])
def test_since_means_the_same_moment_in_every_time_zone(manage: Manage, ask: Ask, hours: float) -> None:
    now = database_now()
    for age in (timedelta(hours=2), timedelta(minutes=50), timedelta(0)):
        ledger.admit(now - age, [admission := ask(time_zone="Asia/Tokyo")])
        ledger.settle(now - age, [completed(run(admission, now - age))])
    for minutes in (1, 31, 61):
        since = (now - timedelta(minutes=minutes)).astimezone(timezone(timedelta(hours=hours)))
        assert "no difference" in manage("verifyledger", "--since", since.isoformat())
        assert verify(since=since).differences == []


def test_what_is_counted_is_what_was_looked_at(manage: Manage, ask: Ask) -> None:
    for now in (database_now() - timedelta(days=3), database_now()):
        ledger.admit(now, [admission := ask()])
        ledger.settle(now, [completed(run(admission, now))])
    since = (database_now() - timedelta(days=1)).isoformat()
    assert f"1 generation (0 open), 1 ledger entry (0 sealed), all since {since}" in manage(
        "verifyledger", "--since", since
    )
    assert "2 generations (0 open), 2 ledger entries (0 sealed), no" in manage("verifyledger")


def test_books_of_the_future_are_not_right(manage: Manage) -> None:
    with pytest.raises(CommandError, match=r"--since 9000-01-01T00:00:00.00:00 is in the future"):
        manage("verifyledger", "--since", "9000-01-01")


def test_where_there_are_more_differences_than_are_shown_it_is_said(
    manage: Manage, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = database_now() - timedelta(minutes=3)
    for _ in range(2):
        ledger.admit(now, [ask(queue_ttl_ms=60_000)])
    monkeypatch.setattr(verification, "MAX_SHOWN", 2)
    with pytest.raises(CommandError, match=r"^2 differences in"):
        manage("verifyledger")
    monkeypatch.setattr(verification, "MAX_SHOWN", 1)
    with pytest.raises(CommandError, match=r"^At least 1 difference in"):
        manage("verifyledger")


def test_what_should_be_settled_long_ago_is_a_difference(
    manage: Manage, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger.admit(database_now() - timedelta(minutes=3), [admission := ask(queue_ttl_ms=60_000)])
    with pytest.raises(CommandError, match=r"^1 difference in 1 generation"):
        manage("verifyledger")
    assert (
        f"I3 stuck: chatcmpl-{admission.id.hex}: expected settled, found admitted" in capsys.readouterr().err
    )


def test_a_budget_beyond_a_lowered_limit_is_a_note(manage: Manage, ask: Ask, key: APIKey) -> None:
    ledger.admit(NOW, [admission := ask()])
    ledger.settle(NOW, [completed(run(admission))])
    limit("key", key.pk, "ever", 1)
    assert f"Note: key/{key.pk}/ever/1970-01-01 has spent 50000 n$, its limit is 1 n$." in manage(
        "verifyledger"
    )


WRONG = [
    ("I1 one charge", "UPDATE usage_generation SET state = 'running'"),
    ("I2 conservation", "UPDATE usage_budget SET posted_nanodollars = posted_nanodollars + 1"),
    ("I2 conservation", "UPDATE usage_budget SET scope_id = 4711 WHERE scope = 'organization'"),
    (
        "I2 conservation",
        "UPDATE usage_budget SET period_start = '2020-01-01' WHERE scope = 'key' AND period = 'day'",
    ),
    ("I2 rollup", "UPDATE usage_hourlyusage SET completion_tokens = completion_tokens + 1"),
    ("I4 hold", "UPDATE usage_generation SET reserved_nanodollars = 1"),
    ("I6 sealed", "UPDATE usage_ledgerentry SET model = 'dear'"),
    ("I7 exact money", "UPDATE usage_generation SET amount_nanodollars = amount_nanodollars + 1"),
    ("I7 correction", "UPDATE usage_ledgerentry SET budget_day = '2026-01-01' WHERE kind = 'correction'"),
    ("I10 provenance", "UPDATE usage_generation SET usage_source = 'none'"),
    ("I11 sent = charged", "UPDATE usage_generation SET cached_tokens = 7"),
    ("I11 sent = charged", "UPDATE usage_generation SET model = 'dear'"),
    ("I11 sent = charged", "UPDATE usage_generation SET budget_day = '2020-01-01'"),
    ("I11 sent = charged", "UPDATE usage_generation SET end_user_id = 7"),
    ("I15 kept", "DELETE FROM usage_generation"),
]


@pytest.mark.parametrize(("invariant", "change"), WRONG)
@pytest.mark.parametrize("since", [None, NOW - timedelta(days=3)])
def test_each_invariant_is_checked(ask: Ask, invariant: str, change: str, since: datetime | None) -> None:
    ledger.admit(NOW, [admission := ask()])
    ledger.settle(NOW, [completed(run(admission))])
    corrections.correct(LedgerEntry.objects.get().pk, -1, Note("why", "alice"))
    seals.seal()
    assert verify().differences == []
    with without_triggers(), connection.cursor() as cursor:
        cursor.execute(change)
    assert invariant in {difference.invariant for difference in verify(since=since).differences}
