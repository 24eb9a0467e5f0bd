"""Publishes what all runs of the process produce: one flusher, one script call at a time, everything that has
come in each.

Two publishes in flight would reorder deltas, so there is only ever one; what comes meanwhile goes with the
next.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Protocol
from uuid import UUID

from redis.exceptions import RedisError

from accounts import loop_clock
from chatapi.delta_stream import DeltaStream, Entry
from chatapi.wire import deltas
from chatapi.wire.deltas import TERMINAL, AnyDelta, Audio, Reasoning, Refusal, Text, ToolCall
from usage.failpoints import failpoint

log = logging.getLogger(__name__)

TICK_S_PER_ENTRY = 0.000_25
MAX_TICK_S = 0.005
"""The more a publish carried, the longer until the next one: under load it carries more, at rest nothing
waits.
"""
MAX_CALL_BYTES, MAX_CALL_ENTRIES = 256 << 10, 128
"""What one script call writes, about: Redis serves nobody else meanwhile, for 2 to 5 ms. An entry is never
parted, and may be larger.
"""
MAX_ENTRY_DELTAS, MAX_ENTRY_CHARS = 256, 64 << 10
"""So much of a generation goes into an entry, but one delta at least: whoever reads an entry decodes and
writes it at once.
"""
LOGPROB_CHARS = 1_000
"""Of a token with twenty alternatives."""
MOST_IN_ORDER = 16
"""So many generations need no turns: a call holds them in nearly all cases."""
GIVE_UP_S = 4.0
"""As long as a web process bears it (`web/inbox.py`): what is published later, no client waits for."""
ATTEMPT_S = 2.0


class Source(Protocol):
    """A generation whose deltas are published: `worker/run.py` has the real one."""

    id: UUID
    organization_id: int
    fence: int
    inbox: str
    next_seq: int

    def fence_off(self) -> None:
        """Someone with a newer fence has taken over."""

    def lose_stream(self, given_up: Sequence[AnyDelta]) -> None:
        """These deltas could not be published."""


class Publisher:
    """Collects deltas by generation and writes them in ticks."""

    def __init__(self, stream: DeltaStream) -> None:
        self._stream = stream
        self._pending: dict[Source, list[AnyDelta]] = {}
        self._writing: dict[Source, list[AnyDelta]] = {}
        self._wake = asyncio.Event()
        self._tick: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def put(self, source: Source, batch: list[AnyDelta]) -> None:
        """Publish the batch (not empty) with the next tick."""
        self._pending.setdefault(source, []).extend(batch)
        self._wake.set()

    def is_behind(self, source: Source) -> bool:
        """Returns whether more deltas of this generation wait than one entry holds: its upstream is faster
        than Redis.
        """
        return len(self._pending.get(source, ())) > MAX_ENTRY_DELTAS

    async def caught_up(self, source: Source) -> None:
        """Returns when the publisher is no longer behind with this generation, or has given it up."""
        while self.is_behind(source):
            await asyncio.shield(self._tick)

    async def flushed(self, source: Source) -> None:
        """Return when all that this generation has put is published, or given up."""
        while source in self._pending or source in self._writing:
            await asyncio.shield(self._tick)

    async def drained(self) -> None:
        """Return when nothing is left to publish."""
        while self._pending or self._writing:
            await asyncio.shield(self._tick)

    async def run(self) -> None:
        """Flush for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            began = loop.time()
            entries = self._take()
            carried, is_too_much = len(self._writing), bool(self._pending)
            await self._flush(entries)
            if is_too_much:
                self._wake.set()
            self._writing = {}
            self._tick.set_result(None)
            self._tick = loop.create_future()
            await asyncio.sleep(
                0 if is_too_much else min(MAX_TICK_S, carried * TICK_S_PER_ENTRY) - (loop.time() - began)
            )

    async def _flush(self, entries: list[Entry]) -> None:
        try:
            failpoint("delta.before_publish")
            await self._write(entries)
            self._writing = {}  # from here on nothing of it can be lost
            failpoint("delta.after_publish")
            if any(entry.is_last for entry in entries):
                failpoint("terminal.after_publish")
        except Exception:
            # What can't be written must not be waited for, nor keep the others from being written.
            log.exception("could not publish the deltas of %d generations", len(self._writing))
            self._lose(list(self._writing))

    def _take(self) -> list[Entry]:
        """What the next call writes, in the order in which it came; what is too much for one waits behind
        what has not been looked at.

        A batch that can't be encoded is its own generation's loss and nobody else's.
        """
        entries: list[Entry] = []
        rests: dict[Source, list[AnyDelta]] = {}
        size = 0
        for source in self._in_turns():
            batch = self._pending.pop(source)
            end = _entry_end(batch)
            self._writing[source], rest = batch[:end], batch[end:]
            if rest:
                rests[source] = rest
            try:
                entry = _entry(source, self._writing[source])
            except Exception:
                log.exception("the deltas of %s can't be encoded", source.id.hex)
                rests.pop(source, None)
                source.lose_stream(batch)
                del self._writing[source]
                continue
            entries.append(entry)
            size += len(entry.batch)
            if size >= MAX_CALL_BYTES or len(entries) == MAX_CALL_ENTRIES:
                break
        self._pending |= rests
        return entries

    def _in_turns(self) -> list[Source]:
        """All that have put something, in the order in which they came; where one call may not hold them all,
        organizations in turn.
        """
        if len(self._pending) <= MOST_IN_ORDER:
            return list(self._pending)
        lines: dict[int, list[Source]] = {}
        for source in self._pending:
            lines.setdefault(source.organization_id, []).append(source)
        rounds = zip_longest(*lines.values())
        return [source for one_of_each in rounds for source in one_of_each if source is not None]

    def _lose(self, sources: Iterable[Source]) -> None:
        """Give up what these wanted to say, and what has come behind it. What may have been written keeps its
        numbers.
        """
        for source in sources:
            source.lose_stream([*self._writing.pop(source), *self._pending.pop(source, [])])

    async def _write(self, entries: list[Entry]) -> None:
        """Write, again and again while Redis is away; a repeated write is harmless (see `delta_stream`)."""
        give_up_at = loop_clock.monotonic() + GIVE_UP_S
        while True:
            try:
                async with loop_clock.timeout(ATTEMPT_S):
                    refused = await self._stream.publish(entries)
                break
            except (RedisError, OSError, TimeoutError) as error:
                log.warning("could not publish the deltas of %d generations: %r", len(entries), error)
                if loop_clock.monotonic() > give_up_at:
                    self._lose(list(self._writing))
                    return
                await asyncio.sleep(0.2)
        for source in self._writing:
            if source.id in refused:
                source.fence_off()


