"""The reaper's looks for events: one that fails leaves the others and the deletion of old rows alone."""

import asyncio
from datetime import timedelta

import pytest
from redis.asyncio import Redis

from accounts.models import APIKey
from chatapi.worker.reaper.notifying import watch_forever
from tests.cast import Person
from usage.database.clock import database_now
from usage.database.group_commit import GroupCommit
from usage.models import Budget, BudgetLimit, Event


@pytest.mark.django_db(transaction=True)
async def test_a_look_that_fails_does_not_stop_the_others(redis: Redis, alice: Person) -> None:
    commits = GroupCommit()

    def prepare() -> None:
        # Such as a newer release may write: nobody here knows the owner of this budget.
        BudgetLimit.objects.create(scope="team", scope_id=1, period="ever", limit_nanodollars=1)
        Budget.objects.create(
            id="team/1/ever/1970-01-01",
            scope="team",
            scope_id=1,
            period="ever",
            period_start="1970-01-01",
            posted_nanodollars=1,
        )
        now = database_now()
        APIKey.objects.filter(pk=alice.api_key.pk).update(
            created_at=now - timedelta(days=90), expires_at=now + timedelta(hours=5)
        )
        Event.objects.create(
            kind="spend.unusual", subject="organization/1", period="2020-01-01", data={},
            created_at=now - timedelta(days=500), dispatched_at=now,
        )  # fmt: skip

    def kinds() -> set[str]:
        return set(Event.objects.values_list("kind", flat=True))

    await commits.read(prepare)
    watching = asyncio.create_task(watch_forever(commits, redis, "watching:"))
    try:
        async with asyncio.timeout(20):
            while await commits.read(kinds) != {"key.expiring"}:
                await asyncio.sleep(0.1)
    finally:
        watching.cancel()
        await commits.close()
