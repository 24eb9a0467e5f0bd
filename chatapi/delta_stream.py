"""A generation's deltas in Redis: publish, follow, replay, cancel, seal. The only module that knows these
keys.

    job:<id>      what the web asks the worker for; goes with the end
    log:<id>      stream, the record: one entry a batch, named `<fence>-<first seq>`; expires minutes after the end
    inbox:<name>  stream, one a web process: the deltas of all its clients, one entry a tick; `presence.py` keeps and trims it
    cancelled:<id>, channel `cancel`    nobody wants the answer any more
    channel `worker:<name>`             its subscriber lives: that worker's connection

Redis refuses a log entry whose name is not above the last one, and that is the fence: once the reaper has
sealed a log under a newer fence, what an older holder still writes is refused, and in the same script kept
out of the inbox. It also makes a repeated write harmless. Deltas carry consecutive numbers (seq, from 1); a
reader that sees a gap asks the log.
"""

import hashlib
import logging
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, cast
from uuid import UUID

import msgspec
from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from chatapi import delta_log
from chatapi.delta_log import StreamUnavailable
from chatapi.presence import INBOX_TTL_MS
from chatapi.redis_client import Command, Line, in_time
from chatapi.wire.deltas import AnyDelta, Failed

log = logging.getLogger(__name__)

RUN_TTL_MS = 26 * 3_600_000
"""How long a job and its log live if nobody ever ends them; longer than any generation may run
(`models.MAX_TIMEOUT_MS`).
"""
PAGE_ENTRIES = 256
"""The most entries of a log that are read at once."""

CANCELLED = Failed(
    "The request was cancelled. What was generated is charged; see the receipt.", code="cancelled", status=409
)
"""What those hear who still listen to a cancelled generation: it must not look like a good end."""
WORKER_LOST = Failed(
    "The worker was lost while it generated. What was generated is charged; see the receipt.",
    code="worker_lost",
    status=502,
)
"""What clients of a generation are told whose worker has died, by the reaper or by their own web process."""
NOT_STARTED = Failed(
    "No worker was free in time. Nothing was charged; try again.",
    code="queue_timeout",
    status=503,
    retry_after_ms=1_000,
)
"""What clients of a generation are told whose time in the queue is over."""

_FRAME = struct.Struct(
    ">32sQIBI"
)  # generation in hex, fence, first seq, 1 for a generation's last, length of the batch that follows

# ARGV: prefix of all keys, how long a log outlives its end, then pairs: inbox ('' for none) and the frames
# for its clients. Each frame becomes an entry of its generation's log, all that pass one entry of the inbox.
# Answers the generations that a newer fence refused.
_PUBLISH = """
local prefix, refused = ARGV[1], {}
local function record(id, fence, seq, is_last, batch)
  local key, name = prefix .. 'log:' .. id, string.format('%d-%d', fence, seq)
  local reply = redis.pcall('XADD', key, 'NOMKSTREAM', name, 'd', batch)
  if not reply then
    -- A new log: of a new generation, of one whose log Redis has lost, or a zombie's. None may stay for ever.
    reply = redis.pcall('XADD', key, name, 'd', batch)
    redis.call('PEXPIRE', key, RUN_TTL_MS)
  end
  if type(reply) == 'table' and reply.err then
    local top = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)
    local held, last = string.match(top[1] and top[1][1] or '0-0', '^(%d+)-(%d+)$')
    held, last = tonumber(held), tonumber(last)
    if held > fence then
      refused[#refused + 1] = id
      return false
    end
    -- A repeated write; anything else, as a Redis that is full, is an error, lest deltas be lost in silence.
    return not (held == fence and last >= seq) and reply
  end
  if is_last == 1 then
    -- Of one that is forgotten already, the log has the time that it still has.
    local is_kept = redis.call('UNLINK', prefix .. 'job:' .. id) == 1
    redis.call('PEXPIRE', key, ARGV[2], unpack(is_kept and {} or {'LT'}))
  end
  return true
end
for i = 3, #ARGV, 2 do
  local frames, passed, at = ARGV[i + 1], {}, 1
  while at <= #frames do
    local id, fence, seq, is_last, length, start = struct.unpack('>c32I8I4I1I4', frames, at)
    local recorded = record(id, fence, seq, is_last, string.sub(frames, start, start + length - 1))
    if type(recorded) == 'table' then return recorded end
    if recorded then passed[#passed + 1] = string.sub(frames, at, start + length - 1) end
    at = start + length
  end
  if ARGV[i] ~= '' and #passed > 0 then
    local inbox = prefix .. 'inbox:' .. ARGV[i]
    redis.call('XADD', inbox, 'MAXLEN', '~', 1024, '*', 'b', table.concat(passed))
    redis.call('PEXPIRE', inbox, INBOX_TTL_MS, 'NX')
  end
end
return refused
""".replace("RUN_TTL_MS", str(RUN_TTL_MS)).replace("INBOX_TTL_MS", str(INBOX_TTL_MS))
_PUBLISH_SHA1 = hashlib.sha1(_PUBLISH.encode(), usedforsecurity=False).hexdigest()

