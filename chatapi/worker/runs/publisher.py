"""Publishes the deltas of all runs of the process, in one script call at a time.

Two calls in flight would reorder deltas. Deltas that arrive during a call go with the next one.
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, zip_longest
from typing import Protocol
from uuid import UUID

from accounts import loop_clock
from chatapi.delta_stream import DeltaStream, Entry, StreamUnavailable, in_time
from chatapi.wire import deltas
from chatapi.wire.deltas import TERMINAL, AnyDelta
from usage.failpoints import failpoint

log = logging.getLogger(__name__)

TICK_S_PER_ENTRY = 0.000_25
# The pause after a call grows with its entries: under load a call carries more, at rest nothing waits.
MAX_TICK_S = 0.005
# About what one script call writes: it blocks Redis for 2 to 5 ms. A single entry may be larger.
MAX_CALL_BYTES, MAX_CALL_ENTRIES = 256 << 10, 128
# The most in one entry, unless a single delta is larger: a reader handles an entry in one step.
MAX_ENTRY_DELTAS, MAX_ENTRY_CHARS = 256, 64 << 10
# Encoding up to this many deltas at once is cheaper than adding up their lengths first, unless they are long.
# The first one shows whether they are.
SHORT_BATCH_DELTAS = 64
SHORT_DELTA_CHARS = MAX_ENTRY_CHARS // SHORT_BATCH_DELTAS
# Up to this number of generations there are no turns: one call nearly always holds them all.
MOST_IN_ORDER = 16
# A web process gives up after the same time (`Follower.LOST_AFTER_S`), so no client waits for later deltas.
GIVE_UP_S = 4.0
RETRY_S = 0.2
ATTEMPT_S = 2.0


class Source(Protocol):
    """A generation whose deltas are published: a `Run` (`run.py`)."""

    inbox: str
    next_seq: int

    @property
    def id(self) -> UUID: ...

    @property
    def organization_id(self) -> int: ...

    @property
    def fence(self) -> int: ...

    def fence_off(self) -> None:
        """Stop: a process with a newer fence has taken over."""

    def lose_stream(self, given_up: Sequence[AnyDelta]) -> None:
        """Stop: these deltas could not be published."""


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
        """Return whether more deltas wait than one entry holds: the upstream is faster than Redis."""
        return len(self._pending.get(source, ())) > MAX_ENTRY_DELTAS

    async def caught_up(self, source: Source) -> None:
        """Wait until the publisher is no longer behind with this generation, or has given it up."""
        while self.is_behind(source):
            await asyncio.shield(self._tick)

    async def flushed(self, source: Source) -> None:
        """Wait until all deltas of this generation are published, or given up."""
        while source in self._pending or source in self._writing:
            await asyncio.shield(self._tick)

    async def drained(self) -> None:
        """Wait until nothing is left to publish."""
        while self._pending or self._writing:
            await asyncio.shield(self._tick)

    async def run(self) -> None:
        """Publish in ticks, for ever."""
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
            self._writing = {}  # it is published: an error below must not give it up
            failpoint("delta.after_publish")
            if any(entry.is_last for entry in entries):
                failpoint("terminal.after_publish")
        except Exception:
            # No run may wait for these deltas any more, and later ones must still be published.
            log.exception("could not publish the deltas of %d generations", len(self._writing))
            self._lose(list(self._writing))

    def _take(self) -> list[Entry]:
        """Move the deltas for the next call from `_pending` to `_writing`; return their entries.

        What does not fit into one entry goes to the end of the queue. If a batch can't be encoded, only its
        generation is given up.
        """
        entries: list[Entry] = []
        rests: dict[Source, list[AnyDelta]] = {}
        size = 0
        for source in self._in_turns():
            batch = self._pending.pop(source)
            try:
                end, encoded = _first_entry(batch)
            except Exception:
                log.exception("the deltas of %s can't be encoded", source.id.hex)
                source.lose_stream(batch)
                continue
            self._writing[source], rest = batch[:end], batch[end:]
            if rest:
                rests[source] = rest
            is_last = isinstance(batch[end - 1], TERMINAL)
            entries.append(
                Entry(source.id, source.fence, source.next_seq, encoded, source.inbox, is_last=is_last)
            )
            source.next_seq += end
            size += len(encoded)
            if size >= MAX_CALL_BYTES or len(entries) == MAX_CALL_ENTRIES:
                break
        self._pending |= rests
        return entries

    def _in_turns(self) -> list[Source]:
        """Return the pending generations in order of arrival; if they are many, organizations take turns."""
        if len(self._pending) <= MOST_IN_ORDER:
            return list(self._pending)
        lines: dict[int, list[Source]] = {}
        for source in self._pending:
            lines.setdefault(source.organization_id, []).append(source)
        rounds = zip_longest(*lines.values())
        return [source for one_of_each in rounds for source in one_of_each if source is not None]

    def _lose(self, sources: Iterable[Source]) -> None:
        """Give up the pending deltas of these generations.

        `next_seq` stays as it is: the deltas may have been written although the call failed.
        """
        for source in sources:
            source.lose_stream([*self._writing.pop(source), *self._pending.pop(source, [])])

    async def _write(self, entries: list[Entry]) -> None:
        """Write, retrying for `GIVE_UP_S` while Redis is away; repeating is harmless (`delta_stream`)."""
        # Not `retry`: time ends this, and an attempt may take a moment or `ATTEMPT_S`.
        give_up_at = loop_clock.monotonic() + GIVE_UP_S
        while True:
            try:
                async with in_time(ATTEMPT_S):
                    refused = await self._stream.publish(entries)
                break
            except StreamUnavailable as error:
                log.warning("could not publish the deltas of %d generations: %r", len(entries), error)
                if loop_clock.monotonic() > give_up_at:
                    self._lose(list(self._writing))
                    return
                await asyncio.sleep(RETRY_S)
        for source in self._writing:
            if source.id in refused:
                source.fence_off()


def _first_entry(batch: list[AnyDelta]) -> tuple[int, bytes]:
    """Return how many of the deltas go into one entry, and these encoded."""
    is_short = len(batch) <= SHORT_BATCH_DELTAS and batch[0].content_chars <= SHORT_DELTA_CHARS
    if is_short and len(encoded := deltas.encode(batch)) <= MAX_ENTRY_CHARS:
        return len(batch), encoded
    ends = list(accumulate(delta.content_chars for delta in batch[:MAX_ENTRY_DELTAS]))
    end = max(1, bisect_right(ends, MAX_ENTRY_CHARS))
    return end, deltas.encode(batch[:end])
