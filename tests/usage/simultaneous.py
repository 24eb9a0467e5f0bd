"""Admissions in several transactions at the same moment."""

import threading
from asyncio import gather
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from uuid import UUID

from usage.books import ledger
from usage.database.group_commit import GroupCommit
from usage.errors import UsageError


async def admit_at_once(
    admissions: Sequence[ledger.Admission], now: datetime | None = None
) -> list[UUID | BaseException]:
    """Admit each in a transaction of its own, which commits when the others have admitted too, or wait for
    it; at the time `now`, by default that of the database.
    """
    have_begun, have_admitted = threading.Barrier(len(admissions)), threading.Barrier(len(admissions))

    def admit(database_now: datetime, items: Sequence[ledger.Admission]) -> Sequence[UUID | UsageError]:
        have_begun.wait(10)
        results = ledger.admit(now or database_now, items)
        with suppress(threading.BrokenBarrierError):
            have_admitted.wait(0.5)
        return results

    doors = [GroupCommit() for _ in admissions]
    try:
        return await gather(
            *map(lambda door, item: door.write(admit, item), doors, admissions), return_exceptions=True
        )
    finally:
        for door in doors:
            await door.close()
