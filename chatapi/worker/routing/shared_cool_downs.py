"""Shares the cool-downs of deployments among all workers, and divides the probes and `max_concurrent`.

Every worker calls one script a second, and none for a request. All times are by the clock of Redis. Without
Redis each worker goes on with what it knows, and grants itself the probes.
"""

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from accounts.redis_time_limit import in_time
from chatapi.worker.routing.health import PROBE_S, CoolDown
from chatapi.worker.routing.router import Router

log = logging.getLogger(__name__)

EXCHANGE_S: Final = 1.0
# A worker that has been silent for this long has no part in `max_concurrent`.
SILENT_MS: Final = 5_000
# A cool-down is deleted if no success has ended it this long after its time: no request asks its deployment.
FORGET_MS: Final = 600_000

# KEYS: the cool-downs by deployment, each "<end> <number> <no probe before>"; the workers by their last call.
# ARGV: the worker's name, SILENT_MS, FORGET_MS, the time of a probe, then for each change: deployment, time
# left ('' if the cool-down has ended) and number.
# Answers the number of workers, the rank of this one, and for each cool-down: deployment, time left, number,
# and 1 if this worker may send the next probe.
SCRIPT: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[2], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - ARGV[2])
for i = 5, #ARGV, 3 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[1], ARGV[i])
  else
    redis.call('HSET', KEYS[1], ARGV[i], string.format('%.0f %s 0', now + ARGV[i + 1], ARGV[i + 2]))
  end
end
local names, cooling = redis.call('ZRANGE', KEYS[2], 0, -1), redis.call('HGETALL', KEYS[1])
table.sort(names)
local rank = 0
for i, name in ipairs(names) do
  if name == ARGV[1] then rank = i - 1 end
end
local answer = {#names, rank}
for i = 1, #cooling, 2 do
  local ends, number, next_probe = string.match(cooling[i + 1], '^(%d+) (%d+) (%d+)$')
  local left, may_probe = ends - now, 0
  if left < -tonumber(ARGV[3]) then
    redis.call('HDEL', KEYS[1], cooling[i])
  else
    if left <= 0 and tonumber(next_probe) <= now then
      may_probe = 1
      redis.call('HSET', KEYS[1], cooling[i], string.format('%s %s %.0f', ends, number, now + ARGV[4]))
    end
    for _, each in ipairs({cooling[i], left, tonumber(number), may_probe}) do answer[#answer + 1] = each end
  end
end
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, 3600000) end
return answer
"""


async def exchange_forever(router: Router, redis: Redis, prefix: str, name: str) -> None:
    """Exchange about every second, also while Redis is away."""
    while True:
        try:
            await exchange(router, redis, prefix, name)
        except RedisError as error:
            log.warning("cool-downs are not shared: %r", error)
        # At random moments, so that each worker is granted its part of the probes.
        await asyncio.sleep(EXCHANGE_S * random.uniform(0.8, 1.2))  # noqa: S311  nothing secret


async def cool_downs(redis: Redis, prefix: str) -> dict[str, int]:
    """Return the number of cool-downs in a row of each deployment that cools down. Raises `RedisError`."""
    async with in_time():
        cooling: Any = await redis.hgetall(f"{prefix}routing:cooling")
    return {key.decode(): int(text.split()[1]) for key, text in cooling.items()}


async def exchange(router: Router, redis: Redis, prefix: str, name: str) -> None:
    """Share this worker's changes, and learn those of the others.

    Raises `RedisError`, and then keeps the changes for the next exchange.
    """
    changes = router.health.take_changes()
    arguments: list[str | int] = [name, SILENT_MS, FORGET_MS, round(PROBE_S * 1_000), *_written(changes)]
    keys = [f"{prefix}routing:cooling", f"{prefix}routing:workers"]
    try:
        async with in_time():
            answer = await redis.register_script(SCRIPT)(keys, arguments)
    except BaseException:
        router.health.restore_changes(changes)
        raise
    count, rank, *rest = answer
    router.know_workers(count, rank)
    router.health.merge(_read(rest))


def _written(changes: Mapping[str, CoolDown | None]) -> list[str | int]:
    written: list[str | int] = []
    for key, change in changes.items():
        written += [key, "", 0] if change is None else [key, round(change.left_s * 1_000), change.number]
    return written


def _read(rest: Sequence[Any]) -> dict[str, CoolDown]:
    return {
        key.decode(): CoolDown(left_ms / 1_000, number, bool(may_probe))
        for key, left_ms, number, may_probe in zip(*[iter(rest)] * 4, strict=True)
    }