# ARGV: cursor, prefix of all keys, how long a log outlives its end. Answers the next cursor, and which
# generations are kept as if open.
_LASTING = """
local page, prefix, found = redis.call('SCAN', ARGV[1], 'COUNT', 1000), ARGV[2], {}
for _, key in ipairs(page[2]) do
  local kind, id = string.match(string.sub(key, #prefix + 1), '^(%l+):(%x+)$')
  local is_ours = string.sub(key, 1, #prefix) == prefix and id and #id == 32
  if is_ours and (kind == 'job' or kind == 'log' and redis.call('PTTL', key) > tonumber(ARGV[3])) then
    found[#found + 1] = id
  end
end
return {page[1], found}
"""


class Cancellation(Enum):
    """Why a generation is to stop."""

    CLIENT_LEFT = b"left"
    """Nobody listens any more; a deployment may let it run on."""
    ASKED = b"asked"
    """Its client asked for it: it stops, and whoever listens gets a normal end with the usage."""
    STOPPED = b"stopped"
    """An operator stops it: whoever listens must not take what came for the whole answer."""


class Job(msgspec.Struct, frozen=True, array_like=True):
    """What the web hands to the worker besides the id: where the answer goes, and the request."""

    inbox: str
    request: bytes
    runs_on: bool = False
    """It is finished whoever leaves: somebody will come back for the answer."""
    # Jobs of earlier releases have a fourth element, which is ignored: what the request took from rate limits.


class Entry(msgspec.Struct, frozen=True):
    """A batch on its way to Redis: the deltas `first_seq…` of one generation, under its holder's fence."""

    id: UUID
    fence: int
    first_seq: int
    batch: bytes
    inbox: str = ""
    is_last: bool = False

    def frame(self) -> bytes:
        """The entry as it travels."""
        return (
            _FRAME.pack(self.id.hex.encode(), self.fence, self.first_seq, self.is_last, len(self.batch))
            + self.batch
        )


class Frame(NamedTuple):
    """An entry as it arrives in an inbox."""

    id: bytes
    """32 hex digits."""
    first_seq: int
    batch: bytes


class Sealed(msgspec.Struct, frozen=True):
    """What a sealed log holds."""

    deltas: list[AnyDelta]
    last_seq: int
    is_whole: bool
    """False when its beginning is missing: nothing was published, Redis has lost it, or another version has
    written it.
    """


