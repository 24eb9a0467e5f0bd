"""Writes a generation's id as the Celery message that a worker pops from Redis.

`apply_async` blocks for half a millisecond. This module fills a template that Celery and kombu make once; the
caller sends it with other commands: `"LPUSH", queue.key, queue.message(generation_id)`. The message's `v` is
the version of its arguments, so that old and new workers can share a queue.
"""

import base64
from collections.abc import Sequence
from typing import Any, Final, cast

from celery import Celery
from kombu import Connection
from kombu.utils.json import dumps
from redis.asyncio import Redis

from accounts.redis_time_limit import in_time

ARGUMENTS_VERSION = 1

# kombu's options for a worker's broker connection; a lost connection is noticed within seconds.
BROKER_OPTIONS: Final[dict[str, Any]] = {
    # Early acknowledgement does not need kombu's bookkeeping, which triples the cost of a message.
    "ack_emulation": False,
    # One list, so that BRPOP waits for one key.
    "priority_steps": [0],
    # Without these a frozen Redis would block a shutdown without a limit.
    "socket_timeout": 5,
    "socket_connect_timeout": 5,
    "socket_keepalive": True,
    "health_check_interval": 5,
}

# The least time between two repeated enqueueings of one generation, by any worker.
REPEAT_MS = 2_000

# KEYS: the queue, then one flag per generation. ARGV: how long a flag lasts in ms, then one message per
# generation. Returns the positions of the messages that were enqueued; none while the queue holds any
# message, which may be one of these.
_ENQUEUE_LOST = """
local enqueued = {}
if redis.call('LLEN', KEYS[1]) > 0 then return enqueued end
for i = 2, #KEYS do
  if redis.call('SET', KEYS[i], '1', 'NX', 'PX', ARGV[1]) then
    redis.call('LPUSH', KEYS[1], ARGV[i])
    enqueued[#enqueued + 1] = i - 2
  end
end
return enqueued
"""

_ID = "<generation id>"
_BODY = "<base64 body>"


class TaskQueue:
    """One task on one Celery queue in Redis."""

    def __init__(self, app: Celery, task_name: str, queue: str) -> None:
        prefix: str = app.conf.broker_transport_options.get("global_keyprefix", "")
        self.key = prefix + queue
        message = _probe(app, task_name, queue)
        self._body = base64.b64decode(message["body"])
        message["body"] = _BODY
        message["properties"]["delivery_tag"] = _ID
        self._envelope = dumps(message).encode()

    def message(self, generation_id: str) -> bytes:
        """Return a message for the list `key`; the id is also the task's id and the delivery tag.

        The id consists of letters, digits and hyphens.
        """
        body = base64.b64encode(self._body.replace(_ID.encode(), generation_id.encode()))
        return self._envelope.replace(_ID.encode(), generation_id.encode()).replace(_BODY.encode(), body)

    async def enqueue_lost(self, redis: Redis, generation_ids: Sequence[str]) -> list[str]:
        """Enqueue the generations again if the queue is empty; return those that were enqueued.

        Each is enqueued at most once in `REPEAT_MS`, for any number of workers. Raises `RedisError`.
        """
        flags = [f"{self.key}:enqueued-again:{generation_id}" for generation_id in generation_ids]
        messages = [self.message(generation_id) for generation_id in generation_ids]
        async with in_time():
            enqueue = redis.eval(_ENQUEUE_LOST, 1 + len(flags), self.key, *flags, REPEAT_MS, *messages)
            return [generation_ids[at] for at in cast(list[int], await enqueue)]


def _probe(app: Celery, task_name: str, queue: str) -> dict[str, Any]:
    """Return the message that `apply_async` would send, by kombu's in-memory transport."""
    with Connection("memory://") as connection:
        app.send_task(
            task_name,
            args=(_ID,),
            kwargs={"v": ARGUMENTS_VERSION},
            task_id=_ID,
            queue=queue,
            ignore_result=True,
            connection=connection,
        )
        channel: Any = connection.default_channel
        message: dict[str, Any] = channel.basic_get(queue, no_ack=True).serializable()
        return message
