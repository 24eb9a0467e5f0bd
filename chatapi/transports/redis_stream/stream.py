"""The delta streams of one Redis; the package's docstring lists the keys."""

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, cast
from uuid import UUID

import msgspec
from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from chatapi.delta_stream import (
    RUN_TTL_MS,
    Batch,
    Cancellation,
    Entry,
    Frame,
    Job,
    KeepAndEnqueue,
    KeptRequest,
    LogEntry,
    Rest,
    Sealed,
    Signs,
    StreamLost,
    StreamUnavailable,
)
from chatapi.delta_stream.entries import batches_of, deltas_behind, frames_of, last_seq_of, place_of
from chatapi.redis_client import Command, DedicatedConnection
from chatapi.transports.redis_stream import scripts
from chatapi.transports.redis_stream.errors import in_time, redis_errors
from chatapi.transports.redis_stream.presence import RedisPresence, signs

log = logging.getLogger(__name__)

# The most entries of a log that are read at once.
PAGE_ENTRIES = 256
# The least and the most entries of an inbox that are read at once. An entry has up to 256 KiB. If the last
# read found small ones, the next reads as many as have about `INBOX_BYTES`, enough to wake a thousand
# streams: each worker writes its own entries, and a late process must catch up.
INBOX_ENTRIES, MOST_INBOX_ENTRIES = 8, 32
INBOX_BYTES = 64 << 10

# The approximate size of one read of several logs, and the most entries of each.
LOGS_BYTES, MOST_LOG_ENTRIES = 256 << 10, 32

# How many generations are cancelled in one round trip; Redis takes a millisecond for them.
CANCELLED_AT_ONCE = 64

# How long responses to store are reserved for the process that has fetched their ids.
STORING_MS = 2_000

# After this silence a listener pings the server, and waits as long for the answer.
SILENT_S = 3.0