class DeltaStream:
    """The Redis side of all generations of a process."""

    def __init__(self, redis: Redis, prefix: str, *, ttl_ms: int) -> None:
        """`ttl_ms`: how long a log outlives its generation's end, for those who resume."""
        self.redis = redis
        self.prefix = prefix
        self._ttl_ms = ttl_ms
        self._publishing, self._reading, self._asking = Line(redis), Line(redis), Line(redis)
        self._job_encoder = msgspec.msgpack.Encoder()
        self._job_decoder = msgspec.msgpack.Decoder(Job)

    def key(self, kind: str, name: str) -> str:
        """The full name of a key."""
        return f"{self.prefix}{kind}:{name}"

    # ---- the request

    def keeping(self, generation_id: UUID, job: Job) -> Command:
        """The command that keeps the job, so that keeping and enqueueing cost one round trip."""
        return "SET", self.key("job", generation_id.hex), self._job_encoder.encode(job), "PX", RUN_TTL_MS

    async def keep_again(self, generation_id: UUID, job: Job) -> bool:
        """Keep the job of a generation if Redis has none; returns whether it had none. Raises `RedisError`."""
        command, key, encoded, *ttl = self.keeping(generation_id, job)
        async with in_time():
            return await self.redis.execute_command(command, key, encoded, *ttl, "NX") is not None  # type: ignore[no-untyped-call]

    async def jobs(self, ids: Sequence[UUID]) -> list[tuple[Job | None, Cancellation | None]]:
        """Each one's job, None when it has expired or Redis has lost it; and whether the generation is
        cancelled already.
        """
        keys = [self.key(kind, generation_id.hex) for kind in ("job", "cancelled") for generation_id in ids]
        found = await self._asking.call("MGET", *keys)
        jobs = [self._job(data) for data in found[: len(ids)]]
        return [
            (job, None if flag is None else _cancellation(flag))
            for job, flag in zip(jobs, found[len(ids) :], strict=True)
        ]

    def _job(self, data: bytes | None) -> Job | None:
        """One that can't be read must not keep those that are asked for with it from theirs: it is as good as
        lost.
        """
        try:
            return self._job_decoder.decode(data) if data else None
        except msgspec.DecodeError as error:
            log.error("a job can't be read: %s", error)
            return None

    # ---- deltas

    async def publish(self, entries: Sequence[Entry]) -> set[UUID]:
        """Write all entries in one round trip; answers the generations that a newer fence refused."""
        frames: dict[str, list[bytes]] = {}
        for entry in entries:
            frames.setdefault(entry.inbox, []).append(entry.frame())
        # One argument for all frames: redis-py's cost is by the argument.
        arguments = [part for inbox, own in frames.items() for part in (inbox, b"".join(own))]
        command = "EVALSHA", _PUBLISH_SHA1, 0, self.prefix, self._ttl_ms, *arguments
        try:
            refused = await self._publishing.call(*command)
        except NoScriptError:
            await self._publishing.call("SCRIPT", "LOAD", _PUBLISH)
            refused = await self._publishing.call(*command)
        return {UUID(id_hex.decode()) for id_hex in refused}

    async def read_inbox(self, name: str, *, after: bytes, block_ms: int) -> list[tuple[bytes, list[Frame]]]:
        """The inbox's entries behind the one named `after`, waiting for the first: their names and frames."""
        found = await self._reading.call(
            "XREAD", "COUNT", 64, "BLOCK", block_ms, "STREAMS", self.key("inbox", name), after
        )
        entries: list[tuple[bytes, tuple[bytes, bytes]]] = next(iter(found.values())) if found else []
        return [(entry_name, _frames(frames)) for entry_name, (_, frames) in entries]

    async def seal(self, generation_id: UUID, fence: int) -> Sealed:
        """Shut the log for every older fence and answer what it holds: what the client may have seen."""
        key = self.key("log", generation_id.hex)
        async with in_time(), self.redis.pipeline(transaction=True) as pipe:
            # Entry <fence>-0 comes before the holder's own deltas (their seq is at least 1) and carries no
            # batch.
            pipe.xadd(key, {"d": b""}, id=f"{fence}-0")
            pipe.pexpire(key, RUN_TTL_MS)
            await pipe.execute(raise_on_error=False)
        entries = [entry async for page in self._pages(key) for entry in page]
        try:
            batches = delta_log.batches(entries)
        except StreamUnavailable as error:
            # Another version has written it. Whoever seals it has to close the generation all the same.
            log.error("%s: %s", generation_id.hex, error)
            return Sealed([], delta_log.last_seq(entries), is_whole=False)
        held = [delta for _, batch in batches for delta in batch]
        first_seq = batches[0][0] if batches else 0
        return Sealed(held, max(0, first_seq - 1) + len(held), is_whole=first_seq == 1)

    async def _pages(self, key: str) -> AsyncIterator[list[delta_log.Entry]]:
        """The entries of a log from its first on. A long log at once would hold up Redis and this process's
        event loop.
        """
        start = b"-"
        page: list[delta_log.Entry] = [(b"", {})] * PAGE_ENTRIES
        while len(page) == PAGE_ENTRIES:
            async with in_time():
                page = cast(
                    list[delta_log.Entry], await self.redis.xrange(key, min=start, count=PAGE_ENTRIES)
                )
            yield page
            start = b"(" + page[-1][0] if page else b""

    async def replay(self, generation_id: UUID, after_seq: int = 0) -> list[AnyDelta]:
        """The deltas that the log holds after that seq; raises `StreamUnavailable` when Redis has lost some
        of them.
        """
        batches: list[tuple[int, list[AnyDelta]]] = []
        # Backwards, since a reader usually lacks the last ones only.
        async for page in self._pages_from_the_end(self.key("log", generation_id.hex)):
            batches = delta_log.batches(page) + batches
            if batches and batches[0][0] <= after_seq + 1:
                break
        last_seq = batches[-1][0] + len(batches[-1][1]) - 1 if batches else 0
        if last_seq < after_seq:
            raise StreamUnavailable("Redis has lost a part of the log")
        return delta_log.behind(after_seq, batches)

    async def _pages_from_the_end(self, key: str) -> AsyncIterator[list[delta_log.Entry]]:
        """The entries of a log, its last page first; each page in the order of the log."""
        end = b"+"
        page: list[delta_log.Entry] = [(b"", {})] * PAGE_ENTRIES
        while len(page) == PAGE_ENTRIES:
            async with in_time():
                page = cast(
                    list[delta_log.Entry], await self.redis.xrevrange(key, max=end, count=PAGE_ENTRIES)
                )
            page.reverse()
            yield page
            end = b"(" + page[0][0] if page else b""

    async def last_seq(self, generation_id: UUID) -> int:
        """The number of the last delta in the log; 0 when there is none."""
        async for page in self._pages_from_the_end(self.key("log", generation_id.hex)):
            if any(fields[b"d"] for _, fields in page):
                return delta_log.last_seq(page)
        return 0

    async def has_job(self, generation_id: UUID) -> bool:
        """Whether the end has yet to be published: the job goes in the same script."""
        async with in_time():
            return bool(await self.redis.exists(self.key("job", generation_id.hex)))

    async def has_log(self, generation_id: UUID) -> bool:
        """Whether anything of the log is still kept."""
        async with in_time():
            return bool(await self.redis.exists(self.key("log", generation_id.hex)))

    async def tail(
        self, generation_id: UUID, after: bytes, seq: int, *, most_entries: int = PAGE_ENTRIES
    ) -> tuple[bytes, list[AnyDelta]]:
        """What the log holds behind the entry named `after` (empty: from the start), of which the reader has
        the deltas up to `seq`.

        Answers the name of the last entry read, of so many at most, and the deltas. Raises
        `StreamUnavailable` when some of them are lost.
        """
        async with in_time():
            key, start = self.key("log", generation_id.hex), b"(" + after if after else b"-"
            entries = cast(list[delta_log.Entry], await self.redis.xrange(key, min=start, count=most_entries))
        return (entries[-1][0] if entries else after), delta_log.behind(seq, delta_log.batches(entries))

    # ---- what was said, afterwards

    async def lasting(self) -> AsyncIterator[set[UUID]]:
        """Page by page, the generations that are kept as if they were open, and may be; or else nobody has
        told their end.
        """
        cursor = None
        while cursor != b"0":
            async with in_time():
                cursor, found = await self.redis.eval(_LASTING, 0, cursor or 0, self.prefix, self._ttl_ms)
            yield {UUID(id_hex.decode()) for id_hex in found}

    async def forget(self, after_ms: Mapping[UUID, int]) -> None:
        """Drop the job of each of these generations now, and its log after so long, if that does not go
        sooner.
        """
        async with in_time(), self.redis.pipeline(transaction=False) as pipe:
            for generation_id, log_ms in after_ms.items():
                pipe.unlink(self.key("job", generation_id.hex))
                pipe.pexpire(self.key("log", generation_id.hex), log_ms, lt=True)
            await pipe.execute()

    # ---- nobody wants it

    async def cancel(self, generation_id: UUID, why: Cancellation, *, ttl_ms: int) -> None:
        """Tell whichever worker runs or will run the generation to stop it."""
        async with in_time(), self.redis.pipeline(transaction=False) as pipe:
            # Who asks to stop it often leaves at once: that must not take the wish back.
            pipe.set(
                self.key("cancelled", generation_id.hex),
                why.value,
                px=ttl_ms,
                nx=why is Cancellation.CLIENT_LEFT,
            )
            pipe.publish(f"{self.prefix}cancel", generation_id.bytes + why.value)
            await pipe.execute()

    async def cancelled_among(self, ids: Sequence[UUID]) -> dict[UUID, Cancellation]:
        """Those that are cancelled: for what the channel's message did not reach."""
        async with in_time():
            found = await self.redis.mget([self.key("cancelled", generation_id.hex) for generation_id in ids])
        return {
            generation_id: _cancellation(flag)
            for generation_id, flag in zip(ids, found, strict=True)
            if flag is not None
        }

    async def cancellations(self, worker: str = "") -> AsyncIterator[tuple[UUID, Cancellation]]:
        """Generations that are cancelled, as it happens; ends with `RedisError` when the connection is lost.

        The connection shows that this worker lives (`connected_workers`), because the kernel closes it when
        the process dies.
        """
        async with self.redis.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(f"{self.prefix}cancel", f"{self.prefix}worker:{worker}")
            async for message in channel.listen():
                yield UUID(bytes=message["data"][:16]), _cancellation(message["data"][16:])

    async def connected_workers(self) -> set[str]:
        """Return the names of all workers that listen for cancellations."""
        prefix = f"{self.prefix}worker:"
        async with in_time():
            channels = cast(list[bytes], await self.redis.pubsub_channels(f"{prefix}*"))
        return {channel.decode().removeprefix(prefix) for channel in channels}


def _cancellation(flag: bytes | str) -> Cancellation:
    """A word of a later version: whatever it means more exactly, the generation is to stop."""
    try:
        return Cancellation(flag)
    except ValueError:
        return Cancellation.ASKED


def _frames(data: bytes) -> list[Frame]:
    frames, at = [], 0
    while at < len(data):
        generation_id, _, first_seq, _, length = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        frames.append(Frame(generation_id, first_seq, data[at : at + length]))
        at += length
    return frames
