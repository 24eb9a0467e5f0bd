"""A deployment that cools down again and again is an event of operators; a model without another one is an
event of its callers. Both are events again when they answer.
"""

import pytest
from redis.asyncio import Redis

from chatapi.models import Deployment, ServedModel
from chatapi.worker.reaper.notifying import COOL_DOWNS, _look_at_deployments
from chatapi.worker.routing.health import CoolDown
from chatapi.worker.routing.router import Router
from chatapi.worker.routing.shared_cool_downs import exchange
from tests.cast import Person, run
from usage.database.group_commit import GroupCommit
from usage.models import Event

PREFIX = "down:"


async def look(redis: Redis, cool_downs: dict[str, int]) -> list[tuple[str, str]]:
    """Share these cool-downs as a worker does, look twice as a reaper does, and return all events."""
    router, commits = Router(), GroupCommit()
    router.health.restore_changes({key: CoolDown(1.0, number) for key, number in cool_downs.items()})
    try:
        await exchange(router, redis, PREFIX, "worker-1")
        for _ in range(2):
            await _look_at_deployments(commits, redis, PREFIX)
        return await commits.read(lambda: sorted((row.kind, row.subject) for row in Event.objects.all()))
    finally:
        await redis.delete(f"{PREFIX}routing:cooling", f"{PREFIX}routing:workers")
        await commits.close()


@pytest.mark.django_db(transaction=True)
async def test_a_deployment_that_never_answers_is_down(
    redis: Redis, alice: Person, charlie: Person, small: ServedModel
) -> None:
    commits = GroupCommit()
    await commits.read(run, alice)
    await commits.read(
        lambda: Deployment.objects.create(model=small, name="spare", engine="sandbox", priority=1)
    )
    await commits.close()
    assert await look(redis, {"small sandbox": COOL_DOWNS - 1}) == []
    assert await look(redis, {"small gone": COOL_DOWNS}) == []
    one = ("deployment.down", "small sandbox")
    assert await look(redis, {"small sandbox": COOL_DOWNS}) == [one]
    acme = alice.project.organization_id
    down = [one, ("deployment.down", "small spare"), ("model.down", f"organization/{acme}/small")]
    assert await look(redis, {"small sandbox": COOL_DOWNS + 2, "small spare": COOL_DOWNS}) == down
    # Redis has forgotten the cool-downs, and nobody has got an answer yet.
    assert await look(redis, {}) == down
    commits = GroupCommit()
    await commits.read(run, alice)
    await commits.close()
    up = [("deployment.up", "small sandbox"), ("model.up", f"organization/{acme}/small")]
    assert await look(redis, {}) == sorted(down + up)
