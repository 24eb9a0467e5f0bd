"""A Celery application whose tasks report to Redis; `python -m` runs a worker of it: the subject of the
worker's tests.

Environment: PROBE_SOCKET, PROBE_CONCURRENCY, PROBE_DRAIN_SECONDS, PROBE_SERVICES (which of the two functions
below).
"""

import asyncio
import contextlib
import itertools
import logging
import os
import sys
from collections.abc import AsyncIterator

import redis.asyncio
from celery import Celery
from redis.backoff import NoBackoff
from redis.retry import Retry

from chatapi.task_queue import BROKER_OPTIONS
from chatapi.worker.pool import run_worker

SOCKET = os.environ.get("PROBE_SOCKET", "/nowhere")
QUEUE = "probes"

app = Celery("probe", broker=f"redis+socket://{SOCKET}")
app.conf.update(
    task_default_queue=QUEUE,
    task_ignore_result=True,
    worker_disable_prefetch=True,
    worker_enable_remote_control=False,
    worker_cancel_long_running_tasks_on_connection_loss=True,
    worker_enable_prefetch_count_reduction=False,
    broker_transport_options=BROKER_OPTIONS,
    chatapi_worker_services=f"{__name__}:{os.environ.get('PROBE_SERVICES', 'services')}",
)

client = redis.asyncio.Redis(
    connection_pool=redis.asyncio.BlockingConnectionPool(
        connection_class=redis.asyncio.UnixDomainSocketConnection,
        path=SOCKET,
        max_connections=20,
        retry=Retry(NoBackoff(), 0),
    )
)
released = asyncio.Event()
starts = itertools.count()


async def report(event: str) -> None:
    """Append one event to the list that the tests pop from."""
    await client.rpush("events", event)


@contextlib.asynccontextmanager
async def services() -> AsyncIterator[None]:
    """Run the services of the worker's lifetime: here, the watch for the key `release`."""
    watch = asyncio.create_task(watch_release())
    await report("services entered")
    try:
        yield
    finally:
        watch.cancel()
        await report("services left")
        await client.aclose()


@contextlib.asynccontextmanager
async def failing_services() -> AsyncIterator[None]:
    """Run services one of which fails at the test's request."""
    async with services(), asyncio.TaskGroup() as group:
        group.create_task(fail_on_demand())
        yield


async def fail_on_demand() -> None:
    """Wait for an item in the list `fail`, then fail."""
    await client.blpop(["fail"], timeout=0)
    raise RuntimeError("the heartbeat stopped")


async def watch_release() -> None:
    """Let the holding tasks go when the test sets the key."""
    while not released.is_set():
        with contextlib.suppress(redis.exceptions.ConnectionError):
            if await client.exists("release"):
                released.set()
        await asyncio.sleep(0.02)


@app.task(name="note", Request="chatapi.worker.pool:BriefRequest")
async def note(name: str, v: int = 0) -> None:
    """Report at once, with the place in the order of the starts."""
    await report(f"noted {name} {next(starts)}")


@app.task(name="hold", Request="chatapi.worker.pool:BriefRequest")
async def hold(name: str, v: int = 1) -> None:
    """Report the start, wait for the release, report the end."""
    await report(f"started {name}")
    try:
        await released.wait()
        await report(f"ended {name}")
    except asyncio.CancelledError:
        await report(f"cancelled {name}")
        raise
    finally:
        await asyncio.sleep(0.05)
        await report(f"settled {name}")


@app.task(name="fail")
async def fail(name: str) -> None:
    """Raise the exception with this name."""
    raise {"ValueError": ValueError, "SystemExit": SystemExit}[name]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    sys.exit(
        run_worker(
            app,
            concurrency=int(os.environ["PROBE_CONCURRENCY"]),
            drain_seconds=float(os.environ["PROBE_DRAIN_SECONDS"]),
        )
    )
