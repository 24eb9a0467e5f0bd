"""The one flusher of a worker process: order, sharing, repeats, and giving up."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import cast
from uuid import UUID

import pytest

from chatapi import identity
from chatapi.delta_stream import DeltaStream, Entry, StreamUnavailable
from chatapi.wire import deltas
from chatapi.wire.deltas import Annotations, AnyDelta, Text, Usage
from chatapi.worker.runs import publisher as publisher_module
from chatapi.worker.runs.publisher import Publisher
from usage import failpoints


class Source:
    """A generation; remembers the publisher's calls."""

    def __init__(self, fence: int = 1, organization_id: int = 1) -> None:
        self.id = identity.new_id()
        self.organization_id = organization_id
        self.fence = fence
        self.inbox = "web"
        self.next_seq = 1
        self.notices: list[str] = []
        self.given_up: list[AnyDelta] = []

    def fence_off(self) -> None:
        self.notices.append("fenced off")

    def lose_stream(self, given_up: Sequence[AnyDelta]) -> None:
        self.notices.append("stream lost")
        self.given_up += given_up


class Writes:
    """In the place of Redis: keeps what is written; can be slow, away, or refuse."""

    def __init__(self) -> None:
        self.calls: list[list[Entry]] = []
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.begun = asyncio.Event()
        self.failures = 0
        self.refused: set[UUID] = set()

    async def publish(self, entries: Sequence[Entry]) -> set[UUID]:
        self.calls.append(list(entries))
        self.begun.set()
        await self.is_open.wait()
        if self.failures:
            self.failures -= 1
            raise StreamUnavailable("away")
        return self.refused & {entry.id for entry in entries}


@pytest.fixture
def writes() -> Writes:
    return Writes()


@pytest.fixture
async def publisher(writes: Writes) -> AsyncIterator[Publisher]:
    publisher = Publisher(cast(DeltaStream, writes))
    flushing = asyncio.create_task(publisher.run())
    yield publisher
    flushing.cancel()


def said(*words: str) -> list[AnyDelta]:
    return [Text(word) for word in words]


async def test_much_is_written_in_several_calls_in_order_and_others_do_not_wait_behind_it(
    writes: Writes, publisher: Publisher
) -> None:
    long, other = Source(), Source()
    words = [str(number) for number in range(1_000)] + ["x" * 50_000 for _ in range(20)]
    publisher.put(long, said(*words))
    publisher.put(other, said("a"))
    await publisher.drained()
    assert [entry.id for entry in writes.calls[0]] == [long.id, other.id]
    entries = [entry for call in writes.calls for entry in call if entry.id == long.id]
    seqs = [entry.first_seq for entry in entries]
    batches = [deltas.decode(entry.batch) for entry in entries]
    assert [delta.text for batch in batches for delta in batch if isinstance(delta, Text)] == words
    assert seqs == [1 + sum(map(len, batches[:place])) for place in range(len(batches))]
    assert all(len(batch) <= publisher_module.MAX_ENTRY_DELTAS for batch in batches)
    assert all(
        sum(len(entry.batch) for entry in call) <= publisher_module.MAX_CALL_BYTES + 100_000
        for call in writes.calls
    )


async def test_many_generations_share_calls_of_a_bounded_size(writes: Writes, publisher: Publisher) -> None:
    sources = [Source() for _ in range(40)]
    for source in sources:
        publisher.put(source, said("x" * 40_000))
    await publisher.drained()
    assert [entry.id for call in writes.calls for entry in call] == [source.id for source in sources]
    assert (
        max(sum(len(entry.batch) for entry in call) for call in writes.calls)
        < publisher_module.MAX_CALL_BYTES + 50_000
    )


async def test_a_rest_that_can_not_be_written_is_given_up_with_its_beginning(
    writes: Writes, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "GIVE_UP_S", 0)
    source = Source()
    writes.failures = 1
    everything = said(*(str(number) for number in range(1_000)))
    publisher.put(source, everything)
    await publisher.drained()
    assert (source.notices, source.given_up) == (["stream lost"], everything)


async def test_what_comes_during_a_write_goes_with_the_next_in_order(
    writes: Writes, publisher: Publisher
) -> None:
    one, other = Source(), Source()
    writes.is_open.clear()
    publisher.put(one, said("a"))
    await writes.begun.wait()
    publisher.put(one, said("b"))
    publisher.put(other, said("x"))
    publisher.put(one, said("c", "d"))
    assert len(writes.calls) == 1
    writes.is_open.set()
    await publisher.drained()
    first, second = writes.calls
    assert [(entry.id, entry.first_seq, deltas.decode(entry.batch)) for entry in first] == [
        (one.id, 1, said("a"))
    ]
    assert [(entry.id, entry.first_seq, deltas.decode(entry.batch)) for entry in second] == [
        (one.id, 2, said("b", "c", "d")),
        (other.id, 1, said("x")),
    ]


async def test_only_the_terminal_marks_the_last_entry(writes: Writes, publisher: Publisher) -> None:
    source = Source(fence=3)
    publisher.put(source, said("a"))
    await publisher.flushed(source)
    publisher.put(source, [*said("b"), Usage(1, 2)])
    await publisher.flushed(source)
    assert [(entry.fence, entry.inbox, entry.is_last) for (entry,) in writes.calls] == [
        (3, "web", False),
        (3, "web", True),
    ]


