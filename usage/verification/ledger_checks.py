"""What checks of the books have found, on record: those of people, and one that a reaper makes each hour.

The hour's check looks at the last days, one invariant at a time, each in a snapshot of its own and no longer
than the service's reads may take. A difference stays on record as open until a check that looks at as much
finds none: a later check of later entries does not make older ones right.
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
from usage.verification.differences import Difference

EVERY = timedelta(hours=1)
WINDOWS = (timedelta(days=2), timedelta(hours=2))
"""How far back the hour's check looks: the first, which has all of today's budgets; at an invariant that
takes too long, the next.
"""
KEEP = 100
"""Checks that are kept: so many of those that are open, and of all others."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KEPT_SEAL = "the chain of seals"
_OPEN = Q(differences__gt=0, resolved_at__isnull=True)


@dataclass(frozen=True, slots=True)
class Found:
    """What a check, begun or new, has looked at, and what it has found."""

    check: LedgerCheck
    since: datetime | None
    generations: int
    differences: Sequence[Difference]


def begin(now: datetime, items: Sequence[None]) -> list[LedgerCheck | None]:
    """The hour's check for whoever asks first, in any process; None for all others. For group commits."""
    return [_begin(now) for _ in items]


def look(check: Check) -> list[Difference]:
    """What one of `verification.checks` finds; raises Django's `OperationalError` when it takes longer than
    reads may.
    """
    with snapshot(has_time_limit=True), time_limit():
        return list(islice(check(), MAX_SHOWN))


@time_limit()
def settled_since(since: datetime) -> int:
    """How many generations were settled since then."""
    return LedgerEntry.objects.filter(kind=Kind.CHARGE, created_at__gte=since).count()


def missing_seal(digest: str) -> Difference:
    """A seal that was kept elsewhere and is not there any more: the past was written anew. On record, it is
    the first of a check.
    """
    return Difference("I6 sealed", _KEPT_SEAL, f"{digest} in it", "no such seal")


def record(now: datetime, items: Sequence[Found]) -> list[None]:
    """Write down what was found; if nothing, the differences of earlier checks that looked at no more are
    resolved.
    """
    for found in items:
        _write(found)
        if not found.differences:
            _resolve(now, found)
    _forget(_OPEN)
    _forget(~_OPEN)
    return [None for _ in items]


def _begin(now: datetime) -> LedgerCheck | None:
    hour = now - (now - _EPOCH) % EVERY
    row, is_ours = LedgerCheck.objects.get_or_create(hour=hour, defaults={"checked_at": now})
    return row if is_ours else None


def _write(found: Found) -> None:
    row = found.check
    row.since, row.generations, row.differences = found.since, found.generations, len(found.differences)
    row.first_difference = str(found.differences[0])[:500] if found.differences else ""
    row.save()


def _resolve(now: datetime, found: Found) -> None:
    same = Q() if found.since is None else Q(since__gte=found.since)
    rows = LedgerCheck.objects.filter(_OPEN, same, checked_at__lte=found.check.checked_at)
    if found.check.hour is not None:
        # What a person has looked for, no reaper looks for.
        rows = rows.exclude(first_difference__contains=f": {_KEPT_SEAL}: ")
    rows.update(resolved_at=now)


def _forget(kind: Q) -> None:
    rows = LedgerCheck.objects.filter(kind)
    old = list(rows.order_by("-pk").values_list("pk", flat=True)[KEEP:])
    rows.filter(pk__in=old).delete()
