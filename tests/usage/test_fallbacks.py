"""Several models may answer one request: the dearest is held for, the one that answered is charged."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from accounts.models import APIKey
from chatapi import identity
from tests.usage.conftest import DOLLAR, NOW, PRICE, completed, limit, run
from usage import pricing
from usage.books import ledger
from usage.books.candidates import Candidate
from usage.errors import AlreadyResolved, BudgetExceeded
from usage.models import Budget, Generation, LedgerEntry, Outcome
from usage.pricing import FREE, Price, Tokens
from usage.verification import verify

Ask = Callable[..., ledger.Admission]
DEAR = Price(3 * DOLLAR, 3 * DOLLAR, 6 * DOLLAR, 9 * DOLLAR)
CHEAP = Price(DOLLAR // 10, 0, DOLLAR // 5)
DEAR_ONE = Candidate("dear", "dear", 20, 8_192, DEAR, prompt_tokens_bound=10)
CHEAP_ONE = Candidate("cheap", "my-cheap", 15, 4_096, CHEAP, prompt_tokens_bound=8)
HELD = 10 * 3_000 + 20 * 9_000
"""Of the dear one: reasoning is its dearest output."""


def switch(claimed: ledger.Claimed, to: Candidate, requested_model: str | None = "story") -> object:
    (result,) = ledger.switch(NOW, [ledger.Switch(claimed.id, claimed.fence, to, requested_model)])
    return result


def test_the_dearest_candidate_is_held_for(key: APIKey, ask: Ask) -> None:
    limit("key", key.pk, "month", HELD)
    (admitted,) = ledger.admit(NOW, [admission := ask(fallbacks=(CHEAP_ONE, DEAR_ONE))])
    assert admitted == admission.id
    assert Generation.objects.get().reserved_nanodollars == HELD
    assert set(Budget.objects.values_list("pending_nanodollars", flat=True)) == {HELD}


def test_a_budget_that_covers_only_the_cheaper_ones_refuses(key: APIKey, ask: Ask) -> None:
    limit("key", key.pk, "month", HELD - 1)
    (refused,) = ledger.admit(NOW, [ask(fallbacks=(CHEAP_ONE, DEAR_ONE))])
    assert isinstance(refused, BudgetExceeded)
    assert refused.needed_nanodollars == HELD
    (admitted,) = ledger.admit(NOW, [ask(fallbacks=(CHEAP_ONE,))])
    assert isinstance(admitted, UUID)


def test_the_claim_tells_all_candidates_in_order(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask(fallbacks=(DEAR_ONE, CHEAP_ONE), max_prompt_tokens=512)])
    claimed = run(admission)
    assert claimed.fallbacks == (DEAR_ONE, CHEAP_ONE)
    assert claimed.as_candidate == Candidate("story", "story", 20, 512, PRICE)


def test_a_row_without_fallbacks_has_none(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask(requested_model="alias")])
    claimed = run(admission)
    assert (claimed.fallbacks, claimed.as_candidate.name) == ((), "alias")
    assert Generation.objects.get().fallbacks is None


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.WORKER_LOST])
def test_the_model_that_answered_is_charged_by_a_worker_and_by_the_reaper(
    key: APIKey, ask: Ask, outcome: Outcome
) -> None:
    ledger.admit(NOW, [admission := ask(fallbacks=(DEAR_ONE, CHEAP_ONE))])
    claimed = run(admission)
    assert switch(claimed, CHEAP_ONE) == claimed.id
    if outcome == Outcome.WORKER_LOST:
        later = NOW + timedelta(seconds=30)
        ((orphan,),) = ledger.take_over(later, [ledger.TakeOver(10, 6_000, later)])
        assert orphan.completion_tokens_cap == 15
        claimed = replace(claimed, fence=orphan.fence)
    (charge,) = ledger.settle(NOW, [completed(claimed, prompt=10, completion=5, outcome=outcome)])
    assert isinstance(charge, ledger.Charge)
    assert (charge.model, charge.amount_nanodollars) == ("cheap", 10 * 100 + 5 * 200)
    row = Generation.objects.get()
    assert (row.model, row.requested_model, row.price, row.is_fallback) == ("cheap", "story", CHEAP, True)
    assert LedgerEntry.objects.get().model == "cheap"
    assert set(Budget.objects.values_list("posted_nanodollars", "pending_nanodollars")) == {(2_000, 0)}
    assert verify().differences == []


def test_a_switch_can_be_repeated_and_taken_back(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask(fallbacks=(DEAR_ONE,), max_prompt_tokens=512)])
    claimed = run(admission)
    before = Generation.objects.values().get()
    for _ in range(2):
        switch(claimed, DEAR_ONE)
        assert Generation.objects.get().requested_model == "story"
    switch(claimed, claimed.as_candidate, None)
    assert Generation.objects.values().get() == before
    assert not Generation.objects.get().is_fallback


def test_a_switch_forgets_the_deployment_of_the_model_before(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask(fallbacks=(DEAR_ONE,))])
    claimed = run(admission)
    ledger.beat(
        NOW, [ledger.Beat("story worker", [ledger.Pulse(claimed.id, claimed.fence, 0, "of-story")], 6_000)]
    )
    switch(claimed, DEAR_ONE)
    assert Generation.objects.get().deployment == ""


def test_only_the_holder_of_the_newest_fence_can_switch(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask(fallbacks=(DEAR_ONE,))])
    zombie = run(admission)
    later = NOW + timedelta(seconds=7)
    ((orphan,),) = ledger.take_over(later, [ledger.TakeOver(10, 6_000, later)])
    assert isinstance(switch(zombie, DEAR_ONE), AlreadyResolved)
    newest = replace(zombie, fence=orphan.fence)
    ledger.settle(later, [completed(newest)])
    assert isinstance(switch(newest, DEAR_ONE), AlreadyResolved)
    assert Generation.objects.get().model == "story"
    assert verify().differences == []


def test_a_fallback_that_delivered_nothing_costs_nothing(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [admission := ask(fallbacks=(DEAR_ONE,))])
    claimed = run(admission)
    switch(claimed, DEAR_ONE)
    (charge,) = ledger.settle(NOW, [completed(claimed, 0, 0, outcome=Outcome.FAILED)])
    assert isinstance(charge, ledger.Charge)
    assert charge.amount_nanodollars == 0
    assert set(Budget.objects.values_list("posted_nanodollars", "pending_nanodollars")) == {(0, 0)}


def test_fallbacks_cost_an_admission_and_a_claim_no_statement(key: APIKey, ask: Ask) -> None:
    ledger.admit(NOW, [ask()])  # its budgets are made
    counts = []
    for fallbacks in ((), (DEAR_ONE, CHEAP_ONE)):
        admission = ask(fallbacks=fallbacks)
        with CaptureQueriesContext(connection) as queries:
            ledger.admit(NOW, [admission])
            run(admission)
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_a_free_fallback_of_a_request_that_costs_something_is_free(key: APIKey, ask: Ask) -> None:
    free = replace(CHEAP_ONE, price=FREE)
    ledger.admit(NOW, [admission := ask(fallbacks=(free,))])
    claimed = run(admission)
    switch(claimed, free)
    (charge,) = ledger.settle(NOW, [completed(claimed)])
    assert isinstance(charge, ledger.Charge)
    assert charge.amount_nanodollars == 0
    assert verify().differences == []


amounts = st.integers(0, 5 * DOLLAR)
prices = st.builds(Price, amounts, amounts, amounts, st.none() | amounts, st.none() | amounts)
candidates = st.builds(
    Candidate,
    st.sampled_from("abc"),
    st.just("name"),
    st.integers(1, 500),
    st.integers(1, 5_000),
    prices,
    prompt_tokens_bound=st.integers(0, 500),
)


@given(st.lists(candidates, max_size=8), prices, st.integers(1, 4), st.data())
def test_whichever_candidate_answers_the_charge_is_within_the_hold(
    fallbacks: list[Candidate], price: Price, sampled: int, data: st.DataObject
) -> None:
    admission = ledger.Admission(
        id=identity.new_id(),
        organization_id=1,
        project_id=1,
        api_key_id=1,
        time_zone="UTC",
        is_test=False,
        model="first",
        endpoint="chat.completions",
        dialect="openai",
        is_stream=True,
        choices_count=sampled,
        sampled_count=sampled,
        max_output_tokens=data.draw(st.integers(1, 500)),
        prompt_tokens_bound=data.draw(st.integers(0, 500)),
        price=price,
        queue_ttl_ms=60_000,
        fallbacks=tuple(fallbacks),
    )
    own = Candidate("first", "first", admission.max_output_tokens, None, price, admission.prompt_tokens_bound)
    answering = data.draw(st.sampled_from([own, *fallbacks]))
    used = Tokens(
        prompt := data.draw(st.integers(0, answering.prompt_tokens_bound)),
        data.draw(st.integers(0, answering.max_output_tokens * sampled)),
        data.draw(st.integers(0, prompt)),
        data.draw(st.integers(0, 500)),
    )
    assert pricing.amount(used, answering.price) <= admission.reserved_nanodollars
    assert used.prompt_tokens + used.completion_tokens <= admission.most_tokens
