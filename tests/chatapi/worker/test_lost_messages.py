"""A message that a worker has taken is not lost, however late the look for lost ones is."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from chatapi.task_queue import Entry, TaskQueue, sorted_sets
from chatapi.worker.lost_messages import LostMessages
from tests.cast import Person, admit
from tests.chatapi.worker.probe_app import app
from usage.books import ledger
from usage.database.clock import database_now
from usage.database.group_commit import GroupCommit
from usage.models import Generation

pytestmark = pytest.mark.django_db(transaction=True)


class Commits(GroupCommit):
    """The real one, but something happens before the event loop gets what was read."""

    meanwhile: Callable[[], object] | None = None

    async def read(self, function: Any, *arguments: Any, **options: Any) -> Any:
        found = await super().read(function, *arguments, **options)
        if self.meanwhile is not None:
            await super().read(self.meanwhile)
        return found


@pytest.fixture
async def commits() -> AsyncIterator[Commits]:
    commits = Commits()
    yield commits
    await commits.close()


@pytest.fixture
def queue() -> TaskQueue:
    return TaskQueue(app, "note", f"lost-{uuid4().hex}")


@pytest.fixture
def waiting(alice: Person) -> Generation:
    """Return a generation that was admitted two seconds ago."""
    generation = admit(alice)
    generation.admitted_at -= timedelta(seconds=2)
    generation.save(update_fields=["admitted_at"])
    return generation


def claim(generation: Generation) -> None:
    (claimed,) = ledger.claim(database_now(), [ledger.Claim(generation.pk, "worker", 10_000)])
    assert isinstance(claimed, ledger.Claimed)


def lost_messages_of(commits: Commits, redis: Redis, queue: TaskQueue, *held: Generation) -> LostMessages:
    held_ids = {each.id for each in held}
    return LostMessages(
        commits, redis, queue, has_free_slot=lambda: True, holds=lambda each: each in held_ids
    )


async def test_what_a_busy_worker_has_not_claimed_yet_is_not_enqueued_again(
    commits: Commits, redis: Redis, queue: TaskQueue, waiting: Generation
) -> None:
    lost_messages = lost_messages_of(commits, redis, queue, waiting)
    for _ in range(3):
        await lost_messages.look()
    assert await redis.zcard(sorted_sets(queue.key)[0]) == 0


async def test_what_is_taken_and_claimed_during_a_look_is_not_enqueued_again(
    commits: Commits, redis: Redis, queue: TaskQueue, waiting: Generation
) -> None:
    """Beside a flood a look takes so long that many are. Their messages would fill the queue."""
    lost_messages = lost_messages_of(commits, redis, queue)
    commits.meanwhile = lambda: claim(waiting)
    await lost_messages.look()
    commits.meanwhile = None
    await lost_messages.look()
    assert await redis.zcard(sorted_sets(queue.key)[0]) == 0


async def test_a_message_that_is_missing_twice_is_enqueued_again(
    commits: Commits, redis: Redis, queue: TaskQueue, waiting: Generation
) -> None:
    lost_messages = lost_messages_of(commits, redis, queue)
    turns = sorted_sets(queue.key)[0]
    enqueueing = queue.enqueueing([Entry(waiting.id.hex, waiting.organization_id)])
    await cast(Any, redis).execute_command(*enqueueing)
    await lost_messages.look()
    assert await redis.zpopmin(turns), "it waits, and is taken by a worker that dies"
    await lost_messages.look()
    assert await redis.zcard(turns) == 0, "a worker may be about to claim it"
    await lost_messages.look()
    assert await redis.zrange(turns, 0, -1) == [queue.message(waiting.id.hex, waiting.organization_id)]
