"""Stories of generations in the books: what is held, charged, released and refused."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import IntegrityError, connection, transaction
from pytest_django import DjangoAssertNumQueries

from accounts.models import APIKey
from tests.usage.conftest import NOW, completed, limit, run
from usage.books import ledger, receipts
from usage.books.idempotency import Idempotency
from usage.books.settlement import MAX_LOGGED_ATTEMPTS, Attempt
from usage.errors import AlreadyAdmitted, AlreadyResolved, BudgetExceeded
from usage.models import Budget, Generation, HourlyUsage, IdempotencyKey, LedgerEntry, Outcome, UsageSource
from usage.pricing import FREE, Price, Tokens
from usage.verification import verify

Ask = Callable[..., ledger.Admission]
HELD = 50_000
FREE_INPUT = Price(0, 0, 2_000_000_000)


def balances(key: APIKey) -> set[tuple[int, int]]:
    return set(Budget.objects.values_list("posted_nanodollars", "pending_nanodollars"))


def test_a_request_is_held_for_then_charged_for(key: APIKey, ask: Ask) -> None:
    admission = ask()
    assert ledger.admit(NOW, [admission]) == [admission.id]
    assert Budget.objects.count() == 9
    assert balances(key) == {(0, HELD)}
    (settled,) = ledger.settle(NOW, [completed(run(admission), prompt=10, completion=5)])
    assert isinstance(settled, ledger.Charge)
    assert settled.amount_nanodollars == 20_000
    assert balances(key) == {(20_000, 0)}
    assert LedgerEntry.objects.get().amount_nanodollars == 20_000
    assert HourlyUsage.objects.get().amount_nanodollars == 20_000
    assert verify().differences == []


def test_exactly_as_many_are_admitted_as_fit(key: APIKey, ask: Ask) -> None:
    limit("key", key.pk, "month", 3 * HELD + 1)
    results = ledger.admit(NOW, [ask() for _ in range(5)])
    assert [isinstance(result, UUID) for result in results] == [True, True, True, False, False]
    assert balances(key) == {(0, 3 * HELD)}
    assert Generation.objects.count() == 3


def test_what_does_not_fit_into_one_budget_is_held_on_none(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [ask()])
    limit("key", key.pk, "month", 2 * HELD - 1)
    (refused,) = ledger.admit(NOW, [ask()])
    assert isinstance(refused, BudgetExceeded)
    assert balances(key) == {(0, HELD)}


@pytest.mark.parametrize("scope", ["organization", "project", "key"])
@pytest.mark.parametrize("period", ["day", "month", "ever"])
def test_every_budget_can_refuse(key: APIKey, ask: Ask, scope: str, period: str) -> None:
    scope_id = {"organization": key.project.organization_id, "project": key.project_id, "key": key.pk}[scope]
    limit(scope, scope_id, period, HELD - 1)
    (refused,) = ledger.admit(NOW, [ask()])
    assert isinstance(refused, BudgetExceeded)
    assert refused.budget[:3] == (scope, scope_id, period)
    assert not refused.is_in_flight
    assert balances(key) == {(0, 0)}


def test_a_refusal_says_whether_running_requests_hold_the_rest(key: APIKey, ask: Ask) -> None:
    limit("key", key.pk, "ever", HELD)
    first, second = ledger.admit(NOW, [ask(), ask()])
    assert isinstance(first, UUID)
    assert isinstance(second, BudgetExceeded)
    assert second.is_in_flight


def test_a_new_day_is_a_new_budget_in_the_organizations_time_zone(key: APIKey, ask: Ask) -> None:
    limit("key", key.pk, "day", HELD)
    late = NOW.replace(hour=23)
    (first,) = ledger.admit(late, [ask(time_zone="Asia/Tokyo")])
    (again,) = ledger.admit(late, [ask(time_zone="Asia/Tokyo")])
    (tomorrow,) = ledger.admit(late, [ask(time_zone="UTC")])
    assert isinstance(first, UUID)
    assert isinstance(again, BudgetExceeded)
    assert isinstance(tomorrow, UUID)
    assert sorted(Generation.objects.values_list("budget_day", flat=True))[1].day == 22


def test_a_free_request_holds_nothing(key: APIKey, ask: Ask) -> None:
    limit("key", key.pk, "ever", 0)
    (admitted,) = ledger.admit(NOW, [admission := ask(price=FREE)])
    assert admitted == admission.id
    ledger.settle(NOW, [completed(run(admission))])
    assert LedgerEntry.objects.get().amount_nanodollars == 0
    assert not Budget.objects.exists()
    assert verify().differences == []


def test_only_one_claim_wins(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask()])
    run(admission)
    (second,) = ledger.claim(NOW, [ledger.Claim(admission.id, "another worker", 6_000)])
    assert isinstance(second, AlreadyResolved)


def test_only_one_claim_wins_within_a_batch_too(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask()])
    first, second = ledger.claim(NOW, [ledger.Claim(admission.id, "one worker", 6_000)] * 2)
    assert isinstance(first, ledger.Claimed)
    assert isinstance(second, AlreadyResolved)


def test_a_generation_is_settled_once_even_within_a_batch(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask()])
    settlement = completed(run(admission))
    first, second = ledger.settle(NOW, [settlement, settlement])
    (third,) = ledger.settle(NOW, [settlement])
    assert isinstance(first, ledger.Charge)
    assert isinstance(second, AlreadyResolved)
    assert isinstance(third, AlreadyResolved)
    assert LedgerEntry.objects.count() == 1
    assert verify().differences == []


def test_the_reaper_fences_off_a_worker_whose_lease_ran_out(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask()])
    zombie = run(admission)
    later = NOW + timedelta(seconds=7)
    (orphans,) = ledger.take_over(later, [ledger.TakeOver(10, 6_000, later)])
    assert [(row.id, row.fence, row.was_started) for row in orphans] == [
        (admission.id, zombie.fence + 1, True)
    ]
    (refused,) = ledger.settle(later, [completed(zombie)])
    assert isinstance(refused, AlreadyResolved)
    (again,) = ledger.take_over(later, [ledger.TakeOver(10, 6_000, later)])
    assert again == []


def test_a_zombie_in_the_same_batch_keeps_nobody_from_settling(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask()])
    zombie = run(admission)
    later = NOW + timedelta(seconds=7)
    (orphans,) = ledger.take_over(later, [ledger.TakeOver(10, 6_000, later)])
    newest = replace(zombie, fence=orphans[0].fence)
    refused, settled, again = ledger.settle(later, [completed(zombie), completed(newest), completed(newest)])
    assert [isinstance(each, AlreadyResolved) for each in (refused, settled, again)] == [True, False, True]


def test_a_heartbeat_keeps_the_lease_and_the_count(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask()])
    claimed = run(admission)
    later = NOW + timedelta(seconds=5)
    beat = ledger.Beat(
        "story worker",
        [
            ledger.Pulse(admission.id, claimed.fence, 7, ""),
            ledger.Pulse(admission.id, claimed.fence + 1, 9, ""),
        ][:1],
        6_000,
    )
    assert ledger.beat(later, [beat]) == [{admission.id}]
    much_later = NOW + timedelta(seconds=7)
    assert ledger.take_over(much_later, [ledger.TakeOver(10, 6_000, much_later)])[0] == []
    assert Generation.objects.get().completion_tokens == 7
    assert ledger.beat(
        later, [ledger.Beat("story worker", [ledger.Pulse(admission.id, claimed.fence + 1, 9, "")], 6_000)]
    ) == [set()]


def test_a_heartbeat_leaves_what_another_worker_has_claimed(key: APIKey, ask: Ask) -> None:
    """A message that is delivered twice: until its claim is refused, the second worker beats for it, too."""
    ledger.admit(NOW, [admission := ask()])
    run(admission)
    ledger.beat(NOW, [ledger.Beat("story worker", [ledger.Pulse(admission.id, 1, 7, "first")], 6_000)])
    before = Generation.objects.values().get()
    beat = ledger.Beat("another worker", [ledger.Pulse(admission.id, ledger.CLAIM_FENCE, 0, "")], 60_000)
    assert ledger.beat(NOW, [beat]) == [set()]
    assert Generation.objects.values().get() == before


def test_a_heartbeat_has_the_types_of_its_columns(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask()])
    # The column refuses the null. Without a cast, PostgreSQL refuses its type first: a null is text.
    nulls = ledger.Pulse(admission.id, run(admission).fence, None, "")  # type: ignore[arg-type]
    with pytest.raises(IntegrityError, match="completion_tokens"), transaction.atomic():
        ledger.beat(NOW, [ledger.Beat("story worker", [nulls], 6_000)])


def test_a_lost_run_names_the_worker_that_had_it(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask(), waiting := ask(queue_ttl_ms=1_000)])
    run(admission)
    for minutes in (1, 2):
        later = NOW + timedelta(minutes=minutes)
        ledger.take_over(later, [ledger.TakeOver(10, 6_000, later)])
        assert [Generation.objects.get(pk=each.id).worker for each in (admission, waiting)] == [
            "story worker",
            "reaper",
        ]


def lose(claimed: ledger.Claimed) -> Generation:
    """Let the run's lease end, and have the reaper settle it; the row that there is then."""
    later = NOW + timedelta(seconds=30)
    (orphans,) = ledger.take_over(later, [ledger.TakeOver(10, 6_000, later)])
    (orphan,) = orphans
    ledger.settle(
        later, [completed(replace(claimed, fence=orphan.fence), completion=7, outcome=Outcome.WORKER_LOST)]
    )
    return Generation.objects.get(pk=claimed.id)


