"""A generation's deltas in Redis: publish, follow, replay, cancel, seal. The only module that knows these keys.

    job:<id>      what the web asks the worker for; goes when the generation ends
    log:<id>      stream, the record: one entry a batch, named `<fence>-<first seq>`; expires minutes after the end
    inbox:<name>  stream, one a web process: the deltas of all its clients, one entry a tick
    web:<name>    there while that web process lives
    cancelled:<id>, channel `cancel`    nobody wants the answer any more

Redis refuses a log entry whose name is not above the last one, and that is the fence: once the reaper has sealed a log
under a newer fence, what an older holder still writes is refused, and in the same script kept out of the inbox. It also makes
a repeated write harmless. Deltas carry consecutive numbers (seq, from 1); a reader that sees a gap asks the log.
"""

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import cast
from uuid import UUID

import msgspec
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from chatapi.wire import deltas
from chatapi.wire.deltas import AnyDelta, Failed

log = logging.getLogger(__name__)

RUN_TTL_MS = 2 * 3_600_000
"""How long a job and its log live if nobody ever ends them; longer than any generation may run."""
INBOX_TTL_MS = 60_000
"""How long an inbox lives whose web process is dead; a living one prolongs it all the time."""
REPLY_TIMEOUT_S = 3.0
"""How long a command may take, a blocking read included: a Redis that is frozen is as good as none."""

CANCELLED = Failed("The request was cancelled. What was generated is charged; see the receipt.", code="cancelled", status=409)
"""What those hear who still listen to a cancelled generation: it must not look like a good end."""

_HEADER = struct.Struct(">16sII")  # generation, first seq, length of the batch that follows

# For each entry: KEYS[i] is its log; ARGV from 3 + (i-1)*5: entry name, batch, inbox key ('' for none), frame header, and for a
# generation's last entry its job's key (else ''). ARGV[2] is how long a log outlives its end. Answers the positions of the entries
# that a newer fence refused.
_PUBLISH = """
local frames, refused = {}, {}
for i = 1, tonumber(ARGV[1]) do
  local at = 3 + (i - 1) * 5
  local name, batch, inbox = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local reply = redis.pcall('XADD', KEYS[i], name, 'd', batch)
  if type(reply) == 'table' and reply.err then
    local top = redis.call('XREVRANGE', KEYS[i], '+', '-', 'COUNT', 1)
    local held = top[1] and tonumber(string.match(top[1][1], '^(%d+)-'))
    if held == nil then return redis.error_reply(reply.err) end
    if held > tonumber(string.match(name, '^(%d+)-')) then refused[#refused + 1] = i end
  else
    if ARGV[at + 4] ~= '' then
      redis.call('PEXPIRE', KEYS[i], ARGV[2])
      redis.call('UNLINK', ARGV[at + 4])
    elseif string.sub(name, -2) == '-1' then
      redis.call('PEXPIRE', KEYS[i], RUN_TTL_MS)
    end
    if inbox ~= '' then
      if not frames[inbox] then frames[inbox] = {} end
      table.insert(frames[inbox], ARGV[at + 3])
      table.insert(frames[inbox], batch)
    end
  end
end
for inbox, parts in pairs(frames) do
  redis.call('XADD', inbox, 'MAXLEN', '~', 1024, '*', 'b', table.concat(parts))
  redis.call('PEXPIRE', inbox, INBOX_TTL_MS, 'NX')
end
return refused
""".replace("RUN_TTL_MS", str(RUN_TTL_MS)).replace("INBOX_TTL_MS", str(INBOX_TTL_MS))


def connect(url: str, *, max_connections: int = 64) -> Redis:
    """A client that never retries by itself: a lost reply of XADD would write twice."""
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=5,
        socket_timeout=None,
        socket_connect_timeout=2,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
    )
    return Redis.from_pool(pool)


LogEntry = tuple[bytes, dict[bytes, bytes]]


