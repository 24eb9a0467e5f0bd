"""Runs the reaper process: the reaper, and beside it all other background work, until SIGTERM."""

import asyncio
import signal
from contextlib import suppress
from functools import partial

import uvloop
from django.conf import settings

from accounts.loop_clock import clock
from chatapi.concurrency import repeat, supervise
from chatapi.process_metrics import publish_forever
from chatapi.redis_servers import RedisServers
from chatapi.serving.liveness import alive
from chatapi.serving.process_tuning import give_memory_back, trim_heaps
from chatapi.serving.watchdog import watched
from chatapi.worker.reaper.garbage_collection import collect_garbage
from chatapi.worker.reaper.housekeeping import keep_house
from chatapi.worker.reaper.notifying import deliver_forever, watch_forever
from chatapi.worker.reaper.payments import keep_payments
from chatapi.worker.reaper.reaper import Reaper
from chatapi.worker.reaper.response_storage import store_responses
from usage.database.group_commit import GroupCommit
from usage.payment import configuration

TRIM_EVERY_S = 60.0


def run() -> None:
    """Run the reaper and the loops beside it until a signal."""
    give_memory_back()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run())


async def _run() -> None:
    commits = GroupCommit()
    redis, prefix = RedisServers(), settings.REDIS_KEY_PREFIX
    reaper = Reaper(commits, redis.streams)
    reaping = asyncio.create_task(supervise(reaper.run))
    by_server = (collect_garbage, store_responses)
    loops = [partial(each, commits, stream) for stream in redis.streams for each in by_server]
    loops.append(partial(publish_forever, redis.shared, prefix, "reaper", lambda: 0))
    loops.append(partial(watch_forever, commits, redis.shared, prefix))
    loops.append(partial(deliver_forever, commits))
    loops.append(partial(keep_house, commits))
    # In a thread, because the heaps of a process that has worked for days take 10 ms.
    trim = partial(asyncio.to_thread, trim_heaps)
    loops.append(partial(repeat, TRIM_EVERY_S, "returning memory", trim, expected=()))
    if configuration.is_on():
        loops.append(partial(keep_payments, commits))
    beside = [asyncio.create_task(supervise(loop)) for loop in loops]
    for number in (signal.SIGTERM, signal.SIGINT):
        # Orphans that it has taken over and not closed go to the next reaper when the lease runs out.
        asyncio.get_running_loop().add_signal_handler(number, reaping.cancel)
    try:
        clock.start(asyncio.get_running_loop())
        async with alive("reaper"):
            with watched(), suppress(asyncio.CancelledError):
                await reaping
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await redis.close()
        await commits.close()
