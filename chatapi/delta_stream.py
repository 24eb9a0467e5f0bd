"""A generation's deltas in Redis: publish, follow, replay, cancel, seal.

    job:<id>            the request, for the worker; deleted with the terminal delta
    state:<id>          what later requests may refer to; lives as long as the log
    log:<id>            stream, the record: one entry per batch, named `<fence>-<first seq>`; outlives the end
    inbox:<name>        stream, one per web process: the deltas of all its clients, one entry per tick
    unstored            sorted set: responses that are to be stored in the database, by when to look at them
    cancelled:<id>      the generation is cancelled; the channel `cancel` says so at once
    channel `worker:<name>`    its subscriber is that worker's connection, which shows that it lives

Redis refuses a log entry whose name is not above the last one, and that is the fence: once the reaper has
sealed a log under a newer fence, entries of an older holder are refused, and the same script keeps them out
of the inbox. It also makes a repeated write harmless. Deltas carry consecutive numbers (seq, from 1); a
reader that sees a gap reads the log.
"""

import hashlib
import logging
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, cast
from uuid import UUID

import msgspec
from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from accounts.redis_time_limit import in_time
from chatapi.presence import INBOX_TTL_MS
from chatapi.redis_client import Command, DedicatedConnection
from chatapi.wire import deltas
from chatapi.wire.deltas import AnyDelta, Failed

log = logging.getLogger(__name__)

# How long a job and its log live without an end: longer than `models.MAX_TIMEOUT_MS`.
RUN_TTL_MS = 26 * 3_600_000
# The most entries of a log that are read at once.
PAGE_ENTRIES = 256

# The end of a cancelled generation's stream, which must not look like a good end.
CANCELLED = Failed(
    "The request was cancelled. What was generated is charged; see the receipt.", code="cancelled", status=409
)
# The end when the worker has died, from the reaper or from the client's own web process.
WORKER_LOST = Failed(
    "The worker was lost while it generated. What was generated is charged; see the receipt.",
    code="worker_lost",
    status=502,
)
# The end when the time in the queue is over.
NOT_STARTED = Failed(
    "No worker was free in time. Nothing was charged; try again.",
    code="queue_timeout",
    status=503,
    retry_after_ms=1_000,
)

# Generation in hex, fence, first seq, 1 for a generation's last batch, length of the batch that follows.
_FRAME = struct.Struct(">32sQIBI")

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
    -- If the job is already deleted, only shorten the expiry of the log, never extend it.
    local is_kept = redis.call('UNLINK', prefix .. 'job:' .. id) == 1
    for _, kept in ipairs({key, prefix .. 'state:' .. id}) do
      redis.call('PEXPIRE', kept, ARGV[2], unpack(is_kept and {} or {'LT'}))
    end
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

# ARGV: cursor, prefix of all keys, how long a log outlives its end. Returns the next cursor, and the
# generations whose keys are kept as if they were open.
_LASTING = """
local page, prefix, found = redis.call('SCAN', ARGV[1], 'COUNT', 100), ARGV[2], {}
for _, key in ipairs(page[2]) do
  local kind, id = string.match(string.sub(key, #prefix + 1), '^(%l+):(%x+)$')
  local is_ours = string.sub(key, 1, #prefix) == prefix and id and #id == 32
  if is_ours and (kind == 'job' or kind == 'log' and redis.call('PTTL', key) > tonumber(ARGV[3])) then
    found[#found + 1] = id
  end
end
return {page[1], found}
"""

# ARGV: how many, for how long they are left to the caller. Returns the members that are due.
_TO_STORE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
for _, id in ipairs(due) do redis.call('ZADD', KEYS[1], now + ARGV[2], id) end
return due
"""
# How long the responses to be stored are left to the process that has asked for them.
STORING_MS = 2_000


class Cancellation(Enum):
    """Why a generation is to stop."""

    CLIENT_LEFT = b"left"
    """The client has left; a deployment may let the generation run on."""
    ASKED = b"asked"
    """The client asked for it: the stream gets a normal end with the usage."""
    STOPPED = b"stopped"
    """An operator stops it: the stream must not look like the whole answer."""

    @classmethod
    def _missing_(cls, value: object) -> "Cancellation":
        return cls.ASKED  # what another version calls it


class Job(msgspec.Struct, frozen=True, array_like=True):
    """What the web process hands to the worker besides the id."""

    inbox: str
    """Where the answer goes; empty for the log alone."""
    request: bytes
    runs_on: bool = False
    """The generation is finished even if its client leaves: a client will come back for the answer."""
    is_not_kept: object = None
    """True: there was no room for the request's state. Other values, of earlier releases, mean nothing."""


