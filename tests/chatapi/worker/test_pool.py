"""The task pool, in real worker processes over a real Valkey. `probe_app` defines the tasks' reports."""

import asyncio
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chatapi.task_queue import Entry, TaskQueue
from chatapi.worker.message_channel import MAX_MESSAGES
from chatapi.worker.pool import TaskRun
from tests.chatapi.worker.probe_app import QUEUE, app
from tests.chatapi.worker.processes import Valkey, Worker, eventually

StartWorker = Callable[..., Worker]
Send = Callable[..., object]


@pytest.fixture
def start_worker(valkey: Valkey, tmp_path: Path) -> Iterator[StartWorker]:
    """Start a worker and wait until its services run."""
    with ExitStack() as stack:
        yield lambda **environment: stack.enter_context(
            Worker(valkey, tmp_path / "worker.log", **environment)
        )


@pytest.fixture
def send(valkey: Valkey) -> Iterator[Send]:
    """Put one message on the queue, by Celery's own means."""
    with app.connection_for_write(f"redis+socket://{valkey.socket}") as connection:
        yield lambda task, *args: app.send_task(task, args=args, connection=connection)


def push_notes(valkey: Valkey, count: int) -> None:
    """Put this many messages on the queue with one command."""
    queue = TaskQueue(app, "note", QUEUE)
    valkey.client.lpush(QUEUE, *[queue.message(str(number), 1) for number in range(count)])


def test_it_runs_300_tasks_at_once(valkey: Valkey, start_worker: StartWorker, send: Send) -> None:
    start_worker(PROBE_CONCURRENCY="1000")
    for number in range(300):
        send("hold", str(number))
    assert {event.split()[0] for event in valkey.next_events(300)} == {"started"}
    valkey.client.set("release", 1)
    ends = [event for event in valkey.next_events(600) if event.startswith("ended")]
    assert len(set(ends)) == 300


def test_it_starts_tasks_in_the_order_of_the_queue(
    valkey: Valkey, start_worker: StartWorker, send: Send
) -> None:
    for number in range(50):
        send("note", str(number))
    start_worker(PROBE_CONCURRENCY="1000")
    assert sorted(valkey.next_events(50)) == sorted(f"noted {number} {number}" for number in range(50))


def test_messages_that_wait_are_popped_together(valkey: Valkey, start_worker: StartWorker) -> None:
    queue = TaskQueue(app, "note", QUEUE)
    valkey.execute(queue.enqueueing([Entry(str(number), 1) for number in range(50)]))
    start_worker(PROBE_CONCURRENCY="1000")
    valkey.next_events(50)
    # The first one looks into the list, and the last one waits for more.
    assert valkey.client.info("commandstats")["cmdstat_bzpopmin"]["calls"] <= math.ceil(50 / MAX_MESSAGES) + 1


def test_the_script_that_takes_messages_is_sent_again_when_redis_has_forgotten_it(
    valkey: Valkey, start_worker: StartWorker
) -> None:
    queue = TaskQueue(app, "note", QUEUE)
    start_worker(PROBE_CONCURRENCY="1000")
    for number in range(0, 60, 20):
        for each in range(number, number + 20):
            valkey.execute(queue.enqueueing([Entry(str(each), 1)]))
        valkey.next_events(20)
        valkey.client.script_flush()
    # The enqueueing sends its own script with each message.
    sent = {name: valkey.client.info("commandstats")[f"cmdstat_{name}"] for name in ("eval", "evalsha")}
    assert sent["eval"]["calls"] <= 60 + 2 * 3
    assert sent["evalsha"]["calls"] > sent["evalsha"]["failed_calls"] > 0


def test_a_full_pool_leaves_the_other_tasks_in_the_queue(
    valkey: Valkey, start_worker: StartWorker, send: Send
) -> None:
    start_worker(PROBE_CONCURRENCY="2")
    for name in "abcde":
        send("hold", name)
    assert valkey.next_events(2) == ["started a", "started b"]
    # That nothing happens cannot be awaited: a worker that wanted one more task would have it within
    # milliseconds.
    time.sleep(0.3)
    assert valkey.client.llen(QUEUE) == 3


def test_a_slot_that_becomes_free_is_used_at_once(valkey: Valkey, start_worker: StartWorker) -> None:
    start_worker(PROBE_CONCURRENCY="1")
    for task, name in (("hold", "first"), *(("note", str(number)) for number in range(8))):
        valkey.execute(TaskQueue(app, task, QUEUE).enqueueing([Entry(name, 1)]))
    assert valkey.next_event() == "started first"
    valkey.client.set("release", 1)
    assert valkey.next_events(2) == ["ended first", "settled first"]
    freed = time.monotonic()
    assert valkey.next_events(8) == [f"noted {number} {number}" for number in range(8)]
    assert time.monotonic() - freed < 4  # The hub's own tick comes once a second.


@pytest.mark.parametrize(
    ("task", "args"),
    [("fail", ["ValueError"]), ("fail", ["SystemExit"]), ("note", ["too", "many", "arguments"])],
)
def test_a_task_that_raises_does_not_stop_the_next(
    valkey: Valkey, start_worker: StartWorker, send: Send, task: str, args: list[str]
) -> None:
    worker = start_worker(PROBE_CONCURRENCY="1")
    send(task, *args)
    send("note", "next")
    assert valkey.next_event() == "noted next 0"
    assert f"Task {task}[" in worker.log