async def test_flushed_waits_for_the_write(writes: Writes, publisher: Publisher) -> None:
    source = Source()
    await publisher.flushed(source)
    writes.is_open.clear()
    publisher.put(source, said("a"))
    await writes.begun.wait()
    waiting = asyncio.ensure_future(publisher.flushed(source))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.02)
    writes.is_open.set()
    await waiting


async def test_a_failed_write_is_repeated_as_it_was(writes: Writes, publisher: Publisher) -> None:
    source = Source()
    writes.failures = 2
    publisher.put(source, said("a", "b"))
    await publisher.drained()
    assert writes.calls[0] == writes.calls[1] == writes.calls[2]
    assert source.notices == []


async def test_it_gives_up_after_a_while_and_goes_on(
    writes: Writes, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "GIVE_UP_S", 0.1)
    source = Source()
    writes.failures = 2
    publisher.put(source, said("a"))
    await publisher.flushed(source)
    assert source.notices == ["stream lost"]
    assert source.given_up == said("a")
    publisher.put(source, said("b"))
    await publisher.flushed(source)
    # Nobody knows whether it was written: the next has another number.
    assert writes.calls[-1][0].first_seq == 2


async def test_what_has_come_behind_what_it_gives_up_is_given_up_too(
    writes: Writes, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "GIVE_UP_S", 0)
    lost, late = Source(), Source()
    writes.failures = 1
    writes.is_open.clear()
    publisher.put(lost, said("a"))
    await writes.begun.wait()
    publisher.put(lost, said("b", "c"))
    publisher.put(late, said("x"))
    writes.is_open.set()
    await publisher.drained()
    assert (lost.given_up, lost.next_seq) == (said("a", "b", "c"), 2)
    assert (late.notices, [entry.id for entry in writes.calls[-1]]) == ([], [late.id])


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_delta_that_can_not_be_encoded_is_its_own_generations_loss(
    writes: Writes, publisher: Publisher, place: int
) -> None:
    sources = [Source(), Source(), Source()]
    poisoned = sources[place]
    poison: list[AnyDelta] = [Annotations([{"number": 1 << 64}])]
    for source in sources:
        publisher.put(source, poison if source is poisoned else said("a"))
    await publisher.drained()
    assert (poisoned.notices, poisoned.given_up, poisoned.next_seq) == (["stream lost"], poison, 1)
    healthy = [source for source in sources if source is not poisoned]
    assert [source.notices for source in healthy] == [[], []]
    assert [(entry.id, entry.first_seq) for entry in writes.calls[0]] == [
        (source.id, 1) for source in healthy
    ]


async def test_what_is_written_is_not_lost_by_what_goes_wrong_after_it(
    writes: Writes, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failpoints, "_armed", failpoints.parse("delta.after_publish=raise"))
    source = Source()
    publisher.put(source, said("a"))
    await publisher.flushed(source)
    assert (source.notices, len(writes.calls)) == ([], 1)


async def test_a_frozen_redis_is_a_failed_write(
    writes: Writes, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "ATTEMPT_S", 0.05)
    source = Source()
    writes.is_open.clear()
    publisher.put(source, said("a"))
    await writes.begun.wait()
    writes.begun.clear()
    await asyncio.wait_for(writes.begun.wait(), 5)
    writes.is_open.set()
    await publisher.flushed(source)
    assert writes.calls[0] == writes.calls[-1]


async def test_a_refused_stream_is_fenced_off_and_the_others_are_not(
    writes: Writes, publisher: Publisher
) -> None:
    zombie, healthy = Source(), Source()
    writes.refused = {zombie.id}
    publisher.put(zombie, said("a"))
    publisher.put(healthy, said("b"))
    await publisher.drained()
    assert (zombie.notices, healthy.notices) == (["fenced off"], [])


async def test_organizations_take_turns_in_what_one_call_does_not_hold(
    publisher: Publisher, writes: Writes
) -> None:
    flood = [Source(organization_id=1) for _ in range(100)]
    honest = [Source(organization_id=2) for _ in range(3)]
    for source in (*flood, *honest):
        publisher.put(source, [Text("x" * 30_000)])
    await publisher.drained()
    order = [entry.id for call in writes.calls for entry in call]
    assert len(order) == len(set(order)) == 103
    assert max(order.index(source.id) for source in honest) == 5


async def test_a_generation_that_is_faster_than_redis_waits(writes: Writes, publisher: Publisher) -> None:
    fast = Source()
    writes.is_open.clear()
    publisher.put(fast, said("a"))
    await writes.begun.wait()
    publisher.put(fast, said("b"))
    assert not publisher.is_behind(fast)
    publisher.put(fast, said(*["b"] * publisher_module.MAX_ENTRY_DELTAS))
    assert publisher.is_behind(fast)
    waiting = asyncio.create_task(publisher.caught_up(fast))
    await asyncio.sleep(0)
    assert not waiting.done()
    writes.is_open.set()
    async with asyncio.timeout(5):
        await waiting
    assert not publisher.is_behind(fast)


async def test_a_generation_that_is_given_up_waits_no_more(
    writes: Writes, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "GIVE_UP_S", -1)
    lost = Source()
    writes.failures = 1
    publisher.put(lost, said(*["a"] * (2 * publisher_module.MAX_ENTRY_DELTAS)))
    async with asyncio.timeout(5):
        await publisher.caught_up(lost)
    assert lost.notices == ["stream lost"]