def test_a_lost_run_keeps_the_deployment_of_its_last_heartbeat(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask()])
    claimed = run(admission)
    for deployment in ("", "first", "second"):
        ledger.beat(
            NOW,
            [ledger.Beat("story worker", [ledger.Pulse(admission.id, claimed.fence, 7, deployment)], 6_000)],
        )
        assert Generation.objects.get().deployment == deployment
    assert lose(claimed).deployment == "second"
    assert verify().differences == []


def test_the_deployment_of_a_settlement_counts_more_than_that_of_a_heartbeat(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask(), other := ask()])
    shown, untold = run(admission), run(other)
    ledger.beat(NOW, [ledger.Beat("story worker", [ledger.Pulse(shown.id, shown.fence, 7, "first")], 6_000)])
    ledger.settle(NOW, [completed(shown, deployment="second"), completed(untold)])
    assert [Generation.objects.get(pk=each.id).deployment for each in (shown, untold)] == ["second", ""]


def test_a_queued_request_is_an_orphan_after_its_time_in_the_queue(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask(queue_ttl_ms=1_000)])
    later = NOW + timedelta(seconds=2)
    (orphans,) = ledger.take_over(later, [ledger.TakeOver(10, 6_000, later)])
    assert [(row.id, row.was_started) for row in orphans] == [(admission.id, False)]