def test_sigterm_lets_running_tasks_finish_and_leaves_the_others_in_the_queue(
    valkey: Valkey, start_worker: StartWorker, send: Send
) -> None:
    worker = start_worker(PROBE_CONCURRENCY="2")
    for name in "abc":
        send("hold", name)
    assert valkey.next_events(2) == ["started a", "started b"]
    worker.drain()
    valkey.client.set("release", 1)
    assert sorted(valkey.next_events(4)) == ["ended a", "ended b", "settled a", "settled b"]
    assert valkey.next_event() == "services left"
    assert worker.exit_code() == 0
    assert valkey.client.llen(QUEUE) == 1
    assert "Traceback" not in worker.log


def test_a_task_that_comes_during_the_drain_stays_in_the_queue(
    valkey: Valkey, start_worker: StartWorker, send: Send
) -> None:
    worker = start_worker()
    send("hold", "running")
    assert valkey.next_event() == "started running"
    worker.drain()
    send("note", "late")
    eventually(lambda: valkey.client.llen(QUEUE) == 1)
    valkey.client.set("release", 1)
    assert valkey.next_events(3) == ["ended running", "settled running", "services left"]
    assert worker.exit_code() == 0
    assert valkey.client.llen(QUEUE) == 1


def test_tasks_that_come_together_during_the_drain_stay_in_the_queue(
    valkey: Valkey, start_worker: StartWorker, send: Send
) -> None:
    worker = start_worker()
    send("hold", "running")
    assert valkey.next_event() == "started running"
    worker.drain()
    push_notes(valkey, 5)
    eventually(lambda: valkey.client.llen(QUEUE) == 5)
    valkey.client.set("release", 1)
    assert valkey.next_events(3) == ["ended running", "settled running", "services left"]
    assert valkey.client.llen(QUEUE) == 5


def test_after_the_grace_a_task_is_cancelled_and_settles_before_the_services_leave(
    valkey: Valkey, start_worker: StartWorker, send: Send
) -> None:
    worker = start_worker(PROBE_DRAIN_SECONDS="0.2")
    send("hold", "long")
    assert valkey.next_event() == "started long"
    worker.signal(signal.SIGTERM)
    assert valkey.next_events(3) == ["cancelled long", "settled long", "services left"]
    assert worker.exit_code() == 0
    assert "Traceback" not in worker.log


async def test_a_cancellation_counts_while_a_timeout_inside_the_task_ends_something() -> None:
    """A timeout cancels its own task too, and takes the cancellation back."""
    is_cleaning_up, heard = asyncio.Event(), []

    async def task() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0):
                try:
                    await asyncio.Event().wait()
                finally:
                    is_cleaning_up.set()
                    await asyncio.sleep(0.05)
        heard.append("not cancelled")

    tasks = {"task": SimpleNamespace(run=task)}
    pool: Any = SimpleNamespace(
        runs={}, hub=SimpleNamespace(call_soon=lambda *_: None), app=SimpleNamespace(tasks=tasks)
    )
    run = TaskRun(pool, {"task": "task", "id": "1", "args": [], "kwargs": {}}, lambda _: None)
    run.start()
    await is_cleaning_up.wait()
    run.cancel()
    await asyncio.wait(pool.runs)
    assert heard == []


def test_a_second_sigterm_cancels_at_once(valkey: Valkey, start_worker: StartWorker, send: Send) -> None:
    worker = start_worker()
    send("hold", "long")
    assert valkey.next_event() == "started long"
    worker.drain()
    worker.signal(signal.SIGTERM)
    assert valkey.next_events(3) == ["cancelled long", "settled long", "services left"]
    assert worker.exit_code() == 0


@pytest.mark.parametrize("during_the_drain", [False, True])
def test_sigquit_cancels_at_once(
    valkey: Valkey, start_worker: StartWorker, send: Send, during_the_drain: bool
) -> None:
    worker = start_worker()
    send("hold", "long")
    assert valkey.next_event() == "started long"
    if during_the_drain:
        worker.drain()
    worker.signal(signal.SIGQUIT)
    assert valkey.next_events(3) == ["cancelled long", "settled long", "services left"]
    worker.exit_code()
    assert "Traceback" not in worker.log


def test_it_consumes_again_after_valkey_restarts(
    valkey: Valkey, start_worker: StartWorker, send: Send
) -> None:
    worker = start_worker()
    send("note", "before")
    assert valkey.next_event() == "noted before 0"  # nothing of its start still waits for Valkey
    valkey.stop()
    worker.says("No broker at")
    valkey.start()
    restarted = time.monotonic()
    send("note", "after")
    assert valkey.next_event() == "noted after 1"
    assert time.monotonic() - restarted < 10


def test_sigterm_ends_a_worker_that_has_no_broker(
    valkey: Valkey, start_worker: StartWorker, send: Send
) -> None:
    worker = start_worker()
    send("note", "before")
    assert valkey.next_event() == "noted before 0"  # nothing of its start still waits for Valkey
    valkey.stop()
    worker.says("No broker at")
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0


def test_a_worker_whose_services_fail_ends_with_an_error(
    valkey: Valkey, start_worker: StartWorker, send: Send
) -> None:
    worker = start_worker(PROBE_SERVICES="failing_services")
    send("hold", "running")
    assert valkey.next_event() == "started running"
    valkey.client.lpush("fail", 1)
    assert valkey.next_events(3) == ["cancelled running", "settled running", "services left"]
    assert worker.exit_code() == 1
