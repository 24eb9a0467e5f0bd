"""Writes a generation's id as the Celery message that a worker pops from Redis, organizations in turn.

`apply_async` blocks for half a millisecond. This module fills a template that Celery and kombu make once; the
caller sends `queue.enqueueing(entries)` with other commands. The message's `v` is the version of its
arguments, so that old and new workers can share a queue.

The queue has three keys, and workers take from them in this order:

1. `<queue>:turns`, a sorted set of messages by turn: in each turn an organization has one message,
2. `<queue>:flex`, the same for requests with `service_tier: "flex"`,
3. `<queue>`, the list of Celery's own transport: messages of the previous release, and those that a worker
   which stops has put back.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from celery import Celery
from kombu import Connection
from kombu.utils.json import dumps
from redis.asyncio import Redis

from accounts.redis_time_limit import in_time
from chatapi.redis_client import Command

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

# After how many interactive messages one of flex joins their turns, so that it is served at all.
INTERACTIVE_PER_FLEX = 16

# KEYS: the sorted sets of turns, interactive and flex, and for each a hash of every organization's last turn
# and a counter. ARGV: how many interactive messages let a flex one in, then for each message its class (1:
# interactive, 2: flex), organization and text.
# An organization's first message has the turn that is served now, its next ones the turns after that.
_ENQUEUE = """
local function turn_served(class)
  local first = redis.call('ZRANGE', KEYS[class], 0, 0, 'WITHSCORES')
  if first[2] then return tonumber(first[2]) end
  redis.call('UNLINK', KEYS[class + 2])
  return 0
end
for i = 2, #ARGV, 3 do
  local class, organization = tonumber(ARGV[i]), ARGV[i + 1]
  local turn = turn_served(class)
  local last = redis.call('HGET', KEYS[class + 2], organization)
  if last then turn = math.max(turn, tonumber(last) + 1) end
  redis.call('ZADD', KEYS[class], turn, ARGV[i + 2])
  redis.call('HSET', KEYS[class + 2], organization, turn)
  if class == 1 and redis.call('INCR', KEYS[5]) % tonumber(ARGV[1]) == 0 then
    local waiting = redis.call('ZPOPMIN', KEYS[2])
    if waiting[1] then redis.call('ZADD', KEYS[1], turn_served(1), waiting[1]) end
  end
end
"""

# KEYS: both sorted sets and the list. ARGV: the most messages. Returns the next messages.
POP = """
local left, found = tonumber(ARGV[1]), {}
for i = 1, 2 do
  if left > 0 then
    local popped = redis.call('ZPOPMIN', KEYS[i], left)
    for j = 1, #popped, 2 do
      found[#found + 1] = popped[j]
      left = left - 1
    end
  end
end
local in_list = left > 0 and redis.call('RPOP', KEYS[3], left) or {}
for _, message in ipairs(in_list) do found[#found + 1] = message end
return {#in_list, found}
"""

# KEYS: the queue's list and its sorted sets, then one flag per generation. ARGV: how long a flag lasts in ms,
# then one message per generation. Returns the positions of the messages that were enqueued; none while the
# queue holds any message, which may be one of these.
_ENQUEUE_LOST = """
local enqueued = {}
if redis.call('LLEN', KEYS[1]) + redis.call('ZCARD', KEYS[2]) + redis.call('ZCARD', KEYS[3]) > 0 then
  return enqueued
end
for i = 4, #KEYS do
  if redis.call('SET', KEYS[i], '1', 'NX', 'PX', ARGV[1]) then
    redis.call('ZADD', KEYS[2], 0, ARGV[i - 2])
    enqueued[#enqueued + 1] = i - 4
  end
end
return enqueued
"""

_ID = "<generation id>"
_BODY = "<base64 body>"


@dataclass(frozen=True, slots=True)
class Entry:
    """A generation to enqueue."""

    generation_id: str
    organization_id: int
    is_flex: bool = False
    """It is served when no interactive one waits, or after `INTERACTIVE_PER_FLEX` of them."""


def sorted_sets(key: str) -> tuple[str, str]:
    """Return the keys of the messages by turn: interactive and flex."""
    return f"{key}:turns", f"{key}:flex"


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

    def enqueueing(self, entries: Sequence[Entry]) -> Command:
        """Return the command that enqueues the generations."""
        keys = *sorted_sets(self.key), f"{self.key}:last", f"{self.key}:last-flex", f"{self.key}:count"
        parts: list[bytes | str | int] = []
        for entry in entries:
            parts += 1 + entry.is_flex, entry.organization_id, self.message(entry.generation_id)
        return "EVAL", _ENQUEUE, len(keys), *keys, INTERACTIVE_PER_FLEX, *parts

    async def enqueue_lost(self, redis: Redis, generation_ids: Sequence[str]) -> list[str]:
        """Enqueue the generations again if the queue is empty; return those that were enqueued.

        Each is enqueued at most once in `REPEAT_MS`, for any number of workers. Raises `RedisError`.
        """
        flags = [f"{self.key}:enqueued-again:{generation_id}" for generation_id in generation_ids]
        messages = [self.message(generation_id) for generation_id in generation_ids]
        async with in_time():
            keys = self.key, *sorted_sets(self.key), *flags
            enqueue = redis.eval(_ENQUEUE_LOST, len(keys), *keys, REPEAT_MS, *messages)
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
