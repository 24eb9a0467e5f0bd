"""Leases are prolonged in parts, and all at once where the database is slow."""

import asyncio
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from pytest_django import Settings

from chatapi import identity
from chatapi.worker.heartbeat import PART, Heartbeat, Held
from usage.books.ledger import Beat, Pulse
from usage.errors import DatabaseUnavailable


class Database:
    """Takes so long for each transaction, and prolongs each lease that it is given."""

    def __init__(self, seconds: float = 0, *, refuses_first: bool = False) -> None:
        self.sizes: list[int] = []
        self._seconds = seconds
        self._refuses_first = refuses_first

    def write_from_thread(self, operation: Callable[..., Any], item: Beat) -> set[UUID]:
        self.sizes.append(len(item.pulses))
        time.sleep(self._seconds)
        if self._refuses_first and len(self.sizes) == 1:
            raise DatabaseUnavailable
        return {pulse.id for pulse in item.pulses}


@pytest.mark.parametrize(("seconds", "sizes"), [(0, [PART, PART, PART, 10]), (0.1, [PART, 2 * PART + 10])])
async def test_no_lease_waits_for_many_slow_transactions(
    settings: Settings, seconds: float, sizes: list[int]
) -> None:
    settings.HEARTBEAT_MS = 100
    pulses = [Pulse(identity.new_id(), 1, 0, "") for _ in range(3 * PART + 10)]
    database: Any = Database(seconds)
    heartbeat = Heartbeat("worker", database, lambda: Held(pulses, []), lambda lost: None)
    heartbeat.start()
    while len(database.sizes) < len(sizes):
        await asyncio.sleep(0.01)
    await heartbeat.close()
    assert database.sizes[: len(sizes)] == sizes


async def test_a_part_that_fails_leaves_the_others_their_leases(settings: Settings) -> None:
    settings.HEARTBEAT_MS = 100
    pulses = [Pulse(identity.new_id(), 1, 0, "") for _ in range(2 * PART)]
    database: Any = Database(refuses_first=True)
    lost: list[set[UUID]] = []
    heartbeat = Heartbeat("worker", database, lambda: Held(pulses, []), lost.append)
    heartbeat.start()
    while len(database.sizes) < 4:
        await asyncio.sleep(0.01)
    await heartbeat.close()
    assert database.sizes[:4] == [PART] * 4
    assert lost == [], "nobody knows whether they are"
