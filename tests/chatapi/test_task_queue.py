"""The hand-built message against Celery's own, in a real Valkey and a real worker."""

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis.exceptions import RedisError

from chatapi.redis_client import connect
from chatapi.task_queue import (
    INTERACTIVE_PER_OTHER,
    LOOK_AT,
    Entry,
    QueueClass,
    TaskQueue,
    taking,
    wake_ups,
)
from tests.chatapi.worker.probe_app import QUEUE
from tests.chatapi.worker.probe_app import app as probe_app
from tests.chatapi.worker.processes import Valkey, Worker

GENERATION_ID = "0192f0c5-7e7a-7cc3-98c4-dc0c0c07398f"


def decoded(message: str | bytes) -> dict[str, Any]:
    """Return the message with its body opened and without its delivery tag, which is new for each."""
    fields: dict[str, Any] = json.loads(message)
    fields["body"] = json.loads(base64.b64decode(fields["body"]))
    del fields["properties"]["delivery_tag"]
    return fields


@pytest.mark.parametrize("prefix", ["", "chatapi:"])
def test_the_message_is_the_one_that_apply_async_sends(valkey: Valkey, prefix: str) -> None:
    app = Celery("sender", broker=f"redis+socket://{valkey.socket}")
    app.conf.update(task_ignore_result=True, broker_transport_options={"global_keyprefix": prefix})

    @app.task(name="generate")
    def generate(generation_id: str, v: int) -> None: ...

    generate.apply_async((GENERATION_ID,), {"v": 1}, task_id=GENERATION_ID, queue="generations")
    queue = TaskQueue(app, "generate", "generations")
    sent = valkey.client.rpop(queue.key)
    assert isinstance(sent, str)
    ours, celerys = decoded(queue.message(GENERATION_ID, 7)), decoded(sent)
    assert ours["headers"].pop("organization") == "7"
    assert (ours["properties"].pop("reply_to"), ours["headers"].pop("origin")) == ("", "")
    assert all((celerys["properties"].pop("reply_to"), celerys["headers"].pop("origin")))
    assert ours == celerys
    app.close()


MESSAGE = """
from chatapi.task_queue import TaskQueue
from tests.chatapi.worker.probe_app import QUEUE, app
print(TaskQueue(app, "note", QUEUE).message("first", 1).decode())
"""


def test_every_process_writes_the_same_message() -> None:
    """Otherwise a worker takes every message of a web process for lost, and enqueues it again."""
    own = TaskQueue(probe_app, "note", QUEUE).message("first", 1).decode()
    other = subprocess.run(
        [sys.executable, "-c", MESSAGE], capture_output=True, text=True, check=True, timeout=60
    )
    assert other.stdout.strip() == own


def test_each_message_carries_its_own_id_everywhere() -> None:
    queue = TaskQueue(probe_app, "note", QUEUE)
    first, second = queue.message("first", 1), queue.message("second", 1)
    assert b"first" not in second
    assert decoded(first.replace(b"first", b"second"))["headers"] == decoded(second)["headers"]
    assert decoded(second)["body"][:2] == [["second"], {"v": 1}]


async def test_a_message_that_waits_nowhere_is_enqueued_again_and_only_once(valkey: Valkey) -> None:
    queue, redis = TaskQueue(probe_app, "note", QUEUE), connect(f"unix://{valkey.socket}")
    first, second, third = (Entry(name, 1) for name in ("first", "second", "third"))
    assert await queue.enqueue_lost(redis, [first, second]) == ["first", "second"]
    assert popped(valkey, queue, 1) == ["first"]
    assert await queue.enqueue_lost(redis, [first, second, third]) == ["third"], "the second one waits"
    assert await queue.enqueue_lost(redis, [first, second, third]) == []
    assert popped(valkey, queue, 3) == ["second", "third"]
    await redis.aclose()


