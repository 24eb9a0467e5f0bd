"""Which deployment a request asks next, when, and how much that may add to the load of upstreams."""

import asyncio
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from chatapi.models import MAX_RETRIES, USUAL_RETRIES
from chatapi.wire.deltas import Failed
from chatapi.wire.upstream import upstream_errors
from chatapi.worker.deployments import SANDBOX, Route
from chatapi.worker.engines import Target, Timeouts
from chatapi.worker.routing import health, retries
from chatapi.worker.routing.retries import AttemptPlan, RetryBudgets, Step
from chatapi.worker.routing.router import Router

DOCUMENT = " ".join((Path(__file__).parents[3] / "docs/catalog.md").read_text().split())
IN_WORDS = {0.2: "a fifth", 3: "three", 10: "ten", 1_000: "a thousand"}


def route(
    name: str,
    priority: int = 0,
    first_delta_ms: int = 120_000,
    retries: int = USUAL_RETRIES,
    total_ms: int = 3_600_000,
) -> Route:
    timeouts = Timeouts(first_delta_ms=first_delta_ms, total_ms=total_ms)
    target = Target(engine="scripted", name=name, timeouts=timeouts)
    return replace(SANDBOX, target=target, priority=priority, retries=retries)


def steps(
    *routes: Route, failure: Failed = upstream_errors.UPSTREAM_FAILED, budgets: RetryBudgets | None = None
) -> list[Step]:
    """Return the attempts of a request of which every one fails."""
    router, taken = Router(), []
    plan = AttemptPlan(router, budgets or RetryBudgets(), "model", routes)
    while (step := plan.next()) is not None:
        taken.append(step)
        router.health.failed(step.route.key, router.health.begin(step.route.key), failure)
        plan.failed(step.route, failure)
    return taken


def names(taken: list[Step]) -> list[str]:
    return [step.route.target.name for step in taken]


def test_each_deployment_is_asked_before_one_is_asked_again() -> None:
    taken = steps(route("first"), route("second", priority=1))
    assert names(taken)[:2] == ["first", "second"]
    assert len(taken) == 2 + USUAL_RETRIES
    assert [step.wait_s for step in taken[:2]] == [0, 0]


def test_a_deployment_is_asked_again_as_often_as_it_allows() -> None:
    assert names(steps(route("once", retries=0))) == ["once"]
    taken = steps(route("once", retries=0), route("often", priority=1, retries=MAX_RETRIES - 2))
    assert names(taken) == ["once"] + ["often"] * (MAX_RETRIES - 1)


def test_the_waits_are_random_below_a_bound_that_doubles() -> None:
    waits = [[step.wait_s for step in steps(route("only"))[1:]] for _ in range(200)]
    for number in range(USUAL_RETRIES):
        column = sorted(each[number] for each in waits)
        bound = retries.BACK_OFF_S * 2**number
        assert 0 <= column[0] < 0.2 * bound
        assert 0.8 * bound < column[-1] <= bound


@pytest.mark.parametrize("failure", [
    upstream_errors.AUTHENTICATION,
    upstream_errors.NO_CREDENTIALS,
    upstream_errors.MODEL_NOT_FOUND,
    upstream_errors.INVALID_RESPONSE,
    upstream_errors.QUOTA_EXHAUSTED,
    upstream_errors.QUOTA_TOO_SMALL,
])  # fmt: skip
def test_what_will_not_pass_is_not_repeated_but_tried_elsewhere(failure: Failed) -> None:
    assert sorted(names(steps(route("one"), route("two"), failure=failure))) == ["one", "two"]


def test_retry_after_is_obeyed() -> None:
    busy = upstream_errors.failure_of_status(429, b"", {"retry-after": "2"})
    waits = [step.wait_s for step in steps(route("only"), failure=busy)[1:]]
    assert len(waits) == USUAL_RETRIES
    assert all(1.9 < wait_s < 2 + 2 * retries.BACK_OFF_S * 4 for wait_s in waits)


