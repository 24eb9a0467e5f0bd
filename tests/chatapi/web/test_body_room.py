"""Room for large bodies: a bound for all, a share for each organization, turns, and an end to every wait."""

import asyncio

import pytest

from chatapi.fair_room import NoRoom, Room
from chatapi.web import body_room
from chatapi.web.body_room import BODIES, BODIES_EACH, LEAST_BYTES, MOST_WAITING_EACH, BodyRoom

LARGEST = 8 * LEAST_BYTES
ALICE, BOB, CAROL = 1, 2, 3


def begin(room: BodyRoom, organization_id: int, n_bytes: int = LARGEST) -> "asyncio.Task[Room]":
    return asyncio.create_task(room.acquire(organization_id, n_bytes))


async def let_tasks_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def held(*tasks: "asyncio.Task[Room]") -> list[bool]:
    await let_tasks_run()
    return [task.done() and task.result().is_held for task in tasks]


async def test_an_organization_has_its_share_and_all_have_a_bound() -> None:
    room = BodyRoom(LARGEST)
    alice, bob, carol = [[begin(room, each) for _ in range(BODIES_EACH + 1)] for each in (ALICE, BOB, CAROL)]
    assert await held(*alice, *bob, *carol) == [True, True, False] * 2 + [False] * 3
    assert BODIES == 2 * BODIES_EACH
    alice[0].result().release()
    assert sum(await held(alice[2], carol[0])) == 1
    await cancel(*alice, *bob, *carol)


async def test_organizations_have_turns() -> None:
    """The number of bodies that Alice has sent before does not matter."""
    room = BodyRoom(LARGEST)
    running = [await room.acquire(each, LARGEST) for each in (CAROL, CAROL, 4, 4)]
    alice = [begin(room, ALICE) for _ in range(20)]
    await let_tasks_run()
    bob = begin(room, BOB)
    await let_tasks_run()
    running[0].release()
    running[1].release()
    assert await held(alice[0], bob, *alice[1:]) == [True, True] + [False] * 19
    await cancel(*alice, bob)


async def test_an_organization_that_waits_for_its_own_share_keeps_nobody_waiting() -> None:
    room = BodyRoom(LARGEST)
    alice = [begin(room, ALICE) for _ in range(20)]
    await let_tasks_run()
    assert await held(begin(room, BOB)) == [True]
    await cancel(*alice)


async def test_a_large_body_is_not_overtaken_forever() -> None:
    room = BodyRoom(LARGEST)
    running = [await room.acquire(each, LARGEST) for each in (ALICE, ALICE, BOB, BOB)]
    large = begin(room, CAROL)
    await let_tasks_run()
    small = begin(room, 4, LEAST_BYTES)
    assert await held(large, small) == [False, False]
    running[0].release()
    assert await held(large, small) == [True, False]
    running[1].release()
    assert await held(small) == [True]


async def test_a_wait_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_room, "WAIT_S", 0.05)
    room = BodyRoom(LARGEST)
    first = [await room.acquire(ALICE, LARGEST) for _ in range(BODIES_EACH)]
    with pytest.raises(NoRoom):
        await room.acquire(ALICE, LARGEST)
    for each in first:
        each.release()
        each.release()
    assert await held(*[begin(room, ALICE) for _ in range(BODIES_EACH + 1)]) == [True] * BODIES_EACH + [False]


async def test_only_so_many_wait() -> None:
    room = BodyRoom(LARGEST)
    waiting = [begin(room, ALICE) for _ in range(BODIES_EACH + MOST_WAITING_EACH)]
    await let_tasks_run()
    with pytest.raises(NoRoom):
        await room.acquire(ALICE, LARGEST)
    assert await held(begin(room, BOB)) == [True]
    await cancel(*waiting)


async def test_a_client_that_leaves_while_it_waits_takes_nothing() -> None:
    room = BodyRoom(LARGEST)
    running = [await room.acquire(ALICE, LARGEST) for _ in range(BODIES_EACH)]
    leaving, staying = begin(room, ALICE), begin(room, ALICE)
    await let_tasks_run()
    leaving.cancel()
    running[0].release()  # in the same turn of the loop
    assert await held(staying) == [True]
    assert leaving.cancelled()


async def test_a_late_body_gives_way_to_bodies_that_could_have_its_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(body_room, "HOLD_S", -1_000.0)
    room = BodyRoom(LARGEST)
    slow, other = await room.acquire(ALICE, LARGEST), await room.acquire(BOB, LARGEST)
    bobs = [begin(room, BOB) for _ in range(3)]
    await let_tasks_run()
    assert (slow.must_give_way, other.must_give_way) == (False, True)
    await cancel(*bobs)
    assert not other.must_give_way


async def cancel(*tasks: "asyncio.Task[Room]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
