"""Writes a generation's id as the Celery message that a worker pops from Redis, organizations in turn.

`apply_async` blocks for half a millisecond. This module fills a template that Celery and kombu make once; the
caller sends `queue.enqueueing(entries)` with other commands. The message's `v` is the version of its
arguments, so that old and new workers can share a queue.

The queue has four keys, and workers take from them in this order:

1. `<queue>:turns`, a sorted set of messages by turn: in each turn an organization has one message,
2. `<queue>:background`, the same for requests without a client that waits,
3. `<queue>:flex`, the same for requests with `service_tier: "flex"`,
4. `<queue>`, the list of Celery's own transport: messages of the previous release, and those that a worker
   which stops has put back.

`<queue>:wake` has an item when a worker may find a message that it can't wait for (`message_channel.py`).
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
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

# After this many interactive messages, one message of each other class joins their turns. Otherwise it might
# wait for ever.
INTERACTIVE_PER_OTHER = 16
# The most messages that one script looks at: of each class to take some, of all classes to find lost ones.
LOOK_AT = 64

# Found as plain text: a pattern, tried at each letter, takes ten times as long.
_ORGANIZATION_OF = """
local function organization_of(message)
  local _, before = string.find(message, '"organization": "', 1, true)
  return before and string.match(message, '^%d*', before + 1) or ''
end
"""

# KEYS: the sorted sets of turns of the three classes, for each a hash of every organization's last message,
# and the list of wake-ups. A message has the turn after the last one of its organization, or the turn that is
# served now if none of them waits. No message may come before that: those of one organization would fill the
# first turns, and a worker that looks past them would not see the others'. If the organization had no
# message, a worker that skips the other organizations' messages may take this one, so a wake-up is left, one
# at most. `#!lua` makes a full Redis refuse the whole script. Without it, a script that has already deleted
# something may continue, and its message would have no job.
_JOIN = (
    "#!lua\n"
    + _ORGANIZATION_OF
    + """
local function join(class, message)
  local turns, lasts, organization = KEYS[class], KEYS[3 + class], organization_of(message)
  local first = redis.call('ZRANGE', turns, 0, 0, 'WITHSCORES')
  if not first[2] then redis.call('UNLINK', lasts) end
  local last = redis.call('HGET', lasts, organization)
  local last_turn = last and redis.call('ZSCORE', turns, last)
  if not last_turn and redis.call('EXISTS', KEYS[7]) == 0 then redis.call('RPUSH', KEYS[7], '') end
  redis.call('ZADD', turns, last_turn and last_turn + 1 or first[2] or 0, message)
  redis.call('HSET', lasts, organization, message)
end
"""
)

# KEYS: those of `join`, then a counter. ARGV: how many interactive messages let others in, then for each
# message its class and its text.
_ENQUEUE = (
    _JOIN
    + """
for i = 2, #ARGV, 2 do
  local class = tonumber(ARGV[i])
  join(class, ARGV[i + 1])
  if class == 1 and redis.call('INCR', KEYS[8]) % tonumber(ARGV[1]) == 0 then
    for other = 2, 3 do
      local waiting = redis.call('ZPOPMIN', KEYS[other])
      if waiting[1] then join(1, waiting[1]) end
    end
  end
end
"""
)

# KEYS: the sorted sets and the list. ARGV: the most messages, how many of each class to look at, then each
# organization that may have fewer messages than that, and how many. Returns how many come from the list, and
# the next messages.
_TAKE = (
    _ORGANIZATION_OF
    + """