@pytest.mark.parametrize(("retry_after", "first_delta_ms"), [("6", 120_000), ("2", 1_500)])
def test_a_wait_that_is_too_long_or_beyond_the_first_deltas_limit_is_the_clients(
    retry_after: str, first_delta_ms: int
) -> None:
    busy = upstream_errors.failure_of_status(429, b"", {"retry-after": retry_after})
    assert names(steps(route("only", first_delta_ms=first_delta_ms), failure=busy)) == ["only"]


async def test_an_attempt_that_could_not_end_in_time_is_not_begun() -> None:
    """It would hide the error of the one before behind a timeout."""
    router, only = Router(), route("only", first_delta_ms=1_500)
    plan = AttemptPlan(router, RetryBudgets(), "model", [only])
    assert plan.next() == Step(only)
    await asyncio.sleep(0.8)
    plan.failed(only, upstream_errors.UPSTREAM_FAILED)
    assert plan.next() is None


def test_repeated_attempts_share_the_limit_of_the_first_delta() -> None:
    limits = [
        step.route.target.timeouts.first_delta_ms + step.wait_s * 1_000
        for step in steps(route("only", first_delta_ms=60_000))
    ]
    assert limits[0] == 60_000
    assert all(50_000 < after <= before + 1 for before, after in pairwise(limits))


def test_of_many_requests_a_fifth_is_repeated() -> None:
    budgets = RetryBudgets()
    attempts = sum(len(steps(route("only"), budgets=budgets)) for _ in range(1_000))
    assert 1_190 <= attempts <= 1_200 + retries.BURST