class StreamUnavailable(Exception):
    """Redis can't be reached, or has lost what should be there."""


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    """Raises `RedisError` when what is inside takes too long."""
    # Not `socket_timeout`: with it redis-py sends by asyncio.wait_for, which on Python 3.11 swallows cancellations.
    try:
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            yield
    except TimeoutError as error:
        raise RedisTimeoutError("Redis does not answer") from error


class Job(msgspec.Struct, frozen=True, array_like=True):
    """What the web hands to the worker besides the id: where the answer goes, and the request."""

    inbox: str
    request: bytes


class Entry(msgspec.Struct, frozen=True):
    """A batch on its way to Redis: the deltas `first_seq…` of one generation, under its holder's fence."""

    id: UUID
    fence: int
    first_seq: int
    batch: bytes
    inbox: str = ""
    is_last: bool = False


class Sealed(msgspec.Struct, frozen=True):
    """What a sealed log holds."""

    deltas: list[AnyDelta]
    last_seq: int
    is_whole: bool
    """False when its beginning is missing: nothing was published, or Redis has lost it."""


class DeltaStream:
    """The Redis side of all generations of a process."""

    def __init__(self, redis: Redis, prefix: str, *, ttl_ms: int) -> None:
        """`ttl_ms`: how long a log outlives its generation's end, for those who resume."""
        self.redis = redis
        self._prefix = prefix
        self._ttl_ms = ttl_ms
        self._publish = redis.register_script(_PUBLISH)
        self._job_encoder = msgspec.msgpack.Encoder()
        self._job_decoder = msgspec.msgpack.Decoder(Job)

    def key(self, kind: str, name: str) -> str:
        """The full name of a key."""
        return f"{self._prefix}{kind}:{name}"

    # ---- the request

    def keep_job(self, pipe: Pipeline, generation_id: UUID, job: Job) -> None:
        """Put the job into the caller's pipeline, so that keeping and enqueueing cost one round trip."""
        pipe.set(self.key("job", generation_id.hex), self._job_encoder.encode(job), px=RUN_TTL_MS)

    async def jobs(self, ids: Sequence[UUID]) -> list[tuple[Job | None, bool]]:
        """Each one's job, None when it has expired or Redis has lost it; and whether the generation was cancelled already."""
        keys = [self.key(kind, generation_id.hex) for kind in ("job", "cancelled") for generation_id in ids]
        async with _in_time():
            found = await self.redis.mget(keys)
        jobs = [self._job_decoder.decode(cast(bytes, data)) if data else None for data in found[: len(ids)]]
        return [(job, flag is not None) for job, flag in zip(jobs, found[len(ids) :], strict=True)]

    # ---- deltas

    async def publish(self, entries: Sequence[Entry]) -> set[UUID]:
        """Write all entries in one round trip; answers the generations that a newer fence refused."""
        arguments: list[bytes | str | int] = [len(entries), self._ttl_ms]
        for entry in entries:
            inbox = self.key("inbox", entry.inbox) if entry.inbox else ""
            header = _HEADER.pack(entry.id.bytes, entry.first_seq, len(entry.batch))
            job = self.key("job", entry.id.hex) if entry.is_last else ""
            arguments += (f"{entry.fence}-{entry.first_seq}", entry.batch, inbox, header, job)
        keys = [self.key("log", entry.id.hex) for entry in entries]
        async with _in_time():
            refused = cast(list[int], await self._publish(keys=keys, args=arguments))
        return {entries[position - 1].id for position in refused}

    async def seal(self, generation_id: UUID, fence: int) -> Sealed:
        """Shut the log for every older fence and answer what it holds: what the client may have seen."""
        key = self.key("log", generation_id.hex)
        async with _in_time(), self.redis.pipeline(transaction=True) as pipe:
            # Entry <fence>-0 comes before the holder's own deltas (their seq is at least 1) and carries no batch.
            pipe.xadd(key, {"d": b""}, id=f"{fence}-0")
            pipe.pexpire(key, RUN_TTL_MS)
            pipe.xrange(key)
            *_, entries = await pipe.execute(raise_on_error=False)
        if isinstance(entries, Exception):
            raise entries
        batches = _batches(entries)
        held = [delta for _, batch in batches for delta in batch]
        first_seq = batches[0][0] if batches else 0
        return Sealed(held, max(0, first_seq - 1) + len(held), is_whole=first_seq == 1)

    async def replay(self, generation_id: UUID, after_seq: int = 0) -> list[AnyDelta]:
        """The deltas that the log holds after that seq; raises `StreamUnavailable` when Redis has lost some of them."""
        async with _in_time():
            entries = cast(list[LogEntry], await self.redis.xrange(self.key("log", generation_id.hex)))
        batches = _batches(entries)
        found = [delta for first_seq, batch in batches for delta in batch[max(0, after_seq + 1 - first_seq) :]]
        last_seq = batches[-1][0] + len(batches[-1][1]) - 1 if batches else 0
        if last_seq != after_seq + len(found):
            raise StreamUnavailable("Redis has lost a part of the log")
        return found

    # ---- nobody wants it

    async def cancel(self, generation_id: UUID, *, ttl_ms: int) -> None:
        """Tell whichever worker runs or will run the generation that its client has left."""
        async with _in_time(), self.redis.pipeline(transaction=False) as pipe:
            pipe.set(self.key("cancelled", generation_id.hex), b"1", px=ttl_ms)
            pipe.publish(f"{self._prefix}cancel", generation_id.bytes)
            await pipe.execute()

    async def cancelled_among(self, ids: Sequence[UUID]) -> set[UUID]:
        """Those whose client has left: for what the channel's message did not reach."""
        async with _in_time():
            found = await self.redis.mget([self.key("cancelled", generation_id.hex) for generation_id in ids])
        return {generation_id for generation_id, value in zip(ids, found, strict=True) if value is not None}

    async def cancellations(self) -> AsyncIterator[UUID]:
        """Generations whose client leaves, as it happens; ends with `RedisError` when the connection is lost."""
        async with self.redis.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(f"{self._prefix}cancel")
            async for message in channel.listen():
                yield UUID(bytes=message["data"])

    # ---- which web processes live

    async def still_alive(self, inboxes: Sequence[str]) -> set[str]:
        """Those of the inboxes whose web process lives."""
        async with _in_time():
            found = await self.redis.mget([self.key("web", name) for name in inboxes])
        return {name for name, value in zip(inboxes, found, strict=True) if value is not None}

    async def announce(self, inbox: str, *, ttl_ms: int, read_up_to: bytes = b"0") -> None:
        """Say that this web process lives; its inbox goes when it does not say so any more, and what it has read goes now."""
        async with _in_time(), self.redis.pipeline(transaction=False) as pipe:
            pipe.set(self.key("web", inbox), b"1", px=ttl_ms)
            pipe.xtrim(self.key("inbox", inbox), minid=read_up_to)
            pipe.pexpire(self.key("inbox", inbox), 10 * ttl_ms)
            await pipe.execute()