class Entry(msgspec.Struct, frozen=True):
    """A batch on its way to Redis: the deltas `first_seq…` of one generation, under its holder's fence."""

    id: UUID
    fence: int
    first_seq: int
    batch: bytes
    inbox: str = ""
    is_last: bool = False

    def frame(self) -> bytes:
        """Return the entry as `_PUBLISH` reads it."""
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
    fence: int = 0

    @property
    def name(self) -> bytes:
        """The name of its entry in the log."""
        return b"%d-%d" % (self.fence, self.first_seq)


# As Redis returns it: its name, `<fence>-<first seq>`, and its fields.
LogEntry = tuple[bytes, dict[bytes, bytes]]


class StreamUnavailable(Exception):
    """Redis can't be reached, or has lost what should be there."""


class Batch(NamedTuple):
    """Consecutive deltas, and the number of the first one."""

    first_seq: int
    deltas: list[AnyDelta]

    @property
    def last_seq(self) -> int:
        """The number of the last one."""
        return self.first_seq + len(self.deltas) - 1


class Sealed(msgspec.Struct, frozen=True):
    """The content of a sealed log."""

    deltas: list[AnyDelta]
    last_seq: int
    is_whole: bool
    """False when its beginning is missing: nothing was published, Redis has lost it, or another version has
    written it.
    """


