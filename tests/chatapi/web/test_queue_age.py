"""Requests of an organization whose earlier ones wait too long: 503 before anything is held, for it alone."""

from datetime import timedelta

import pytest

from chatapi.errors import APIError
from chatapi.web.queue_age import RETRY_AFTER_MS, QueueAge
from tests.cast import Person, admit
from usage.books import reports
from usage.models import Generation

ALICE, BOB = 1, 2


async def waits() -> dict[int, int]:
    return {ALICE: 30_001, BOB: 30_000}


async def test_only_the_organization_that_waits_too_long_is_refused() -> None:
    ages = QueueAge(waits, 30_000)
    with pytest.raises(APIError) as refused:
        await ages.check(ALICE)
    failure = refused.value.failure
    assert (failure.status, failure.code, failure.retry_after_ms) == (503, "overloaded", RETRY_AFTER_MS)
    await ages.check(BOB)
    await ages.check(3)


async def test_without_a_bound_nothing_is_read() -> None:
    async def read() -> dict[int, int]:
        raise AssertionError("read")

    await QueueAge(read, 0).check(ALICE)


@pytest.mark.django_db
def test_the_wait_of_an_organization_is_that_of_its_oldest_unclaimed_generation(alice: Person) -> None:
    first, _ = admit(alice), admit(alice)
    Generation.objects.filter(pk=first.pk).update(admitted_at=first.admitted_at - timedelta(seconds=40))
    assert list(reports.longest_waits()) == [alice.caller.organization_id]
    assert 40_000 <= reports.longest_waits()[alice.caller.organization_id] < 100_000