def _batches(entries: Sequence[LogEntry]) -> list[tuple[int, list[AnyDelta]]]:
    """The log's entries as (first seq, deltas); a seal carries none."""
    return [(int(name.partition(b"-")[2]), deltas.decode(fields[b"d"])) for name, fields in entries if fields[b"d"]]


class Follower:
    """One client's view of one generation: its deltas in order, without gap or duplicate."""

    def __init__(self, generation_id: UUID, replay: Callable[[UUID, int], "asyncio.Future[list[AnyDelta]]"]) -> None:
        self.id = generation_id
        self.seq = 0
        """The last delta handed out."""
        self._replay = replay
        self._arrived: list[tuple[int, bytes]] = []
        self._waiter: asyncio.Future[None] | None = None

    def feed(self, first_seq: int, batch: bytes) -> None:
        """Take a batch that the inbox received."""
        self._arrived.append((first_seq, batch))
        self.wake()

    def wake(self) -> None:
        """Let `next` return, with nothing if nothing is there."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self, timeout_s: float) -> list[AnyDelta]:
        """All deltas that have come since; empty after `timeout_s` of silence.

        Raises `RedisError` or `StreamUnavailable` when some are missing and can't be had.
        """
        if not self._arrived:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(timeout_s, self.wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
        arrived, self._arrived = self._arrived, []
        found: list[AnyDelta] = []
        for first_seq, data in arrived:
            found += await self._in_order(first_seq, deltas.decode(data))
        return found

    async def catch_up(self) -> list[AnyDelta]:
        """What the log holds beyond what was handed out: for a reader whose inbox has gone silent."""
        missed = await self._replay(self.id, self.seq)
        self.seq += len(missed)
        return missed

    async def _in_order(self, first_seq: int, batch: list[AnyDelta]) -> list[AnyDelta]:
        if first_seq > self.seq + 1:
            return await self.catch_up()
        fresh = batch[self.seq + 1 - first_seq :]
        self.seq += len(fresh)
        return fresh


class Inbox:
    """The one reader of a web process: takes each tick's entry apart and hands the batches to their followers."""

    ANNOUNCE_S = 1.0
    ABSENT_MS = 3_000
    RETRY_S = 0.2
    LOST_AFTER_S = 4.0

    def __init__(self, stream: DeltaStream, name: str) -> None:
        self.name = name
        self._stream = stream
        self._followers: dict[bytes, Follower] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._down_since: float | None = None
        self._read_up_to = b"0"

    def follow(self, generation_id: UUID) -> Follower:
        """Begin to follow; call before the generation is enqueued, and `leave` in the end."""
        follower = Follower(generation_id, lambda of, after: asyncio.ensure_future(self._stream.replay(of, after)))
        self._followers[generation_id.bytes] = follower
        return follower

    def leave(self, follower: Follower) -> None:
        """Stop following."""
        self._followers.pop(follower.id.bytes, None)

    def check(self) -> None:
        """Raise `StreamUnavailable` when Redis has been out of reach for some seconds."""
        if self._down_since is not None and asyncio.get_running_loop().time() - self._down_since > self.LOST_AFTER_S:
            raise StreamUnavailable("Redis is out of reach")

    async def start(self) -> None:
        """Announce this process and begin to read; raises `RedisError` when Redis is not there."""
        await self._stream.announce(self.name, ttl_ms=self.ABSENT_MS)
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._announce())]

    async def stop(self) -> None:
        """Stop reading."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self) -> None:
        key, loop = self._stream.key("inbox", self.name), asyncio.get_running_loop()
        while True:
            # After an error the first answer is to come at once: until then new requests are refused.
            block_ms = 1_000 if self._down_since is None else 1
            try:
                async with _in_time():
                    found = await self._stream.redis.xread({key: self._read_up_to}, block=block_ms, count=64)
                self._down_since = None
                for _, entries in cast(list[tuple[bytes, list[LogEntry]]], found or []):
                    for name, fields in entries:
                        self._read_up_to = name
                        self._dispatch(fields[b"b"])
            except RedisError as error:
                self._down_since = self._down_since or loop.time()
                log.warning("inbox: %s", error)
                await asyncio.sleep(self.RETRY_S)
                self.wake_all()

    def _dispatch(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            generation_id, first_seq, length = _HEADER.unpack_from(data, at)
            at += _HEADER.size
            follower = self._followers.get(generation_id)
            if follower is not None:
                follower.feed(first_seq, data[at : at + length])
            at += length

    def wake_all(self) -> None:
        """Let every follower's `next` return."""
        for follower in self._followers.values():
            follower.wake()

    async def _announce(self) -> None:
        wait_s = self.ANNOUNCE_S
        while True:
            await asyncio.sleep(wait_s)
            try:
                await self._stream.announce(self.name, ttl_ms=self.ABSENT_MS, read_up_to=self._read_up_to)
                wait_s = self.ANNOUNCE_S
            except RedisError as error:
                log.warning("announce: %s", error)
                # A Redis that has lost its data must hear of us before a worker misses us twice.
                wait_s = self.RETRY_S
