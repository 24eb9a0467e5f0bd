"""The record of checks of the books: by `verifyledger`, and by a reaper each hour.

The hourly check looks at the last days, one invariant at a time, each in its own snapshot and within the
time limit of reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice

from django.db.models import Q

from usage.database.snapshot import snapshot
from usage.database.time_limit import time_limit
from usage.models import Kind, LedgerCheck, LedgerEntry
from usage.verification import MAX_SHOWN, Check
from usage.verification.invariants import Difference

EVERY = timedelta(hours=1)
# How far back the hourly check looks: two days, which cover all of today's budgets, or the second window for
# an invariant that takes too long.
WINDOWS = (timedelta(days=2), timedelta(hours=2))
# Checks that are kept: of those with open differences, and of all others.
KEEP = 100
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KEPT_SEAL = "the chain of seals"
_OPEN = Q(differences__gt=0, resolved_at__isnull=True)


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a check: the extent that it covered, and its differences."""

    check: LedgerCheck
    since: datetime | None
    generations: int
    differences: Sequence[Difference]


def begin(now: datetime, items: Sequence[None]) -> list[LedgerCheck | None]:
    """Return the hour's new check, None if there is one already; an operation of `GroupCommit`."""
    hour = now - (now - _EPOCH) % EVERY
    found = [LedgerCheck.objects.get_or_create(hour=hour, defaults={"checked_at": now}) for _ in items]
    return [row if is_new else None for row, is_new in found]


def look(check: Check) -> list[Difference]:
    """Return the differences of one check; raises Django's `OperationalError` when it takes too long."""
    with snapshot(has_time_limit=True), time_limit():
        return list(islice(check(), MAX_SHOWN))


@time_limit()
def settled_since(since: datetime) -> int:
    return LedgerEntry.objects.filter(kind=Kind.CHARGE, created_at__gte=since).count()


def missing_seal(digest: str) -> Difference:
    """Return the difference for a seal that was noted elsewhere and is gone: the past was rewritten.

    It must come first in a `Found`.
    """
    return Difference("I6 sealed", _KEPT_SEAL, f"{digest} in it", "no such seal")


def record(now: datetime, items: Sequence[Found]) -> list[None]:
    """Record the results; one without differences resolves earlier checks that looked back no further.

    An operation of `GroupCommit`.
    """
    for found in items:
        row = found.check
        row.since, row.generations, row.differences = found.since, found.generations, len(found.differences)
        row.first_difference = str(found.differences[0])[:500] if found.differences else ""
        row.save()
        if not found.differences:
            _resolve(now, found)
    _delete_old(_OPEN)
    _delete_old(~_OPEN)
    return [None for _ in items]


def _resolve(now: datetime, found: Found) -> None:
    # A check of later entries says nothing about older ones.
    same = Q() if found.since is None else Q(since__gte=found.since)
    rows = LedgerCheck.objects.filter(_OPEN, same, checked_at__lte=found.check.checked_at)
    if found.check.hour is not None:
        # Only a person can look for a seal that was noted elsewhere.
        rows = rows.exclude(first_difference__contains=f": {_KEPT_SEAL}: ")
    rows.update(resolved_at=now)


def _delete_old(kind: Q) -> None:
    rows = LedgerCheck.objects.filter(kind)
    old = list(rows.order_by("-pk").values_list("pk", flat=True)[KEEP:])
    rows.filter(pk__in=old).delete()
