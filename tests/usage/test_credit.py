"""Prepaid credit: granted, spent, refunded; and refused where it is required and used up."""

from collections.abc import Callable
from uuid import UUID

import pytest

from accounts.models import APIKey, Organization
from tests.usage.conftest import NOW, completed, limit, run
from usage.books import credit, ledger
from usage.books.credit import Note
from usage.errors import AlreadyAdmitted, BudgetExceeded, NotBooked
from usage.models import Budget, Credit, HourlyUsage, LedgerEntry
from usage.pricing import FREE
from usage.verification import verify

Ask = Callable[..., ledger.Admission]
HELD = 50_000
NOTE = Note("paid by bank transfer", "alice")


@pytest.fixture
def organization(key: APIKey) -> Organization:
    return key.project.organization


def admit(*admissions: ledger.Admission) -> list[UUID | BudgetExceeded | AlreadyAdmitted]:
    return ledger.admit(NOW, admissions)


def test_a_grant_is_an_entry_and_no_spending(organization: Organization, ask: Ask) -> None:
    entry, is_new = credit.grant(organization, 5_000, NOTE)
    assert is_new
    assert (entry.kind, entry.amount_nanodollars, entry.reason, entry.recorded_by) == (
        "grant",
        -5_000,
        NOTE.reason,
        "alice",
    )
    assert credit.balance(organization).nanodollars == 5_000
    assert not Budget.objects.filter(posted_nanodollars__gt=0).exists()
    assert not HourlyUsage.objects.exists()
    assert verify().differences == []


def test_what_is_spent_comes_off_the_balance(organization: Organization, ask: Ask) -> None:
    credit.grant(organization, 100_000, NOTE)
    first, second = ask(), ask()
    admit(first, second)
    ledger.settle(NOW, [completed(run(first), prompt=10, completion=5)])
    balance = credit.balance(organization)
    assert (balance.nanodollars, balance.available_nanodollars) == (80_000, 80_000 - HELD)


def test_credit_that_is_not_required_refuses_nobody(organization: Organization, ask: Ask) -> None:
    credit.grant(organization, 1, NOTE)
    assert isinstance(admit(ask())[0], UUID)


def test_required_credit_admits_exactly_what_it_covers(organization: Organization, ask: Ask) -> None:
    credit.require(organization)
    credit.grant(organization, 3 * HELD, NOTE)
    results = admit(*(ask() for _ in range(5)))
    assert [isinstance(result, UUID) for result in results] == [True, True, True, False, False]
    refused = results[3]
    assert isinstance(refused, BudgetExceeded)
    assert refused.is_credit
    assert refused.is_in_flight
    assert verify().differences == []


def test_without_credit_nothing_is_admitted_where_it_is_required(
    organization: Organization, ask: Ask
) -> None:
    credit.require(organization)
    (refused,) = admit(ask())
    assert isinstance(refused, BudgetExceeded)
    assert refused.is_credit
    assert not refused.is_in_flight
    assert isinstance(admit(ask(price=FREE))[0], UUID)


def test_a_grant_opens_the_door_again_and_requiring_can_end(organization: Organization, ask: Ask) -> None:
    credit.require(organization)
    assert isinstance(admit(ask())[0], BudgetExceeded)
    credit.grant(organization, HELD, NOTE)
    assert isinstance(admit(ask())[0], UUID)
    assert isinstance(admit(ask())[0], BudgetExceeded)
    credit.require(organization, False)
    assert isinstance(admit(ask())[0], UUID)
    assert Credit.objects.get().credited_nanodollars == HELD


def test_a_refusal_names_the_lower_one_of_limit_and_credit(organization: Organization, ask: Ask) -> None:
    credit.require(organization)
    credit.grant(organization, HELD - 1, NOTE)
    limit("organization", organization.pk, "ever", HELD - 2)
    (refused,) = admit(ask())
    assert isinstance(refused, BudgetExceeded)
    assert not refused.is_credit


def test_another_organizations_credit_is_its_own(organization: Organization, ask: Ask) -> None:
    other = Organization.objects.create(name="Other")
    credit.require(other)
    assert isinstance(admit(ask())[0], UUID)


def test_a_refund_takes_unused_credit_only(organization: Organization, ask: Ask) -> None:
    credit.grant(organization, HELD + 500, NOTE)
    admit(ask())
    with pytest.raises(NotBooked, match=r"Only \$0\.0000005"):
        credit.refund(organization, 501, NOTE)
    entry, _ = credit.refund(organization, 500, NOTE)
    assert (entry.kind, entry.amount_nanodollars) == ("refund", 500)
    assert credit.balance(organization).available_nanodollars == 0
    assert verify().differences == []


def test_a_reference_is_booked_once(organization: Organization) -> None:
    note = Note("card payment", "webhook", "pay_123")
    first, second = credit.grant(organization, 700, note), credit.grant(organization, 700, note)
    assert (first.entry, second.is_new) == (second.entry, False)
    with pytest.raises(NotBooked, match="belongs to something else"):
        credit.grant(organization, 701, note)
    assert credit.balance(organization).nanodollars == 700
    assert LedgerEntry.objects.count() == 1


@pytest.mark.parametrize(("nanodollars", "note"), [(0, NOTE), (-1, NOTE), (1, Note("  ", "alice"))])
def test_a_booking_needs_an_amount_and_a_reason(
    organization: Organization, nanodollars: int, note: Note
) -> None:
    for book in (credit.grant, credit.refund):
        with pytest.raises(NotBooked):
            book(organization, nanodollars, note)


def test_verification_finds_credit_that_nobody_granted(organization: Organization) -> None:
    credit.grant(organization, 700, NOTE)
    Credit.objects.update(credited_nanodollars=900)
    (difference,) = verify().differences
    assert str(difference) == f"I2 credit: organization {organization.pk}: expected 700 n$, found 900 n$"
