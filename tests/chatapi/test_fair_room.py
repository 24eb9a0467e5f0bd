"""Room that parties share fairly, and the requests for Django that wait for it."""

import asyncio
from collections import Counter
from threading import get_ident
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from channels.testing import HttpCommunicator

from chatapi.fair_room import FairRoom, NoRoom, Room
from chatapi.web import django_turns
from chatapi.web.django_turns import TakingTurns


def room_for(units: int, each: int, *, wait_s: float = 5.0, most_waiting_each: int = 100) -> FairRoom:
    return FairRoom(units, each, wait_s=wait_s, most_waiting_each=most_waiting_each)


async def acquired(room: FairRoom, party: str, order: list[tuple[str, Room]], units: int = 1) -> None:
    order.append((party, await room.acquire(party, units)))


async def soon() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_party_holds_no_more_than_its_share() -> None:
    room, order = room_for(4, 2), list[tuple[str, Room]]()
    tasks = [asyncio.create_task(acquired(room, "a", order)) for _ in range(3)]
    tasks.append(asyncio.create_task(acquired(room, "b", order)))
    await soon()
    assert Counter(party for party, _ in order) == {"a": 2, "b": 1}
    order[0][1].release()
    await asyncio.gather(*tasks)
    assert len(order) == 4


async def test_room_that_grows_is_given_at_once_and_room_that_shrinks_is_not_taken_away() -> None:
    room, order = room_for(1, 1), list[tuple[str, Room]]()
    tasks = [asyncio.create_task(acquired(room, "a", order)) for _ in range(3)]
    await soon()
    assert (len(order), room.is_full) == (1, True)
    room.resize(3)
    await asyncio.gather(*tasks)
    room.resize(1)
    for _, held in order[:2]:
        held.release()
    assert room.is_full
    order[2][1].release()
    assert not room.is_full


async def test_parties_are_served_in_turn() -> None:
    room, order = room_for(1, 1), list[tuple[str, Room]]()
    first = await room.acquire("a")
    tasks = [asyncio.create_task(acquired(room, party, order)) for party in ("a", "a", "a", "b", "c")]
    await soon()
    first.release()
    for served in range(1, 6):
        await soon()
        assert len(order) == served
        order[-1][1].release()
    await asyncio.gather(*tasks)
    assert [party for party, _ in order] == ["a", "b", "c", "a", "a"]


async def test_a_large_holder_does_not_wait_for_ever_behind_small_ones() -> None:
    room, order = room_for(4, 4), list[tuple[str, Room]]()
    small = [await room.acquire("small") for _ in range(4)]
    large = asyncio.create_task(acquired(room, "large", order, units=4))
    await soon()
    later = asyncio.create_task(acquired(room, "small", order))
    for each in small:
        each.release()
        await soon()
    await large
    order[0][1].release()
    await later
    assert [party for party, _ in order] == ["large", "small"]


async def test_a_cancelled_waiter_leaves_nothing_taken() -> None:
    room = room_for(1, 1)
    held = await room.acquire("a")
    waiting = asyncio.create_task(room.acquire("b"))
    given = asyncio.create_task(room.acquire("c"))
    await soon()
    waiting.cancel()
    held.release()
    await soon()
    given.cancel()  # in the moment after it was given the room
    await asyncio.gather(waiting, given, return_exceptions=True)
    if not given.cancelled():
        (await given).release()
    async with asyncio.timeout(1):
        (await room.acquire("d")).release()


async def test_too_long_and_too_many_waits_are_refused() -> None:
    room = room_for(1, 1, wait_s=0.01, most_waiting_each=1)
    await room.acquire("a")
    waiting = asyncio.create_task(room.acquire("b"))
    await soon()
    with pytest.raises(NoRoom, match="too many"):
        await room.acquire("b")
    with pytest.raises(NoRoom, match="too long"):
        await waiting


