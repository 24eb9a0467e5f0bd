"""The hand-built message against Celery's own, in a real Valkey and a real worker."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from chatapi.redis_client import connect
from chatapi.task_queue import TaskQueue
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
    assert decoded(queue.message(GENERATION_ID)) == decoded(sent)
    app.close()


def test_each_message_carries_its_own_id_everywhere() -> None:
    queue = TaskQueue(probe_app, "note", QUEUE)
    first, second = queue.message("first"), queue.message("second")
    assert b"first" not in second
    assert decoded(first.replace(b"first", b"second"))["headers"] == decoded(second)["headers"]
    assert decoded(second)["body"][:2] == [["second"], {"v": 1}]


async def test_a_lost_message_is_enqueued_once_and_only_into_an_empty_queue(valkey: Valkey) -> None:
    queue, redis = TaskQueue(probe_app, "note", QUEUE), connect(f"unix://{valkey.socket}")
    assert await queue.enqueue_lost(redis, ["first", "second"]) == ["first", "second"]
    valkey.client.rpop(queue.key)
    assert await queue.enqueue_lost(redis, ["first", "third"]) == []
    valkey.client.delete(queue.key)
    assert await queue.enqueue_lost(redis, ["first", "third"]) == ["third"]
    assert valkey.client.lrange(queue.key, 0, -1) == [queue.message("third").decode()]
    await redis.aclose()


def test_a_real_worker_executes_it(valkey: Valkey, tmp_path: Path) -> None:
    queue = TaskQueue(probe_app, "note", QUEUE)
    with Worker(valkey, tmp_path / "worker.log"):
        valkey.client.lpush(queue.key, queue.message(GENERATION_ID))
        assert valkey.next_event() == f"noted {GENERATION_ID} 0"
