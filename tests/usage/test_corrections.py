"""Corrections: one more entry, counted where the corrected one counts; and re-rating after a price change."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from accounts.models import APIKey
from tests.usage.conftest import NOW, PRICE, completed, limit, run
from usage import rollups
from usage.books import corrections, ledger, prices
from usage.books.credit import Note
from usage.books.rerating import Rerating, ReratingSpec, rerate
from usage.errors import NotBooked
from usage.models import Budget, Discount, Generation, HourlyUsage, LedgerEntry, Outcome
from usage.pricing import FREE, Price, discounted
from usage.verification import verify

Ask = Callable[..., ledger.Admission]
DAY = ReratingSpec("story", NOW - timedelta(hours=12), NOW + timedelta(hours=12), "alice")
DOUBLE = Price(
    2 * PRICE.input_per_mtok_nanodollars,
    PRICE.cached_input_per_mtok_nanodollars,
    2 * PRICE.output_per_mtok_nanodollars,
)
LONG_AGO = NOW - timedelta(days=30)


def charge(admission: ledger.Admission, **changes: object) -> LedgerEntry:
    """Return a charge of 20,000 n$ for 10 prompt and 5 completion tokens."""
    ledger.admit(NOW, [admission])
    counts: Any = {"prompt": 10, "completion": 5} | changes
    ledger.settle(NOW, [completed(run(admission), **counts)])
    return LedgerEntry.objects.filter(kind="charge").latest("id")


def posted() -> set[int]:
    return set(Budget.objects.values_list("posted_nanodollars", flat=True))


def test_a_correction_counts_where_its_charge_counts(ask: Ask) -> None:
    entry = charge(ask())
    made, _ = corrections.correct(entry.pk, -5_000, Note("half of it was garbled", "alice"))
    assert (made.kind, made.corrects, made.generation_id, made.budget_day) == (
        "correction",
        entry,
        entry.generation_id,
        entry.budget_day,
    )
    assert posted() == {15_000}
    hours = HourlyUsage.objects.values_list("requests", "completion_tokens", "amount_nanodollars")
    assert [sum(column) for column in zip(*hours, strict=True)] == [1, 5, 15_000]
    assert Generation.objects.get().amount_nanodollars == 20_000
    assert verify().differences == []


def test_rollups_are_rebuilt_with_corrections(ask: Ask) -> None:
    corrections.correct(charge(ask()).pk, 700, Note("undercharged", "alice"))
    rollups.rebuild()
    assert verify().differences == []
    assert sum(HourlyUsage.objects.values_list("amount_nanodollars", flat=True)) == 20_700


def test_no_more_is_taken_back_than_was_charged(ask: Ask) -> None:
    entry = charge(ask())
    corrections.correct(entry.pk, -19_000, Note("goodwill", "alice"))
    with pytest.raises(NotBooked, match=r"Only \$0\.000001"):
        corrections.correct(entry.pk, -1_001, Note("goodwill", "alice"))


@pytest.mark.parametrize(("amount", "reason"), [(0, "why"), (1, " ")])
def test_a_correction_has_an_amount_and_a_reason(ask: Ask, amount: int, reason: str) -> None:
    with pytest.raises(NotBooked):
        corrections.correct(charge(ask()).pk, amount, Note(reason, "alice"))


def test_only_charges_are_corrected(ask: Ask) -> None:
    made, _ = corrections.correct(charge(ask()).pk, 1, Note("why", "alice"))
    for entry_id in (made.pk, 10**9):
        with pytest.raises(NotBooked, match="no charge"):
            corrections.correct(entry_id, 1, Note("why", "alice"))


def test_a_request_of_a_test_key_stays_free(ask: Ask) -> None:
    entry = charge(ask(price=FREE, is_test=True))
    with pytest.raises(NotBooked, match="test key"):
        corrections.correct(entry.pk, 1, Note("why", "alice"))
    assert not LedgerEntry.objects.filter(kind="correction").exists()


def test_room_that_a_correction_gives_back_can_be_spent_again(key: APIKey, ask: Ask) -> None:
    limit("key", key.pk, "ever", 60_000)
    entry = charge(ask())
    assert isinstance(ledger.admit(NOW, [ask()])[0], Exception)
    corrections.correct(entry.pk, -10_001, Note("goodwill", "alice"))
    assert not isinstance(ledger.admit(NOW, [ask()])[0], Exception)


# ---- re-rating


def test_a_period_is_re_rated_once(ask: Ask) -> None:
    prices.change("story", PRICE, LONG_AGO)
    for _ in range(3):
        charge(ask())
    prices.change("story", DOUBLE, NOW - timedelta(hours=1))
    assert rerate(DAY, is_dry_run=True) == Rerating(3, 3, 60_000)
    assert posted() == {60_000}
    assert rerate(DAY) == Rerating(3, 3, 60_000)
    assert posted() == {120_000}
    assert rerate(DAY) == Rerating(3, 0, 0)
    assert set(LedgerEntry.objects.filter(kind="correction").values_list("recorded_by", "is_rerating")) == {
        ("alice", True)
    }
    assert verify().differences == []


def test_a_price_that_turns_back_turns_its_corrections_back(ask: Ask) -> None:
    prices.change("story", PRICE, LONG_AGO)
    charge(ask())
    prices.change("story", DOUBLE, NOW - timedelta(hours=2))
    rerate(DAY)
    prices.change("story", PRICE, NOW - timedelta(hours=1))
    assert rerate(DAY) == Rerating(1, 1, -20_000)
    assert posted() == {20_000}


def test_a_correction_by_hand_outlives_re_rating(ask: Ask) -> None:
    prices.change("story", DOUBLE, LONG_AGO)
    corrections.correct(charge(ask()).pk, -20_000, Note("goodwill", "alice"))
    assert rerate(DAY).difference_nanodollars == 20_000
    assert posted() == {20_000}


def test_re_rating_takes_back_no_more_than_a_correction_by_hand_has_left(ask: Ask) -> None:
    prices.change("story", discounted(PRICE, 5_000), LONG_AGO)
    corrections.correct(charge(ask()).pk, -15_000, Note("goodwill", "alice"))
    assert rerate(DAY).difference_nanodollars == -5_000
    assert rerate(DAY) == Rerating(1, 0, 0)
    assert posted() == {0}
    assert verify().differences == []


def test_only_the_period_and_the_model_are_re_rated(ask: Ask) -> None:
    prices.change("story", DOUBLE, LONG_AGO)
    charge(ask(model="other"))
    charge(ask())
    assert (
        rerate(ReratingSpec("story", NOW + timedelta(seconds=1), NOW + timedelta(days=1), "alice"))
        == Rerating()
    )
    assert rerate(ReratingSpec("story", NOW - timedelta(days=1), NOW, "alice")) == Rerating()
    assert (
        rerate(ReratingSpec("unpriced", NOW - timedelta(days=1), NOW + timedelta(days=1), "alice"))
        == Rerating()
    )
    assert rerate(DAY).charges == 1


def test_what_was_waived_or_a_test_stays_free(ask: Ask) -> None:
    prices.change("story", DOUBLE, LONG_AGO)
    charge(ask(), completion=0, outcome=Outcome.FAILED)
    charge(ask(price=FREE, is_test=True))
    assert rerate(DAY) == Rerating(1, 0, 0)


def test_what_was_free_can_be_charged_later(ask: Ask) -> None:
    """A free request held nothing, so its budgets do not exist yet."""
    prices.change("story", PRICE, LONG_AGO)
    charge(ask(price=FREE))
    assert not Budget.objects.exists()
    assert rerate(DAY) == Rerating(1, 1, 20_000)
    assert posted() == {20_000}
    assert verify().differences == []


def test_a_discount_given_afterwards_counts_from_its_start(key: APIKey, ask: Ask) -> None:
    prices.change("story", PRICE, LONG_AGO)
    charge(ask())
    Discount.objects.create(
        organization=key.project.organization, basis_points=1_000, effective_from=NOW - timedelta(hours=1)
    )
    assert rerate(DAY).difference_nanodollars == -2_000
    charge(ask(price=discounted(PRICE, 1_000)))
    assert rerate(DAY) == Rerating(2, 0, 0)