class RedisStream:
    """A `DeltaStream` in Redis; its methods are described there."""

    def __init__(self, redis: Redis, prefix: str, *, url: str, ttl_ms: int, queue_ttl_ms: int = 0) -> None:
        """`url`: of the same Redis, for the thread of `presence`. `ttl_ms`: how long a log outlives its
        generation's end, for clients that resume. `queue_ttl_ms`: how long a request may wait for a worker.
        """
        self._redis = redis
        self._prefix = prefix
        self._url = url
        self._ttl_ms = ttl_ms
        self._request_ttl_ms = queue_ttl_ms + RUN_TTL_MS
        # Separate connections: a read that waits must not delay a write.
        connections = [DedicatedConnection(redis) for _ in range(5)]
        self._keeping, self._publishing, self._reading, self._following, self._asking = connections
        self._inbox_entries = INBOX_ENTRIES
        self._log_entry_bytes = LOGS_BYTES
        self._job_encoder = msgspec.msgpack.Encoder()
        self._job_decoder = msgspec.msgpack.Decoder(Job)

    def key(self, kind: str, name: str) -> str:
        return f"{self._prefix}{kind}:{name}"

    async def ping(self, within_s: float) -> None:
        async with in_time(within_s):
            await self._redis.ping()

    async def aclose(self) -> None:
        await self._redis.aclose()

    # ---- the request

    async def keep(self, requests: Sequence[KeptRequest], *commands: Command) -> None:
        """Keep the requests, then execute a queue's commands on the same server, all in one round trip."""
        keeping = [command for each in requests for command in self._commands_of(each)]
        with redis_errors():
            await self._keeping.calls([*keeping, *commands])

    def keep_and_enqueue(self, broker_url: str) -> KeepAndEnqueue | None:
        return self.keep if self._url == broker_url else None

    async def keep_again(self, request: KeptRequest) -> bool:
        keeping_job, *others = self._commands_of(request)
        async with in_time():
            kept = await cast(Any, self._redis).execute_command(*keeping_job, "NX")
            for command in others if kept is not None else ():
                await cast(Any, self._redis).execute_command(*command)
        return kept is not None

    def _commands_of(self, request: KeptRequest) -> Iterator[Command]:
        id_hex, ttl = request.generation_id.hex, ("PX", self._request_ttl_ms)
        yield "SET", self.key("job", id_hex), self._job_encoder.encode(request.job), *ttl
        if request.state:
            yield "SET", self.key("state", id_hex), request.state, *ttl
        if request.state and request.stores_response:
            yield "ZADD", f"{self._prefix}unstored", 0, id_hex

    async def jobs(self, ids: Sequence[UUID]) -> list[tuple[Job | None, Cancellation | None]]:
        keys = [self.key(kind, generation_id.hex) for kind in ("job", "cancelled") for generation_id in ids]
        with redis_errors():
            found = await self._asking.call("MGET", *keys)
        # Each is freed once it is decoded: a large one must not stay in memory beside the decoded others.
        jobs = [self._job(found.pop(0)) for _ in ids]
        return [
            (job, None if flag is None else Cancellation(flag)) for job, flag in zip(jobs, found, strict=True)
        ]

    def _job(self, data: bytes | None) -> Job | None:
        try:
            return self._job_decoder.decode(data) if data else None
        except msgspec.DecodeError as error:  # treated as lost: it must not fail the others of the same read
            log.error("a job can't be read: %s", error)
            return None

    # ---- the state, to which later requests refer

    async def state(self, generation_id: UUID) -> bytes | None:
        async with in_time():
            return cast(bytes | None, await self._redis.get(self.key("state", generation_id.hex)))

    async def delete(self, generation_id: UUID, *, has_ended: bool) -> None:
        id_hex, ttl_ms = generation_id.hex, self._ttl_ms if has_ended else self._request_ttl_ms
        keys = [self.key("state", id_hex), f"{self._prefix}unstored"]
        keys += [self.key("log", id_hex)] if has_ended else []
        async with in_time():
            await self._redis.eval(scripts.DELETE, len(keys), *keys, ttl_ms, id_hex)

    # ---- responses to store in the database

    async def responses_to_store(self, limit: int) -> list[UUID]:
        async with in_time():
            found = await self._redis.eval(scripts.TO_STORE, 1, f"{self._prefix}unstored", limit, STORING_MS)
        return [UUID(id_hex.decode()) for id_hex in found]

    async def forget_to_store(self, generation_id: UUID) -> None:
        async with in_time():
            await self._redis.zrem(f"{self._prefix}unstored", generation_id.hex)

    # ---- deltas

    async def publish(self, entries: Sequence[Entry]) -> set[UUID]:
        frames: dict[str, list[bytes]] = {}
        for entry in entries:
            frames.setdefault(entry.inbox, []).append(entry.frame())
        # One argument for all frames: redis-py's cost grows with the number of arguments.
        arguments = [part for inbox, own in frames.items() for part in (inbox, b"".join(own))]
        command = "EVALSHA", scripts.PUBLISH_SHA1, 0, self._prefix, self._ttl_ms, *arguments
        with redis_errors():
            try:
                refused = await self._publishing.call(*command)
            except NoScriptError:
                await self._publishing.call("SCRIPT", "LOAD", scripts.PUBLISH)
                refused = await self._publishing.call(*command)
        return {UUID(id_hex.decode()) for id_hex in refused}

    async def read_inbox(self, name: str, *, after: bytes, block_ms: int) -> list[tuple[bytes, list[Frame]]]:
        key = self.key("inbox", name)
        # The next read is small, unless this one finds small entries: a read that timed out must not be
        # repeated at the same size.
        count, self._inbox_entries = self._inbox_entries, INBOX_ENTRIES
        with redis_errors():
            found = await self._reading.call(
                "XREAD", "COUNT", count, "BLOCK", block_ms, "STREAMS", key, after or b"0"
            )
        entries: list[tuple[bytes, tuple[bytes, bytes]]] = next(iter(found.values())) if found else []
        if entries:
            fitting = len(entries) * INBOX_BYTES // sum(len(frames) for _, (_, frames) in entries)
            self._inbox_entries = max(INBOX_ENTRIES, min(fitting, MOST_INBOX_ENTRIES))
        return [(entry_name, frames_of(frames)) for entry_name, (_, frames) in entries]

    async def read_logs(
        self, after: Mapping[UUID, bytes], *, block_ms: int | None
    ) -> dict[UUID, list[Frame]]:
        keys = {self.key("log", generation_id.hex).encode(): generation_id for generation_id in after}
        # As in `read_inbox`: few entries, unless the read before found small ones.
        entry_bytes, self._log_entry_bytes = self._log_entry_bytes, LOGS_BYTES
        count = max(1, min(LOGS_BYTES // entry_bytes // len(keys), MOST_LOG_ENTRIES))
        waiting: tuple[str | int, ...] = () if block_ms is None else ("BLOCK", block_ms)
        positions = [name or b"0" for name in after.values()]
        with redis_errors():
            found = await self._following.call(
                "XREAD", "COUNT", count, *waiting, "STREAMS", *keys, *positions
            )
        logs = {
            keys[key]: [_log_frame(name, batch) for name, (_, batch) in entries]
            for key, entries in (found or {}).items()
        }
        if sizes := [len(frame.batch) for frames in logs.values() for frame in frames]:
            self._log_entry_bytes = max(1, sum(sizes) // len(sizes))
        return logs

    def presence(
        self, name: str, *, read_up_to: Callable[[], bytes], is_unknown: Callable[[], None]
    ) -> RedisPresence:
        return RedisPresence(self._url, self._prefix, name, read_up_to=read_up_to, is_unknown=is_unknown)

    async def signs_of_life(self, inboxes: Sequence[str]) -> Signs:
        return await signs(self._redis, self._prefix, inboxes)

    async def seal(self, generation_id: UUID, fence: int) -> Sealed:
        key = self.key("log", generation_id.hex)
        async with in_time(), self._redis.pipeline(transaction=True) as pipe:
            # A repeated seal is harmless: Redis refuses its name when it executes the transaction. A full or
            # read-only Redis refuses all of the transaction, and redis-py raises that in any case.
            # Entry <fence>-0 comes before the new holder's own entries (seq is at least 1) and has no batch.
            pipe.xadd(key, {"d": b""}, id=f"{fence}-0")
            pipe.pexpire(key, RUN_TTL_MS)
            await pipe.execute(raise_on_error=False)
        entries = [entry async for page in self._pages(generation_id) for entry in page]
        try:
            held = batches_of(entries)
        except StreamLost as error:  # the generation must be closed all the same
            log.error("%s: %s", generation_id.hex, error)
            return Sealed([], is_whole=False)
        found = [delta for batch in held for delta in batch.deltas]
        return Sealed(found, is_whole=bool(held) and held[0].first_seq == 1)

    async def replay(self, generation_id: UUID, after_seq: int = 0) -> Rest:
        batches: list[Batch] = []
        # Backwards, because a reader usually lacks only the last batches.
        async for page in self._pages(generation_id, is_backwards=True):
            batches = batches_of(page[::-1]) + batches
            if batches and batches[0].first_seq <= after_seq + 1:
                break
        if (batches[-1].last_seq if batches else 0) < after_seq:
            raise StreamLost("a part of the log is lost")
        return deltas_behind(after_seq, batches)

    async def tail(
        self, generation_id: UUID, after: bytes, seq: int, *, most_entries: int = PAGE_ENTRIES
    ) -> tuple[bytes, Rest]:
        key, start = self.key("log", generation_id.hex), b"(" + after if after else b"-"
        async with in_time():
            entries = cast(list[LogEntry], await self._redis.xrange(key, start, "+", most_entries))
        return (entries[-1][0] if entries else after), deltas_behind(seq, batches_of(entries))

    async def last_seq(self, generation_id: UUID) -> int:
        async for page in self._pages(generation_id, is_backwards=True):
            if last_seq := last_seq_of(page[::-1]):
                return last_seq
        return 0

    async def _pages(
        self, generation_id: UUID, *, is_backwards: bool = False
    ) -> AsyncIterator[list[LogEntry]]:
        """Yield all entries of the log, page by page, in the order of reading."""
        # Reading a long log at once would block Redis and this process's event loop.
        key, start = self.key("log", generation_id.hex), b"+" if is_backwards else b"-"
        end, read = (b"-", self._redis.xrevrange) if is_backwards else (b"+", self._redis.xrange)
        while start:
            async with in_time():
                page = cast(list[LogEntry], await read(key, start, end, PAGE_ENTRIES))
            yield page
            start = b"(" + page[-1][0] if len(page) == PAGE_ENTRIES else b""

    async def has_job(self, generation_id: UUID) -> bool:
        return await self._has("job", generation_id)

    async def has_log(self, generation_id: UUID) -> bool:
        return await self._has("log", generation_id)

    async def _has(self, kind: str, generation_id: UUID) -> bool:
        async with in_time():
            return bool(await self._redis.exists(self.key(kind, generation_id.hex)))

    # ---- garbage collection

    async def lasting(self) -> AsyncIterator[set[UUID]]:
        cursor = None
        while cursor != b"0":
            async with in_time():
                cursor, found = await self._redis.eval(
                    scripts.LASTING, 0, cursor or 0, self._prefix, self._ttl_ms
                )
            yield {UUID(id_hex.decode()) for id_hex in found}

    async def forget(self, after_ms: Mapping[UUID, int]) -> None:
        async with in_time(), self._redis.pipeline(transaction=False) as pipe:
            for generation_id, log_ms in after_ms.items():
                pipe.unlink(self.key("job", generation_id.hex))
                for kind in ("log", "state"):
                    pipe.pexpire(self.key(kind, generation_id.hex), log_ms, lt=True)
            await pipe.execute()

    # ---- cancellation

    async def cancel(self, generation_id: UUID, why: Cancellation, *, ttl_ms: int) -> None:
        await self.cancel_all([(generation_id, why)], ttl_ms=ttl_ms)

    async def cancel_all(self, cancellations: Sequence[tuple[UUID, Cancellation]], *, ttl_ms: int) -> None:
        for start in range(0, len(cancellations), CANCELLED_AT_ONCE):
            async with in_time(), self._redis.pipeline(transaction=False) as pipe:
                for generation_id, why in cancellations[start : start + CANCELLED_AT_ONCE]:
                    key = self.key("cancelled", generation_id.hex)
                    # A client that asks to stop often leaves at once; its leaving must not replace `ASKED`.
                    pipe.set(key, why.value, px=ttl_ms, nx=why is Cancellation.CLIENT_LEFT)
                    pipe.publish(f"{self._prefix}cancel", generation_id.bytes + why.value)
                await pipe.execute()

    async def cancelled_among(self, ids: Sequence[UUID]) -> dict[UUID, Cancellation]:
        async with in_time():
            found = await self._redis.mget(
                [self.key("cancelled", generation_id.hex) for generation_id in ids]
            )
        return {
            generation_id: Cancellation(flag)
            for generation_id, flag in zip(ids, found, strict=True)
            if flag is not None
        }

    async def cancellations(self, worker: str = "") -> AsyncIterator[tuple[UUID, Cancellation]]:
        # The connection shows that this worker lives, because the kernel closes it when the process dies.
        with redis_errors():
            async with self._redis.pubsub() as channel:
                async with in_time():
                    await channel.subscribe(f"{self._prefix}cancel", f"{self._prefix}worker:{worker}")
                is_asked = False
                while True:
                    # redis-py may connect again in this block, and waits for the greeting.
                    async with in_time(SILENT_S + 0.5):
                        message = await channel.get_message(timeout=SILENT_S)
                        if message is None and not is_asked:
                            # A machine that loses its power closes no connection: without a ping, this would
                            # wait for ever.
                            await channel.ping()
                    if message is None and is_asked:
                        raise StreamUnavailable("the server of the cancellations does not answer")
                    is_asked = message is None
                    if message is not None and message["type"] == "message":
                        yield UUID(bytes=message["data"][:16]), Cancellation(message["data"][16:])

    async def connected_workers(self) -> set[str]:
        prefix = f"{self._prefix}worker:"
        async with in_time():
            channels = cast(list[bytes], await self._redis.pubsub_channels(f"{prefix}*"))
        return {channel.decode().removeprefix(prefix) for channel in channels}


def _log_frame(name: bytes, batch: bytes) -> Frame:
    fence, first_seq = place_of(name)
    return Frame(b"", first_seq, batch, fence)
