"""Requests of an organization whose earlier ones wait too long: 503 before anything is held, for it alone."""

from datetime import timedelta

import pytest

from chatapi.errors import APIError
from chatapi.task_queue import QueueClass
from chatapi.web.queue_age import RETRY_AFTER_MS, QueueAge, Waits
from tests.cast import Person, admit
from usage.books import reports
from usage.models import Generation

ALICE, BOB = 1, 2
INTERACTIVE, BACKGROUND, FLEX = QueueClass


async def waits() -> Waits:
    return {ALICE: {BACKGROUND: 30_001, INTERACTIVE: 1}, BOB: {INTERACTIVE: 30_000, None: 29_000}}


async def test_only_the_organization_that_waits_too_long_is_refused() -> None:
    ages = QueueAge(waits, 30_000)
    with pytest.raises(APIError) as refused:
        await ages.check(ALICE, BACKGROUND)
    failure = refused.value.failure
    assert (failure.status, failure.code, failure.retry_after_ms) == (503, "overloaded", RETRY_AFTER_MS)
    await ages.check(BOB, INTERACTIVE)
    await ages.check(3, INTERACTIVE)


async def test_only_the_class_that_waits_too_long_and_later_ones_are_refused() -> None:
    ages = QueueAge(waits, 30_000)
    await ages.check(ALICE, INTERACTIVE)
    for late in (BACKGROUND, FLEX):
        with pytest.raises(APIError):
            await ages.check(ALICE, late)


async def test_a_wait_of_an_earlier_release_is_one_of_an_interactive_request() -> None:
    async def read() -> Waits:
        return {ALICE: {None: 30_001}}

    with pytest.raises(APIError):
        await QueueAge(read, 30_000).check(ALICE, INTERACTIVE)


async def test_without_a_bound_nothing_is_read() -> None:
    async def read() -> Waits:
        raise AssertionError("read")

    await QueueAge(read, 0).check(ALICE, INTERACTIVE)


@pytest.mark.django_db
def test_the_wait_of_an_organization_is_that_of_its_oldest_unclaimed_generation(alice: Person) -> None:
    first, _ = admit(alice), admit(alice)
    admit(alice, queue_class=FLEX)
    # As a process of an earlier release writes it.
    earlier = first.admitted_at - timedelta(seconds=40)
    Generation.objects.filter(pk=first.pk).update(admitted_at=earlier, queue_class=None)
    [(owner, waits)] = reports.longest_waits().items()
    assert (owner, set(waits)) == (alice.caller.organization_id, {None, FLEX.value})
    assert 40_000 <= waits[None] < 100_000
    assert waits[FLEX] < 40_000