class DeltaStream:
    """The Redis side of all generations of a process."""

    def __init__(self, redis: Redis, prefix: str, *, ttl_ms: int) -> None:
        """`ttl_ms`: how long a log outlives its generation's end, for clients that resume."""
        self.redis = redis
        self.prefix = prefix
        self._ttl_ms = ttl_ms
        # A connection each: a read that waits must not hold up what is published.
        self._publishing, self._reading, self._asking = (
            DedicatedConnection(redis),
            DedicatedConnection(redis),
            DedicatedConnection(redis),
        )
        self._job_encoder = msgspec.msgpack.Encoder()
        self._job_decoder = msgspec.msgpack.Decoder(Job)

    def key(self, kind: str, name: str) -> str:
        return f"{self.prefix}{kind}:{name}"

    # ---- the request

    def keeping(self, generation_id: UUID, job: Job) -> Command:
        """Return the command that keeps the job, so that keeping and enqueueing cost one round trip."""
        return "SET", self.key("job", generation_id.hex), self._job_encoder.encode(job), "PX", RUN_TTL_MS

    async def keep_again(self, generation_id: UUID, job: Job) -> bool:
        """Keep the job if Redis has none; return whether it had none. Raises `RedisError`."""
        command, key, encoded, *ttl = self.keeping(generation_id, job)
        async with in_time():
            kept = await cast(Any, self.redis).execute_command(command, key, encoded, *ttl, "NX")
        return kept is not None

    async def jobs(self, ids: Sequence[UUID]) -> list[tuple[Job | None, Cancellation | None]]:
        """Return each generation's job (None: Redis has lost it) and its cancellation, if any."""
        keys = [self.key(kind, generation_id.hex) for kind in ("job", "cancelled") for generation_id in ids]
        found = await self._asking.call("MGET", *keys)
        jobs = [self._job(data) for data in found[: len(ids)]]
        return [
            (job, None if flag is None else Cancellation(flag))
            for job, flag in zip(jobs, found[len(ids) :], strict=True)
        ]

    def _job(self, data: bytes | None) -> Job | None:
        try:
            return self._job_decoder.decode(data) if data else None
        except msgspec.DecodeError as error:  # as good as lost; it must not fail those that are read with it
            log.error("a job can't be read: %s", error)
            return None

    # ---- what later requests refer to

    def keeping_state(self, generation_id: UUID, state: bytes) -> Command:
        """Return the command that keeps the state, until it expires with the generation's log."""
        return "SET", self.key("state", generation_id.hex), state, "PX", RUN_TTL_MS

    async def state(self, generation_id: UUID) -> bytes | None:
        """Return the generation's state, if there is one."""
        async with in_time():
            return cast(bytes | None, await self.redis.get(self.key("state", generation_id.hex)))

    async def delete(self, generation_id: UUID, *, has_ended: bool) -> None:
        """Delete the generation's state, and its log if it has ended; it is not to be stored any more."""
        kinds = ("state", "log") if has_ended else ("state",)
        async with in_time(), self.redis.pipeline(transaction=True) as pipe:
            pipe.zrem(f"{self.prefix}unstored", generation_id.hex)
            pipe.unlink(*(self.key(kind, generation_id.hex) for kind in kinds))
            await pipe.execute()

    # ---- responses that are to be stored in the database

    def remembering_to_store(self, generation_id: UUID) -> Command:
        """Return the command that lists the generation's response as one to be stored."""
        return "ZADD", f"{self.prefix}unstored", 0, generation_id.hex

    async def responses_to_store(self, limit: int) -> list[UUID]:
        """Return responses that are to be stored, and leave them to this caller for `STORING_MS`."""
        async with in_time():
            found = await self.redis.eval(_TO_STORE, 1, f"{self.prefix}unstored", limit, STORING_MS)
        return [UUID(id_hex.decode()) for id_hex in found]

    async def forget_to_store(self, generation_id: UUID) -> bool:
        """Take the response off that list; return whether it was there: a deletion takes it off, too."""
        async with in_time():
            return bool(await self.redis.zrem(f"{self.prefix}unstored", generation_id.hex))

    # ---- deltas

    async def publish(self, entries: Sequence[Entry]) -> set[UUID]:
        """Write all entries in one round trip; return the generations that a newer fence refused."""
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
        """Return names and frames of the inbox's entries behind `after`; wait for the first."""
        found = await self._reading.call(
            "XREAD", "COUNT", 64, "BLOCK", block_ms, "STREAMS", self.key("inbox", name), after
        )
        entries: list[tuple[bytes, tuple[bytes, bytes]]] = next(iter(found.values())) if found else []
        return [(entry_name, _frames(frames)) for entry_name, (_, frames) in entries]

    async def seal(self, generation_id: UUID, fence: int) -> Sealed:
        """Close the log for every older fence; return what it holds, which clients may have seen."""
        key = self.key("log", generation_id.hex)
        async with in_time(), self.redis.pipeline(transaction=True) as pipe:
            # A seal that is repeated is refused by its name, and harmless.
            # Entry <fence>-0 comes before the new holder's own entries (seq is at least 1) and has no batch.
            pipe.xadd(key, {"d": b""}, id=f"{fence}-0")
            pipe.pexpire(key, RUN_TTL_MS)
            await pipe.execute(raise_on_error=False)
        entries = [entry async for page in self._pages(generation_id) for entry in page]
        try:
            held = _batches(entries)
        except StreamUnavailable as error:  # the generation has to be closed all the same
            log.error("%s: %s", generation_id.hex, error)
            return Sealed([], _last_seq(entries), is_whole=False)
        first_seq = held[0].first_seq if held else 0
        found = [delta for batch in held for delta in batch.deltas]
        return Sealed(found, max(0, first_seq - 1) + len(found), is_whole=first_seq == 1)

    async def replay(self, generation_id: UUID, after_seq: int = 0) -> list[AnyDelta]:
        """Return the deltas that the log holds after `after_seq`; raises `StreamUnavailable` when some of
        them are lost, or the log ends before `after_seq`.
        """
        batches: list[Batch] = []
        # Backwards, because a reader usually lacks only the last ones.
        async for page in self._pages(generation_id, is_backwards=True):
            batches = _batches(page[::-1]) + batches
            if batches and batches[0].first_seq <= after_seq + 1:
                break
        if (batches[-1].last_seq if batches else 0) < after_seq:
            raise StreamUnavailable("Redis has lost a part of the log")
        return _behind(after_seq, batches)

    async def tail(
        self, generation_id: UUID, after: bytes, seq: int, *, most_entries: int = PAGE_ENTRIES
    ) -> tuple[bytes, list[AnyDelta]]:
        """Read the log behind the entry named `after` (empty: from its start) for a reader that has the
        deltas up to `seq`.

        Returns the name of the last entry read and the new deltas. Raises `StreamUnavailable` when some are
        lost.
        """
        key, start = self.key("log", generation_id.hex), b"(" + after if after else b"-"
        async with in_time():
            entries = cast(list[LogEntry], await self.redis.xrange(key, start, "+", most_entries))
        return (entries[-1][0] if entries else after), _behind(seq, _batches(entries))

    async def last_seq(self, generation_id: UUID) -> int:
        """Return the number of the last delta in the log; 0 when there is none."""
        async for page in self._pages(generation_id, is_backwards=True):
            if last_seq := _last_seq(page[::-1]):
                return last_seq
        return 0

    async def _pages(
        self, generation_id: UUID, *, is_backwards: bool = False
    ) -> AsyncIterator[list[LogEntry]]:
        """Yield all entries of the log, page by page, in the order read."""
        # To read a long log at once would hold up Redis and this process's event loop.
        key, start = self.key("log", generation_id.hex), b"+" if is_backwards else b"-"
        end, read = (b"-", self.redis.xrevrange) if is_backwards else (b"+", self.redis.xrange)
        while start:
            async with in_time():
                page = cast(list[LogEntry], await read(key, start, end, PAGE_ENTRIES))
            yield page
            start = b"(" + page[-1][0] if len(page) == PAGE_ENTRIES else b""

    async def has_job(self, generation_id: UUID) -> bool:
        """Return whether the terminal delta is still to be published: the same script deletes the job."""
        return await self._has("job", generation_id)

    async def has_log(self, generation_id: UUID) -> bool:
        """Return whether any part of the log is still kept."""
        return await self._has("log", generation_id)

    async def _has(self, kind: str, generation_id: UUID) -> bool:
        async with in_time():
            return bool(await self.redis.exists(self.key(kind, generation_id.hex)))

    # ---- garbage collection

    async def lasting(self) -> AsyncIterator[set[UUID]]:
        """Yield, page by page, the generations whose terminal delta was not published, or not yet."""
        cursor = None
        while cursor != b"0":
            async with in_time():
                cursor, found = await self.redis.eval(_LASTING, 0, cursor or 0, self.prefix, self._ttl_ms)
            yield {UUID(id_hex.decode()) for id_hex in found}

    async def forget(self, after_ms: Mapping[UUID, int]) -> None:
        """Delete the jobs of these generations, and their logs after that time unless they expire sooner."""
        async with in_time(), self.redis.pipeline(transaction=False) as pipe:
            for generation_id, log_ms in after_ms.items():
                pipe.unlink(self.key("job", generation_id.hex))
                for kind in ("log", "state"):
                    pipe.pexpire(self.key(kind, generation_id.hex), log_ms, lt=True)
            await pipe.execute()

    # ---- cancellation

    async def cancel(self, generation_id: UUID, why: Cancellation, *, ttl_ms: int) -> None:
        """Tell the worker that runs the generation, or will, to stop it."""
        key = self.key("cancelled", generation_id.hex)
        async with in_time(), self.redis.pipeline(transaction=False) as pipe:
            # A client that asks to stop often leaves at once: that must not replace its request.
            pipe.set(key, why.value, px=ttl_ms, nx=why is Cancellation.CLIENT_LEFT)
            pipe.publish(f"{self.prefix}cancel", generation_id.bytes + why.value)
            await pipe.execute()

    async def cancelled_among(self, ids: Sequence[UUID]) -> dict[UUID, Cancellation]:
        """Return those that are cancelled, for workers that the channel's message did not reach."""
        async with in_time():
            found = await self.redis.mget([self.key("cancelled", generation_id.hex) for generation_id in ids])
        return {
            generation_id: Cancellation(flag)
            for generation_id, flag in zip(ids, found, strict=True)
            if flag is not None
        }

    async def cancellations(self, worker: str = "") -> AsyncIterator[tuple[UUID, Cancellation]]:
        """Yield generations as they are cancelled; raises `RedisError` when the connection is lost."""
        # The connection shows that this worker lives (`connected_workers`), because the kernel closes it when
        # the process dies.
        async with self.redis.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(f"{self.prefix}cancel", f"{self.prefix}worker:{worker}")
            async for message in channel.listen():
                yield UUID(bytes=message["data"][:16]), Cancellation(message["data"][16:])

    async def connected_workers(self) -> set[str]:
        """Return the names of all workers that listen for cancellations."""
        prefix = f"{self.prefix}worker:"
        async with in_time():
            channels = cast(list[bytes], await self.redis.pubsub_channels(f"{prefix}*"))
        return {channel.decode().removeprefix(prefix) for channel in channels}