async def test_a_message_of_any_class_is_not_lost_while_it_waits(valkey: Valkey) -> None:
    """Beside a flood, too, a lost message is found."""
    queue, redis = TaskQueue(probe_app, "note", QUEUE), connect(f"unix://{valkey.socket}")
    waiting = [Entry(each.name, 1, each) for each in QueueClass]
    flood = [Entry(f"flood {number}", 2) for number in range(100)]
    enqueue(valkey, queue, *waiting, *flood)
    assert await queue.enqueue_lost(redis, [*waiting, *flood, Entry("lost", 3)]) == ["lost"]
    valkey.client.lpush(queue.key, "a message of the release before, which may be that of any")
    assert await queue.enqueue_lost(redis, [Entry("also lost", 3)]) == []
    await redis.aclose()


def test_a_real_worker_executes_it(valkey: Valkey, tmp_path: Path) -> None:
    queue = TaskQueue(probe_app, "note", QUEUE)
    with Worker(valkey, tmp_path / "worker.log"):
        valkey.execute(queue.enqueueing([Entry(GENERATION_ID, 1)]))
        assert valkey.next_event() == f"noted {GENERATION_ID} 0"


def popped(valkey: Valkey, queue: TaskQueue, most: int, limits: dict[str, int] | None = None) -> list[str]:
    """Return the generations that a worker would get."""
    _, messages = valkey.execute(taking(queue.key, most, limits or {}))
    return [json.loads(message)["headers"]["id"] for message in messages]


def enqueue(valkey: Valkey, queue: TaskQueue, *entries: Entry) -> None:
    valkey.execute(queue.enqueueing(entries))


def test_organizations_take_turns_however_many_of_one_wait(valkey: Valkey) -> None:
    """H5: each of 5 requests is served with at most one of a flood of 400 before it."""
    queue = TaskQueue(probe_app, "note", QUEUE)
    enqueue(valkey, queue, *(Entry(f"a{number}", 1) for number in range(400)))
    assert popped(valkey, queue, 8) == [f"a{number}" for number in range(8)]
    enqueue(valkey, queue, *(Entry(f"b{number}", 2) for number in range(5)))
    order = popped(valkey, queue, 20)
    assert [name for name in order if name[0] == "b"] == [f"b{number}" for number in range(5)]
    assert all(order.index(f"b{number}") <= 2 * number + 1 for number in range(5))
    assert len(popped(valkey, queue, 400)) == 400 - 8 - 15
    # An empty queue remembers nobody: the next ones are equal again.
    enqueue(valkey, queue, Entry("b9", 2), Entry("a400", 1))
    turns = f"{queue.key}:turns"
    assert {valkey.client.zscore(turns, queue.message(*each)) for each in (("b9", 2), ("a400", 1))} == {0}


def test_classes_wait_for_the_ones_before_them_but_not_forever(valkey: Valkey) -> None:
    queue = TaskQueue(probe_app, "note", QUEUE)
    flex = [Entry(f"flex{number}", 1, QueueClass.FLEX) for number in range(2)]
    background = [Entry(f"background{number}", 1, QueueClass.BACKGROUND) for number in range(2)]
    enqueue(valkey, queue, *flex, *background, Entry("i", 1))
    assert popped(valkey, queue, 4) == ["i", "background0", "background1", "flex0"]
    enqueue(valkey, queue, background[0])
    enqueue(valkey, queue, *(Entry(f"i{number}", 1) for number in range(2 * INTERACTIVE_PER_OTHER)))
    assert {"background0", "flex1"} < {*popped(valkey, queue, INTERACTIVE_PER_OTHER + 2)}


def test_a_worker_takes_no_more_of_an_organization_than_it_wants(valkey: Valkey) -> None:
    queue = TaskQueue(probe_app, "note", QUEUE)
    enqueue(valkey, queue, *(Entry(f"a{number}", 1) for number in range(400)))
    enqueue(valkey, queue, *(Entry(f"b{number}", 2) for number in range(3)))
    enqueue(valkey, queue, Entry("b3", 2, QueueClass.FLEX))
    assert popped(valkey, queue, 8, {"1": 1}) == ["a0", "b0", "b1", "b2", "b3"]
    assert popped(valkey, queue, 8, {"1": 0, "11": 0}) == []
    for number in range(100):  # more than a worker looks at
        enqueue(valkey, queue, Entry(f"b{number}", 2))
        assert popped(valkey, queue, 8, {"1": 0}) == [f"b{number}"]
    enqueue(valkey, queue, Entry("b4", 2))
    assert popped(valkey, queue, 2) == ["a1", "b4"], "what was passed over has kept its turn"