def _entry_end(batch: list[AnyDelta]) -> int:
    """How many of the deltas go into one entry."""
    if len(batch) == 1 or (
        len(batch) <= MAX_ENTRY_DELTAS and sum([_chars(each) for each in batch]) <= MAX_ENTRY_CHARS
    ):
        return len(batch)
    chars = 0
    for end, delta in enumerate(batch[:MAX_ENTRY_DELTAS]):
        chars += _chars(delta)
        if chars > MAX_ENTRY_CHARS:
            return max(1, end)
    return min(len(batch), MAX_ENTRY_DELTAS)


def _chars(delta: AnyDelta) -> int:
    """About how large it is."""
    if type(delta) is Text and delta.logprobs is None:  # what nearly every delta is
        return len(delta.text)
    match delta:
        case Text() | Refusal():
            return len(delta.text) + LOGPROB_CHARS * len(delta.logprobs or ())
        case Reasoning():
            return len(delta.text)
        case ToolCall():
            return len(delta.arguments)
        case Audio():
            return len(delta.data) + len(delta.transcript)
    return 0


def _entry(source: Source, batch: list[AnyDelta]) -> Entry:
    entry = Entry(
        source.id,
        source.fence,
        source.next_seq,
        deltas.encode(batch),
        source.inbox,
        is_last=isinstance(batch[-1], TERMINAL),
    )
    source.next_seq += len(batch)
    return entry