def test_an_orphan_may_have_asked_for_more_tokens_than_a_column_holds(key: APIKey, ask: Ask) -> None:
    most = 2**31 - 1
    ledger.admit(NOW, [admission := ask(choices_count=128, max_output_tokens=most, price=FREE)])
    later = NOW + timedelta(minutes=2)
    (orphans,) = ledger.take_over(later, [ledger.TakeOver(10, 6_000, later)])
    assert [(orphan.id, orphan.completion_tokens_cap) for orphan in orphans] == [(admission.id, 128 * most)]


def test_a_take_over_ignores_the_time_that_it_waited_for_the_database(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask()])
    run(admission)
    asked_at, later = NOW + timedelta(seconds=5), NOW + timedelta(seconds=7)
    assert ledger.take_over(later, [ledger.TakeOver(10, 6_000, asked_at)])[0] == []


def test_no_output_and_an_error_costs_nothing(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask()])
    ledger.settle(
        NOW, [completed(run(admission), completion=0, outcome=Outcome.FAILED, error_code="upstream_timeout")]
    )
    row = Generation.objects.get()
    assert (row.is_waived, row.amount_nanodollars, row.prompt_tokens) == (True, 0, 10)
    assert balances(key) == {(0, 0)}
    assert verify().differences == []


def test_an_explicit_zero_of_the_upstream_stays_zero(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask()])
    ledger.settle(NOW, [completed(run(admission), prompt=0, completion=0)])
    row = Generation.objects.get()
    assert (row.usage_source, row.prompt_tokens, row.amount_nanodollars) == (UsageSource.UPSTREAM, 0, 0)


def test_what_goes_beyond_the_hold_is_an_entry_of_its_own(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask()])
    ledger.settle(NOW, [completed(run(admission), prompt=10, completion=1_000)])
    assert dict(LedgerEntry.objects.values_list("kind", "amount_nanodollars")) == {
        "charge": HELD,
        "overage": 2_010_000 - HELD,
    }
    assert HourlyUsage.objects.get().requests == 1
    assert verify().differences == []


def test_what_held_nothing_and_costs_something_counts_in_its_budgets(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask(price=FREE_INPUT, max_output_tokens=0)])
    assert not Budget.objects.exists()
    ledger.settle(NOW, [completed(run(admission), completion=3)])
    assert dict(LedgerEntry.objects.values_list("kind", "amount_nanodollars")) == {
        "charge": 0,
        "overage": 6_000,
    }
    assert Budget.objects.count() == 9
    assert balances(key) == {(6_000, 0)}
    assert verify().differences == []


def test_what_held_nothing_settles_beside_what_did(key: APIKey, ask: Ask) -> None:
    free, held = ask(price=FREE_INPUT, max_output_tokens=0), ask()
    ledger.admit(NOW, [free, held])
    ledger.settle(NOW, [completed(run(free), completion=3), completed(run(held), prompt=10, completion=5)])
    assert balances(key) == {(26_000, 0)}
    assert verify().differences == []