local left, found, may_have = tonumber(ARGV[1]), {}, {}
for i = 3, #ARGV, 2 do may_have[ARGV[i]] = tonumber(ARGV[i + 1]) end
for i = 1, #KEYS - 1 do
  local last = next(may_have) and tonumber(ARGV[2]) or left
  for _, message in ipairs(left > 0 and redis.call('ZRANGE', KEYS[i], 0, last - 1) or {}) do
    if left == 0 then break end
    local organization = organization_of(message)
    local may = may_have[organization] or left
    if may > 0 then
      if may_have[organization] then may_have[organization] = may - 1 end
      redis.call('ZREM', KEYS[i], message)
      found[#found + 1] = message
      left = left - 1
    end
  end
end
local in_list = left > 0 and redis.call('RPOP', KEYS[#KEYS], left) or {}
for _, message in ipairs(in_list) do found[#found + 1] = message end
return {#in_list, found}
"""
)

_TAKE_SHA1 = hashlib.sha1(_TAKE.encode(), usedforsecurity=False).hexdigest()

# KEYS: those of `join`, the queue's list, then one flag per generation. ARGV: how long a flag lasts in ms,
# then one message per generation. Enqueues those that wait nowhere and returns their positions; none while
# the list has any message, which may be one of these.
_ENQUEUE_LOST = (
    _JOIN
    + """
local enqueued = {}
if redis.call('LLEN', KEYS[8]) > 0 then return enqueued end
for i = 9, #KEYS do
  local message, waits = ARGV[i - 7], false
  for class = 1, 3 do waits = waits or redis.call('ZSCORE', KEYS[class], message) end
  if not waits and redis.call('SET', KEYS[i], '1', 'NX', 'PX', ARGV[1]) then
    join(1, message)
    enqueued[#enqueued + 1] = i - 9
  end
end
return enqueued
"""
)

_ID = "<generation id>"
_ORGANIZATION = "<organization id>"
_BODY = "<base64 body>"


class QueueClass(IntEnum):
    """The class of a message, which is also in its generation's row.

    A later class is served when no earlier one waits, or after `INTERACTIVE_PER_OTHER` interactive messages.
    """

    INTERACTIVE = 1
    BACKGROUND = 2
    """No client waits for the answer."""
    FLEX = 3
    """The client lets others come first."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A generation to enqueue."""

    generation_id: str
    organization_id: int
    queue_class: QueueClass = QueueClass.INTERACTIVE


def sorted_sets(key: str) -> tuple[str, ...]:
    """Return the keys of the messages by turn, in the order of their classes."""
    return f"{key}:turns", f"{key}:background", f"{key}:flex"


def wake_ups(key: str) -> str:
    """Return the key of the list that gets an item when an organization without messages gets one."""
    return f"{key}:wake"


def taking(key: str, most: int, limits: Mapping[str, int], *, is_known: bool = False) -> Command:
    """Return the command that takes up to `most` messages, and of these organizations no more than `limits`.

    Its reply is the number of messages that come from the list, and the messages. `is_known`: Redis has run
    the script since it started, so the script's digest suffices.
    """
    keys = *sorted_sets(key), key
    parts = [part for limit in limits.items() for part in limit]
    script = ("EVALSHA", _TAKE_SHA1) if is_known else ("EVAL", _TAKE)
    return *script, len(keys), *keys, most, LOOK_AT, *parts


class TaskQueue:
    """One task on one Celery queue in Redis."""

    def __init__(self, app: Celery, task_name: str, queue: str) -> None:
        prefix: str = app.conf.broker_transport_options.get("global_keyprefix", "")
        self.key = prefix + queue
        sets = sorted_sets(self.key)
        # Not `:last` and `:last-flex`, in which web processes of the previous release keep numbers.
        self._join_keys = *sets, *(f"{each}:last" for each in sets), wake_ups(self.key)
        message = _probe(app, task_name, queue)
        self._body = base64.b64decode(message["body"])
        message["body"] = _BODY
        message["properties"]["delivery_tag"] = _ID
        message["headers"]["organization"] = _ORGANIZATION
        # Celery names the sending process in these. A worker finds a web process's message by its whole text.
        message["properties"]["reply_to"] = message["headers"]["origin"] = ""
        self._envelope = dumps(message).encode()

    def message(self, generation_id: str, organization_id: int) -> bytes:
        """Return a message for the list `key`; the id is also the task's id and the delivery tag.

        The id consists of letters, digits and hyphens.
        """
        body = base64.b64encode(self._body.replace(_ID.encode(), generation_id.encode()))
        envelope = self._envelope.replace(_ID.encode(), generation_id.encode())
        envelope = envelope.replace(_ORGANIZATION.encode(), str(organization_id).encode())
        return envelope.replace(_BODY.encode(), body)

    def enqueueing(self, entries: Sequence[Entry]) -> Command:
        keys = *self._join_keys, f"{self.key}:count"
        parts: list[bytes | int] = []
        for entry in entries:
            parts += entry.queue_class.value, self.message(entry.generation_id, entry.organization_id)
        return "EVAL", _ENQUEUE, len(keys), *keys, INTERACTIVE_PER_OTHER, *parts

    async def missing(self, redis: Redis, entries: Sequence[Entry]) -> set[str]:
        """Return the generations whose message waits nowhere. Raises `RedisError`.

        Returns none while the list has any message, which may be one of theirs.
        """
        found = set[str]()
        for start in range(0, len(entries), LOOK_AT):
            some = entries[start : start + LOOK_AT]
            # The stub knows only `str`.
            messages: dict[Entry, Any] = {
                entry: self.message(entry.generation_id, entry.organization_id) for entry in some
            }
            look = redis.pipeline(transaction=False)
            look.llen(self.key)
            asked: list[Entry] = []
            for each, queue_class in zip(sorted_sets(self.key), QueueClass, strict=True):
                # Messages of the other classes may have been let in among the interactive ones.
                own = [e for e in some if queue_class in (QueueClass.INTERACTIVE, e.queue_class)]
                if own:
                    look.zmscore(each, [messages[entry] for entry in own])
                    asked += own
            async with in_time():
                in_list, *scores = await look.execute()
            if in_list:
                return set()
            waiting = {e for e, score in zip(asked, chain(*scores), strict=True) if score is not None}
            found |= {entry.generation_id for entry in some if entry not in waiting}
        return found

    async def enqueue_lost(self, redis: Redis, entries: Sequence[Entry]) -> list[str]:
        """Enqueue again, as interactive ones, the generations whose message waits nowhere; return their ids.

        Each is enqueued at most once in `REPEAT_MS`, for any number of workers. Raises `RedisError`.
        """
        found: list[str] = []
        for start in range(0, len(entries), LOOK_AT):
            some = entries[start : start + LOOK_AT]  # a script blocks Redis
            flags = [f"{self.key}:enqueued-again:{entry.generation_id}" for entry in some]
            keys = *self._join_keys, self.key, *flags
            messages = [self.message(entry.generation_id, entry.organization_id) for entry in some]
            async with in_time():
                enqueue = redis.eval(_ENQUEUE_LOST, len(keys), *keys, REPEAT_MS, *messages)
                found += [some[at].generation_id for at in cast(list[int], await enqueue)]
        return found


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
