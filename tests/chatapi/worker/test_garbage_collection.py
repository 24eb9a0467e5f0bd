"""What is deleted of generations whose end nobody has published, and what is not."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db.models import F
from redis.asyncio import Redis

from accounts.limits import DAY_MS
from chatapi.delta_stream import RUN_TTL_MS, Entry, Job, KeptRequest
from chatapi.redis_client import connect
from chatapi.transports.redis_stream import RedisStream
from chatapi.wire import deltas
from chatapi.wire.deltas import AnyDelta, Text, Usage
from chatapi.worker.reaper.garbage_collection import collect_garbage, delete_settled
from tests import cast
from tests.cast import Person
from tests.chatapi.worker.processes import Valkey
from usage.database.group_commit import GroupCommit
from usage.models import Generation

pytestmark = pytest.mark.django_db(transaction=True)

TTL_MS = 60_000
LONG_AGO_MS = 30_000
"""Longer than anyone needs to tell an end, and less than the log is kept."""


@pytest.fixture(autouse=True)
def stream_ttl(settings: Any) -> None:
    settings.STREAM_TTL_MS = TTL_MS


@pytest.fixture
async def commits() -> AsyncIterator[GroupCommit]:
    commits = GroupCommit()
    yield commits
    await commits.close()


async def say(stream: RedisStream, generation_id: UUID, *end: AnyDelta) -> None:
    """Publish the deltas of a worker that died before the end, or with an end, and store its job."""
    await stream.keep_again(KeptRequest(generation_id, Job("web", b"{}")))
    batch: list[AnyDelta] = [Text("said"), *end]
    await stream.publish([Entry(generation_id, 1, 1, deltas.encode(batch), is_last=bool(end))])


async def settled(commits: GroupCommit, person: Person, ms_ago: int) -> UUID:
    """Return a generation that was settled this long ago."""
    generation_id: UUID = (await commits.read(cast.run, person)).pk
    rows = Generation.objects.filter(pk=generation_id)
    await commits.read(lambda: rows.update(settled_at=F("settled_at") - timedelta(milliseconds=ms_ago)))
    return generation_id


async def kept_ms(redis: Redis, stream: RedisStream, generation_id: UUID) -> tuple[int, int]:
    """Return the remaining time of the job and the log; -2: they are gone (as in PTTL)."""
    job, log = [await redis.pttl(stream.key(kind, generation_id.hex)) for kind in ("job", "log")]
    return int(job), int(log)


async def test_the_job_goes_and_the_log_when_every_log_would(
    commits: GroupCommit, redis: Redis, stream: RedisStream, alice: Person
) -> None:
    untold = await settled(commits, alice, LONG_AGO_MS)
    await say(stream, untold)
    await delete_settled(commits, stream)
    job_ms, log_ms = await kept_ms(redis, stream, untold)
    assert (job_ms, 0 < log_ms <= TTL_MS - LONG_AGO_MS) == (-2, True)


async def test_a_log_that_a_thawed_worker_writes_anew_goes_at_once(
    commits: GroupCommit, redis: Redis, stream: RedisStream, alice: Person
) -> None:
    over = await settled(commits, alice, 2 * TTL_MS)
    await stream.publish([Entry(over, 1, 5, deltas.encode([Text("said")]))])
    await delete_settled(commits, stream)
    assert await kept_ms(redis, stream, over) == (-2, -2)


async def test_an_end_that_is_published_late_gives_the_log_no_more_time(
    commits: GroupCommit, redis: Redis, stream: RedisStream, alice: Person
) -> None:
    """The settling process was frozen, not dead."""
    untold = await settled(commits, alice, TTL_MS - 5_000)
    await say(stream, untold)
    await delete_settled(commits, stream)
    await stream.publish([Entry(untold, 1, 2, deltas.encode([Usage(1, 2)]), is_last=True)])
    assert (await kept_ms(redis, stream, untold))[1] <= 5_000


async def test_a_job_is_found_also_where_streams_are_kept_for_a_day(
    commits: GroupCommit,
    redis: Redis,
    stream: RedisStream,
    shared_valkey: Valkey,
    alice: Person,
    settings: Any,
) -> None:
    settings.STREAM_TTL_MS = DAY_MS
    daily = RedisStream(redis, stream.key("daily", ""), url=f"unix://{shared_valkey.socket}", ttl_ms=DAY_MS)
    untold = await settled(commits, alice, DAY_MS // 3)
    await say(daily, untold)
    for kind in ("job", "log"):
        await redis.pexpire(daily.key(kind, untold.hex), RUN_TTL_MS - DAY_MS // 3)
    await delete_settled(commits, daily)
    job_ms, log_ms = await kept_ms(redis, daily, untold)
    assert (job_ms, 0 < log_ms <= DAY_MS - DAY_MS // 3) == (-2, True)


async def test_logs_of_open_just_settled_and_published_generations_stay(
    commits: GroupCommit, redis: Redis, stream: RedisStream, alice: Person
) -> None:
    still_open = (await commits.read(cast.admit, alice)).pk
    just_settled, shown = await settled(commits, alice, 0), await settled(commits, alice, LONG_AGO_MS)
    await say(stream, still_open)
    await say(stream, just_settled)
    await say(stream, shown, Usage(1, 2))
    await delete_settled(commits, stream)
    for generation_id in (still_open, just_settled):
        assert min(await kept_ms(redis, stream, generation_id)) > RUN_TTL_MS - 60_000
    assert (await kept_ms(redis, stream, shown))[1] > TTL_MS - LONG_AGO_MS


async def test_what_others_keep_in_the_same_redis_stays(
    commits: GroupCommit, redis: Redis, stream: RedisStream, alice: Person, valkey: Valkey
) -> None:
    untold = await settled(commits, alice, LONG_AGO_MS)
    names = [
        f"another:job:{untold.hex}",
        f"job:{untold.hex}",
        *(stream.key("web", untold.hex), stream.key("job", "tonight")),
    ]
    for name in names:
        await redis.set(name, "theirs", px=RUN_TTL_MS)
    await delete_settled(commits, stream)
    assert [await redis.exists(name) for name in names] == [1, 1, 1, 1]


async def test_all_are_found_however_many_there_are(
    commits: GroupCommit, redis: Redis, stream: RedisStream, alice: Person
) -> None:
    untold = [await settled(commits, alice, LONG_AGO_MS) for _ in range(3)]
    everything = (*untold[:2], *(uuid4() for _ in range(3_000)), untold[2])
    await stream.keep([KeptRequest(each, Job("web", b"{}")) for each in everything])
    await delete_settled(commits, stream)
    assert [await kept_ms(redis, stream, generation_id) for generation_id in untold] == [(-2, -2)] * 3


async def test_it_goes_on_after_a_redis_that_was_away(
    commits: GroupCommit,
    alice: Person,
    tmp_path_factory: pytest.TempPathFactory,
    settings: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings.STREAM_TTL_MS = 30
    valkey = Valkey(tmp_path_factory.mktemp("late"))
    url = f"unix://{valkey.socket}"
    redis = connect(url)
    stream = RedisStream(redis, "late:", url=url, ttl_ms=30)
    forgetting = asyncio.create_task(collect_garbage(commits, stream))
    try:
        async with asyncio.timeout(20):
            while "garbage collection: " not in caplog.text:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(valkey.start)
            untold = await settled(commits, alice, LONG_AGO_MS)
            await say(stream, untold)
            while await kept_ms(redis, stream, untold) != (-2, -2):
                await asyncio.sleep(0.01)
    finally:
        forgetting.cancel()
        await asyncio.gather(forgetting, return_exceptions=True)
        await redis.aclose()
        valkey.stop()