def test_settling_what_was_held_costs_six_statements_at_most(
    key: APIKey, ask: Ask, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    first, second = ask(), ask()
    ledger.admit(NOW, [first, second])
    settlements = [completed(run(first)), completed(run(second))]
    # The budgets' locks are one of them.
    with django_assert_num_queries(6 if connection.features.has_select_for_update else 5):
        ledger.settle(NOW, settlements)


def test_a_withdrawn_request_releases_its_hold(key: APIKey, ask: Ask) -> None:
    running, queued = ask(), ask()
    ledger.admit(NOW, [running, queued])
    run(running)
    gone = [
        ledger.Withdrawal(admission.id, "service_unavailable", "no queue") for admission in (running, queued)
    ]
    taken, voided = ledger.withdraw(NOW, gone)
    assert isinstance(taken, AlreadyResolved)
    assert isinstance(voided, ledger.Charge)
    assert balances(key) == {(0, HELD)}
    assert Generation.objects.get(id=queued.id).outcome == Outcome.NOT_STARTED
    assert verify().differences == []


def test_a_batch_of_withdrawals_costs_as_many_statements_as_one(
    key: APIKey, ask: Ask, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    queued = [ask() for _ in range(3)]
    ledger.admit(NOW, queued)
    gone = [ledger.Withdrawal(admission.id, "service_unavailable", "no queue") for admission in queued]
    # Two, and those of `settle`.
    with django_assert_num_queries(9 if connection.features.has_select_for_update else 8):
        ledger.withdraw(NOW, gone)


def test_cached_and_reasoning_tokens_are_kept(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask()])
    ledger.settle(NOW, [completed(run(admission), tokens=Tokens(10, 5, cached_tokens=4, reasoning_tokens=2))])
    row, hour = Generation.objects.get(), HourlyUsage.objects.get()
    assert (row.cached_tokens, row.reasoning_tokens, row.amount_nanodollars) == (4, 2, 6_000 + 2_000 + 10_000)
    assert (hour.cached_tokens, hour.reasoning_tokens) == (4, 2)


def test_a_request_that_repeats_a_refused_one_is_refused_like_it(key: APIKey, ask: Ask) -> None:
    sent = Idempotency("digest", "request")
    limit("key", key.pk, "ever", ask().reserved_nanodollars - 1)
    first, second = ledger.admit(NOW, [ask(idempotency=sent), ask(idempotency=sent)])
    assert isinstance(first, BudgetExceeded)
    assert isinstance(second, BudgetExceeded)
    assert not IdempotencyKey.objects.exists()


def test_another_request_with_the_key_of_a_refused_one_does_not_get_its_figures(
    key: APIKey, ask: Ask
) -> None:
    limit("key", key.pk, "ever", ask().reserved_nanodollars - 1)
    dear = ask(idempotency=Idempotency("digest", "request"))
    cheap = ask(idempotency=Idempotency("digest", "another"), max_output_tokens=1)
    first, second = ledger.admit(NOW, [dear, cheap])
    assert isinstance(first, BudgetExceeded)
    assert isinstance(second, AlreadyAdmitted)
    assert not second.is_same_request
    assert not IdempotencyKey.objects.exists()


def test_attempts_are_logged_where_one_failed(key: APIKey, ask: Ask) -> None:
    first, second, third, fourth = asked = [ask() for _ in range(4)]
    ledger.admit(NOW, asked)
    failed, done = Attempt("gone", "upstream_timeout", 3_000), Attempt("there", "", 90)
    most = MAX_LOGGED_ATTEMPTS
    ledger.settle(
        NOW,
        [
            completed(run(first), attempts=2, attempt_log=[failed, done]),
            completed(run(second), attempts=1, attempt_log=[done]),
            completed(run(third), attempts=12, attempt_log=[*[failed] * 11, done]),
            completed(run(fourth), attempts=most + 2, attempt_log=[*[failed] * (most + 1), done]),
        ],
    )
    logs = [receipts.attempts(Generation.objects.get(pk=each.id)) for each in asked]
    assert logs == [
        [(1, failed), (2, done)],
        [],
        [*((number, failed) for number in range(1, 12)), (12, done)],
        [*((number, failed) for number in range(3, most + 2)), (most + 2, done)],
    ]


def test_a_batch_without_failures_logs_no_attempts(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask()])
    ledger.settle(NOW, [completed(run(admission), attempts=1, attempt_log=[Attempt("there", "", 90)])])
    assert Generation.objects.filter(attempt_log__isnull=True).count() == 1
