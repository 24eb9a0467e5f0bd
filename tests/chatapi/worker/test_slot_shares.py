"""The shares of organizations in a worker's slots: arithmetic, and a real worker."""

from pathlib import Path

import pytest

from chatapi.task_queue import Entry, TaskQueue
from chatapi.worker.slot_shares import SlotShares
from tests.chatapi.worker.probe_app import QUEUE, app
from tests.chatapi.worker.processes import Valkey, Worker, eventually


def fill(slots: int, *organizations: str) -> list[int]:
    """Let floods take slots, one message after the other by turns; return how many each gets."""
    shares, free, taken = SlotShares(), slots, dict.fromkeys(organizations, 0)
    while free and len(shares.limits(free, 1)) < len(organizations):
        for organization in organizations:
            if free and organization not in shares.limits(free, 1):
                shares.take(organization)
                taken[organization] += 1
                free -= 1
    return list(taken.values())


@pytest.mark.parametrize(
    ("slots", "floods", "taken"),
    [(1, 1, [1]), (8, 1, [8]), (9, 1, [8]), (200, 1, [178]), (1_200, 1, [1_067]), (200, 2, [95, 94])],
)
def test_floods_leave_slots_free(slots: int, floods: int, taken: list[int]) -> None:
    assert fill(slots, *map(str, range(floods))) == taken


def test_an_organization_without_slots_may_have_every_free_one() -> None:
    shares = SlotShares()
    for _ in range(178):
        shares.take("flood")
    assert shares.limits(22, 8) == {"flood": 0}
    assert shares.limits(30, 8) == {"flood": 7}
    assert shares.limits(40, 8) == {}
    shares.release("flood")
    assert shares.limits(23, 1) == {}


def test_what_may_be_taken_at_once_is_what_may_be_taken_one_by_one() -> None:
    for taken in range(60):
        for free in range(1, 12):
            shares = SlotShares()
            for _ in range(taken):
                shares.take("one")
            [may_take] = shares.limits(free, 100).values() or [0 if taken else None]
            one_by_one = 0
            while one_by_one < free and taken + one_by_one < 8 * (free - one_by_one):
                one_by_one += 1
            assert may_take is None or min(free, may_take) == one_by_one


def test_a_flood_of_long_tasks_delays_nobody_else(valkey: Valkey, tmp_path: Path) -> None:
    """H5: it holds its share of the slots, and another organization's tasks start at once."""
    hold, note = TaskQueue(app, "hold", QUEUE), TaskQueue(app, "note", QUEUE)
    with Worker(valkey, tmp_path / "worker.log", PROBE_CONCURRENCY="18"):
        valkey.execute(hold.enqueueing([Entry(f"flood{number}", 1) for number in range(40)]))
        assert {event.split()[0] for event in valkey.next_events(16)} == {"started"}
        for number in range(20):  # more than the slots that are free, one after the other
            valkey.execute(note.enqueueing([Entry(f"n{number}", 2)]))
            assert valkey.next_event() == f"noted n{number} {number}"
        assert valkey.client.zcard(f"{QUEUE}:turns") == 40 - 16
        valkey.client.set("release", 1)
        events = valkey.next_events(16 * 3 + 24 * 3 - 16)
        assert len([event for event in events if event.startswith("started")]) == 24
        eventually(lambda: valkey.client.zcard(f"{QUEUE}:turns") == 0)


def test_every_worker_has_room_for_others(valkey: Valkey, tmp_path: Path) -> None:
    hold = TaskQueue(app, "hold", QUEUE)
    with (
        Worker(valkey, tmp_path / "first.log", PROBE_CONCURRENCY="9"),
        Worker(valkey, tmp_path / "second.log", PROBE_CONCURRENCY="9"),
    ):
        valkey.execute(hold.enqueueing([Entry(f"flood{number}", 1) for number in range(40)]))
        assert len({*valkey.next_events(16)}) == 16
        valkey.execute(hold.enqueueing([Entry("one", 2), Entry("two", 2)]))
        assert {*valkey.next_events(2)} == {"started one", "started two"}