@pytest.mark.parametrize("healthy", [0, 1])
@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("share", [0.2, 0.3, 0.5])
def test_of_many_requests_a_fifth_is_repeated_elsewhere(
    number: int, share: float, healthy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deployments that fail too seldom to cool down for long do not get more than their share either."""
    now, begun = 1_000.0, Counter[str]()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    router, budgets, answers = Router(), RetryBudgets(), 0
    routes = [route(f"flaky {place}") for place in range(number)] + [route("healthy")] * healthy
    for _ in range(10_000):
        now += 0.02
        plan = AttemptPlan(router, budgets, "model", routes)
        while (step := plan.next()) is not None:
            asked = begun[step.route.key] = begun[step.route.key] + 1
            began_at = router.health.begin(step.route.key)
            # The failures are far apart: a deployment of which less than half fail never cools down.
            if step.route.target.name == "healthy" or int(asked * share) == int((asked - 1) * share):
                router.health.succeeded(step.route.key, began_at)
                answers += 1
                break
            router.health.failed(step.route.key, began_at, upstream_errors.UPSTREAM_FAILED)
            plan.failed(step.route, upstream_errors.UPSTREAM_FAILED)
    assert begun.total() <= 12_000 + retries.BURST
    assert not healthy or answers >= 9_990


def test_all_requests_that_a_deployment_loses_at_once_go_to_the_healthy_one() -> None:
    router, budgets = Router(), RetryBudgets()
    plans = [AttemptPlan(router, budgets, "model", [route("dies", -1), route("lives")]) for _ in range(1_000)]
    lost = [step for plan in plans if (step := plan.next()) is not None]
    for plan, step in zip(plans, lost, strict=True):
        router.health.failed(step.route.key, router.health.begin(step.route.key), upstream_errors.UNREACHABLE)
        plan.failed(step.route, upstream_errors.UNREACHABLE)
    others = [plan.next() for plan in plans]
    assert [step and step.route.target.name for step in others] == ["lives"] * 1_000


def test_a_deployment_without_room_takes_nothing_from_the_budget() -> None:
    budgets = RetryBudgets()
    while budgets.spend("model", retries.MAX_DEBT):
        pass
    plan = AttemptPlan(Router(), budgets, "model", [route("full", -1), route("free")])
    assert [step and step.route.target.name for step in (plan.next(), plan.next())] == ["full", "free"]


def test_a_healthy_deployment_takes_over_from_a_cooling_one_on_credit() -> None:
    budgets = RetryBudgets()
    while budgets.spend("model"):
        pass
    one, two = route("one"), route("two")
    assert len(steps(one, two, failure=upstream_errors.UPSTREAM_FAILED, budgets=budgets)) == 1
    assert len(steps(one, two, failure=upstream_errors.UNREACHABLE, budgets=budgets)) == 2
    router, both = Router(), [route("one"), route("two")]
    for each in both:
        router.health.failed(each.key, router.health.begin(each.key), upstream_errors.UNAVAILABLE)
    plan = AttemptPlan(router, budgets, "model", both)
    assert plan.next() is not None
    assert plan.next() is None


def of(model: str, *names: str) -> list[Route]:
    return [replace(route(name), model=model) for name in names]


def asked(plan: AttemptPlan, router: Router, failure: Failed = upstream_errors.UPSTREAM_FAILED) -> list[str]:
    """Return the keys of the deployments that a request asks of which every attempt fails."""
    taken = []
    while (step := plan.next()) is not None:
        taken.append(step.route.key)
        router.health.failed(step.route.key, router.health.begin(step.route.key), failure)
        plan.failed(step.route, failure)
    return taken


def make_ill(router: Router, routes: list[Route]) -> None:
    for each in routes:
        router.health.failed(each.key, router.health.begin(each.key), upstream_errors.UNAVAILABLE)


def test_the_next_model_is_asked_when_the_retries_are_exhausted() -> None:
    others = [of("b", "one"), of("c", "two")]
    plan = AttemptPlan(Router(), RetryBudgets(), "a", of("a", "one"), None, others)
    assert asked(plan, Router()) == ["a one"] * (1 + USUAL_RETRIES) + ["b one", "c two"]


def test_a_model_whose_deployments_all_cool_down_is_asked_last() -> None:
    router, a, b, c = Router(), of("a", "one", "two"), of("b", "one"), of("c", "one")
    make_ill(router, [*a, *b])
    plan = AttemptPlan(router, RetryBudgets(), "a", a, None, [b, c])
    keys = asked(plan, router, upstream_errors.AUTHENTICATION)
    assert (keys[0], set(keys[1:3]), keys[3:]) == ("c one", {"a one", "a two"}, ["b one"])


def test_a_request_goes_on_at_once_when_the_last_deployment_begins_to_cool_down() -> None:
    router = Router()
    plan = AttemptPlan(router, RetryBudgets(), "a", of("a", "one"), None, [of("b", "one")])
    assert asked(plan, router, upstream_errors.UNREACHABLE)[:2] == ["a one", "b one"]


def test_without_a_healthy_model_the_requested_one_is_asked_first() -> None:
    router, a, b = Router(), of("a", "one"), of("b", "one")
    make_ill(router, [*a, *b])
    assert asked(AttemptPlan(router, RetryBudgets(), "a", a, None, [b]), router)[0] == "a one"


def test_all_models_share_the_budget_of_the_requested_one() -> None:
    router, budgets = Router(), RetryBudgets()
    while budgets.spend("a"):
        pass
    a, b = of("a", "one"), of("b", "one")
    make_ill(router, [*a, *b])
    assert asked(AttemptPlan(router, budgets, "a", a, None, [b]), router) == ["a one"]
    router = Router()
    plan = AttemptPlan(router, budgets, "a", a, None, [b])
    assert asked(plan, router) == ["a one", "b one"], "a healthy deployment of another model needs none"


def test_a_model_that_refuses_the_request_is_left() -> None:
    others = [of("b", "one", "two"), of("c", "one")]
    plan = AttemptPlan(Router(), RetryBudgets(), "a", of("a", "one"), None, others)
    keys = []
    while (step := plan.next()) is not None:
        keys.append(step.route.model)
        plan.leave_model(step.route)
    assert keys == ["a", "b", "c"]


async def test_all_attempts_share_the_limit_of_the_answer() -> None:
    router = Router()
    plan = AttemptPlan(router, RetryBudgets(), "a", of("a", "one"), None, [of("b", "one")])
    first = plan.next()
    await asyncio.sleep(0.05)
    assert first is not None
    plan.leave_model(first.route)
    second = plan.next()
    assert second is not None
    limits = [step.route.target.timeouts for step in (first, second)]
    assert limits[0].first_delta_ms == limits[1].first_delta_ms == 120_000
    assert limits[0].total_ms - limits[1].total_ms >= 50


def test_every_repetition_ends_with_the_limit_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    only, ends_at = route("only"), []
    plan = AttemptPlan(Router(), RetryBudgets(), "model", [only])
    while (step := plan.next()) is not None:
        now += step.wait_s
        ends_at.append(now + step.route.target.timeouts.total_ms / 1_000)
        now += 20
        plan.failed(step.route, upstream_errors.UPSTREAM_FAILED)
    assert ends_at == pytest.approx([1_000 + only.target.timeouts.total_ms / 1_000] * 4, abs=0.01)


BRIEF = route("brief", priority=1, total_ms=30_000)


@pytest.mark.parametrize(
    ("others", "fallbacks"), [([], []), ([BRIEF], []), ([], [[replace(BRIEF, model="b")]])]
)
def test_nothing_is_asked_when_the_limit_of_the_answer_is_used_up(
    others: list[Route], fallbacks: list[list[Route]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets the error of the attempt that was made."""
    now, silent = 1_000.0, route("silent", total_ms=30_000)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    plan = AttemptPlan(Router(), RetryBudgets(), "model", [silent, *others], fallbacks=fallbacks)
    assert plan.next() == Step(silent)
    now += 30
    plan.failed(silent, upstream_errors.TIMED_OUT)
    assert plan.next() is None


def test_the_limit_of_each_deployment_counts_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    now, patient = 1_000.0, route("patient", first_delta_ms=600_000, total_ms=600_000)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    plan = AttemptPlan(Router(), RetryBudgets(), "model", [patient, BRIEF])
    assert plan.next() == Step(patient)
    now += 30
    plan.failed(patient, upstream_errors.UPSTREAM_FAILED)
    step = plan.next()
    assert step is not None
    assert step.route.target.name == "patient"


@pytest.mark.parametrize("sentence", [
    "random, up to {:g}, {:g}, {:g} s and so on".format(*(retries.BACK_OFF_S * 2**n for n in range(3))),
    f"A `Retry-After` of more than {retries.MAX_WAIT_S:g} s is left to the client",
    f"each request adds {IN_WORDS.get(retries.SHARE)} of an attempt to its model's budget",
    f"its model's budget, which holds at most {IN_WORDS.get(retries.BURST)}.",
    f"The budget can owe {IN_WORDS.get(retries.MAX_DEBT)} attempts",
    f"more than {1 + retries.SHARE:g} times the requests",
    f"so {IN_WORDS.get(retries.SHARE)} of each is {IN_WORDS.get(retries.SHARE)} of the whole",
    f"Each worker makes an exception for one request every {health.REST_S:g} s",
    f"Only the store of {IN_WORDS.get(retries.BURST)} attempts exists once in each worker",
    f"`retries` allow, by default {IN_WORDS.get(USUAL_RETRIES)} times",
    f"the count is below its `retries`, by default {IN_WORDS.get(USUAL_RETRIES)}.",
    f"| `retries` | {USUAL_RETRIES} | a request that was already repeated this often, at any deployment,",
    f"is not repeated at this one; at most {MAX_RETRIES}; 0: never |",
])  # fmt: skip
def test_the_document_has_the_waits_and_the_numbers(sentence: str) -> None:
    assert sentence in DOCUMENT