def test_a_message_of_an_organization_that_had_none_wakes_one_worker(valkey: Valkey) -> None:
    queue = TaskQueue(probe_app, "note", QUEUE)
    enqueue(valkey, queue, *(Entry(f"a{number}", 1) for number in range(400)))
    assert valkey.client.lpop(wake_ups(queue.key)) == ""
    enqueue(valkey, queue, Entry("a400", 1))
    assert valkey.client.llen(wake_ups(queue.key)) == 0
    enqueue(valkey, queue, Entry("b", 2), Entry("c", 3))
    assert valkey.client.llen(wake_ups(queue.key)) == 1


async def test_lost_messages_of_a_flood_hide_nobody_else(valkey: Valkey) -> None:
    """H5: they take turns like others."""
    queue, redis = TaskQueue(probe_app, "note", QUEUE), connect(f"unix://{valkey.socket}")
    enqueue(valkey, queue, *(Entry(f"a{number}", 1) for number in range(3)))
    lost = [Entry(f"lost{number:03}", 1) for number in range(2 * LOOK_AT)]
    assert len(await queue.enqueue_lost(redis, lost)) == len(lost)
    enqueue(valkey, queue, Entry("z", 2))
    assert popped(valkey, queue, 8, {"1": 0}) == ["z"], "a worker that looks past the flood finds it"
    enqueue(valkey, queue, Entry("y", 2))
    assert "y" in popped(valkey, queue, 2)
    await redis.aclose()


def test_background_work_that_is_let_in_hides_nobody_else(valkey: Valkey) -> None:
    """H5: it has turns, too, so an organization with its share of the slots does not fill the first ones."""
    queue = TaskQueue(probe_app, "note", QUEUE)
    enqueue(valkey, queue, *(Entry(f"a{number}", 1, QueueClass.BACKGROUND) for number in range(2 * LOOK_AT)))
    for number in range(2 * LOOK_AT * INTERACTIVE_PER_OTHER):
        enqueue(valkey, queue, Entry(f"b{number}", 2))
        assert popped(valkey, queue, 8, {"1": 0}) == [f"b{number}"]
    assert valkey.client.zcard(f"{queue.key}:turns") == 2 * LOOK_AT
    enqueue(valkey, queue, Entry("z", 3))
    assert popped(valkey, queue, 8, {"1": 0}) == ["z"]


def test_messages_of_the_previous_release_are_popped_from_its_list(valkey: Valkey) -> None:
    queue = TaskQueue(probe_app, "note", QUEUE)
    valkey.client.lpush(queue.key, queue.message("old0", 1), queue.message("old1", 1))
    enqueue(valkey, queue, Entry("new", 1))
    assert popped(valkey, queue, 8) == ["new", "old0", "old1"]


def test_a_web_process_of_the_release_before_shares_the_queue(valkey: Valkey) -> None:
    """It computes with what it finds in these two keys, and fails if that is no number."""
    queue = TaskQueue(probe_app, "note", QUEUE)
    enqueue(valkey, queue, *(Entry(each.name, 1, each) for each in QueueClass))
    assert not valkey.client.exists(f"{queue.key}:last", f"{queue.key}:last-flex")


def test_a_full_redis_takes_no_message(valkey: Valkey) -> None:
    """The job beside the message is refused, too: a worker that found the message would lose the request."""
    queue = TaskQueue(probe_app, "note", QUEUE)
    enqueue(valkey, queue, Entry("first", 1))
    assert popped(valkey, queue, 1) == ["first"]
    valkey.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(RedisError, match="maxmemory"):
            enqueue(valkey, queue, Entry("second", 1))
    finally:
        valkey.client.config_set("maxmemory", 0)
    assert popped(valkey, queue, 1) == []