def _frames(data: bytes) -> list[Frame]:
    frames, at = [], 0
    while at < len(data):
        generation_id, fence, first_seq, _, length = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        frames.append(Frame(generation_id, first_seq, data[at : at + length], fence))
        at += length
    return frames


def _batches(entries: Sequence[LogEntry]) -> list[Batch]:
    """Decode the entries, without seals. Raises `StreamUnavailable` for a batch of another version."""
    try:
        return [
            Batch(_first_seq(name), deltas.decode(fields[b"d"])) for name, fields in entries if fields[b"d"]
        ]
    except msgspec.DecodeError as error:
        raise StreamUnavailable(f"the log can't be read: {error}") from error


def _behind(seq: int, held: Sequence[Batch]) -> list[AnyDelta]:
    """Return the deltas after that number, in order; raises `StreamUnavailable` when some are lost."""
    found: list[AnyDelta] = []
    for first_seq, batch in held:
        known = seq + len(found)
        # Right before a failure some may be missing: deltas that a worker could not publish cost nothing, and
        # the failure is their end.
        if first_seq > known + 1 and not isinstance(batch[0], Failed):
            raise StreamUnavailable("Redis has lost a part of the log")
        found += batch[max(0, known + 1 - first_seq) :]
    return found


def _last_seq(entries: Sequence[LogEntry]) -> int:
    """Return the number of the last delta; 0 if there is none. Another version's batches are counted, too."""
    name, batch = next(
        ((name, fields[b"d"]) for name, fields in reversed(entries) if fields[b"d"]), (b"", b"")
    )
    if not batch:
        return 0
    try:
        return _first_seq(name) + len(msgspec.msgpack.decode(batch, type=list[msgspec.Raw])) - 1
    except msgspec.DecodeError:
        return _first_seq(name)


def _first_seq(name: bytes) -> int:
    return int(name.partition(b"-")[2])