async def test_a_late_holder_gives_way_only_to_waiters_that_could_use_its_room() -> None:
    room = room_for(2, 1)
    late = await room.acquire("a", hold_s=0)
    gives_way = [late.must_give_way]
    await room.acquire("b")
    waiting = asyncio.create_task(room.acquire("c"))
    await soon()
    assert [*gives_way, late.must_give_way] == [False, True]
    late.release()
    await waiting


class Views:
    """Django's place: counts the requests at the same time, each of which lasts until it may end."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.may_end = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        await self.may_end.wait()
        self.running -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})


def ask(application: Any, path: str, address: str) -> "asyncio.Task[Any]":
    communicator = HttpCommunicator(application, "GET", path)
    communicator.scope["client"] = (address, 1)
    return asyncio.create_task(communicator.get_response(timeout=10))


async def test_one_address_does_not_take_all_of_djangos_threads() -> None:
    views = Views()
    application = TakingTurns(views)
    flood = [ask(application, "/docs", "192.0.2.1") for _ in range(50)]
    await asyncio.sleep(0.05)
    assert views.running == django_turns.THREADS_EACH
    others = [ask(application, "/docs", "192.0.2.2"), ask(application, "/v1/models", "192.0.2.1")]
    await asyncio.sleep(0.05)
    assert views.running == django_turns.THREADS_EACH + 2
    views.may_end.set()
    answers = await asyncio.gather(*flood, *others)
    assert {answer["status"] for answer in answers} == {200}


async def test_a_request_that_waits_too_long_for_its_turn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(django_turns, "WAIT_S", 0.05)
    views = Views()
    application = TakingTurns(views)
    holding = [ask(application, "/docs", "192.0.2.1") for _ in range(django_turns.THREADS_EACH)]
    refused = await ask(application, "/docs", "192.0.2.1")
    assert refused["status"] == 503
    assert b"service_unavailable" in refused["body"]
    views.may_end.set()
    await asyncio.gather(*holding)


class Downloads:
    """Django's place: sends a piece of a download, then waits until the rest may follow."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = asyncio.Event()
        self.threads: set[int] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with ThreadSensitiveContext():
            self.threads.add(await sync_to_async(get_ident)())
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"piece", "more_body": True})
            self.begun += 1
            await self.may_end.wait()
            await send({"type": "http.response.body", "body": b""})

    async def have_begun(self, count: int) -> None:
        """Return when this many have sent their first piece."""
        async with asyncio.timeout(5):
            while self.begun < count:
                await asyncio.sleep(0.01)


async def test_slow_downloads_take_neither_the_pages_places_nor_their_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: set[int] = set()
    monkeypatch.setattr(django_turns, "close_old_connections", lambda: closed.add(get_ident()))
    downloads, pages = Downloads(), Views()
    pages.may_end.set()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await (downloads if scope["path"] == "/export" else pages)(scope, receive, send)

    turns = TakingTurns(application)
    addresses = [f"192.0.2.{number}" for number in (1, 2) for _ in range(django_turns.DOWNLOADS_EACH)]
    slow = [ask(turns, "/export", address) for address in addresses]
    await downloads.have_begun(len(slow))
    async with asyncio.timeout(5):
        for number in (1, 2, 3):
            assert (await ask(turns, "/docs", f"192.0.2.{number}"))["status"] == 200
    assert closed == downloads.threads
    downloads.may_end.set()
    assert {answer["body"] for answer in await asyncio.gather(*slow)} == {b"piece"}


async def test_a_download_without_room_is_refused_and_leaves_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(django_turns, "WAIT_S", 0.2)
    downloads = Downloads()
    turns = TakingTurns(downloads)
    slow = [ask(turns, "/export", "192.0.2.1") for _ in range(django_turns.DOWNLOADS_EACH)]
    await downloads.have_begun(len(slow))
    refused = await asyncio.gather(*(ask(turns, "/export", "192.0.2.1") for _ in range(3)))
    assert [answer["status"] for answer in refused] == [503] * 3
    downloads.may_end.set()
    assert {answer["status"] for answer in await asyncio.gather(*slow)} == {200}
    assert (await ask(turns, "/export", "192.0.2.1"))["status"] == 200
