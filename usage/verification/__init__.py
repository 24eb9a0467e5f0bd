"""Checks the books against themselves, on a live system: every invariant is a query that must find nothing.

All queries see one snapshot, so that running settlements do not look like differences.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice

from django.db.models import Sum

from usage.database.snapshot import snapshot
from usage.models import Generation, LedgerSeal, RetentionHorizon, State
from usage.verification import invariants, seals, sums
from usage.verification.differences import Difference

Check = Callable[[], Iterator[Difference]]

MAX_SHOWN = 20
"""Differences of one kind: where there are more, the first ones tell enough."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked and what was found; the counts are of what was looked at, and not of what is older
    than `since`.
    """

    generations: int
    """Those that are there."""
    open_generations: int
    dropped_generations: int
    """Those that were exported and dropped, of all times."""
    entries: int
    sealed_entries: int
    newest_seal: str
    """The digest that stands for all sealed entries; empty when there is none."""
    differences: list[Difference]
    is_cut: bool
    """Whether there are more differences than these, of one kind or several."""
    notes: list[str]
    """What an operator may want to know, and is no mistake."""


def verify(*, since: datetime | None = None, now: datetime | None = None) -> Report:
    """Check every invariant in one snapshot (inside a transaction of the caller: in that one).

    `since` leaves out what is older, for books that are too big to add up each time. With `now`, the
    database's time, what should have been settled long ago is a difference too.
    """
    since = since.astimezone(UTC) if since else None  # days and hours are UTC's
    with snapshot():
        newest = LedgerSeal.objects.order_by("-id").first()
        entries = invariants.entries(since)
        found = [list(islice(check(), MAX_SHOWN + 1)) for check in checks(since, now)]
        return Report(
            generations=invariants.generations(since).count(),
            open_generations=Generation.objects.exclude(state=State.SETTLED).count(),
            dropped_generations=RetentionHorizon.objects.aggregate(sum=Sum("dropped_count", default=0))[
                "sum"
            ],
            entries=entries.count(),
            sealed_entries=entries.filter(id__gte=1, id__lte=newest.last_id).count() if newest else 0,
            newest_seal=newest.digest if newest else "",
            differences=[each for kind in found for each in kind[:MAX_SHOWN]],
            is_cut=any(len(kind) > MAX_SHOWN for kind in found),
            notes=list(islice(sums.over_limit(), MAX_SHOWN)),
        )


def checks(since: datetime | None, now: datetime | None = None) -> list[Check]:
    """All that `verify` checks, one by one: each is right in a snapshot of its own too."""
    return [
        partial(invariants.one_charge_each, since),
        partial(invariants.generations_are_kept, since),
        partial(sums.budgets_conserve, since),
        sums.credit_conserves,
        partial(sums.rollup_is_the_ledger, since),
        partial(sums.days_are_their_hours, since),
        *([partial(invariants.nothing_is_stuck, now)] if now is not None else []),
        partial(invariants.overage_is_apart, since),
        invariants.rows_are_protected,
        partial(seals.check, since),
        partial(invariants.amounts_recompute, since),
        partial(invariants.corrections_belong, since),
        partial(invariants.usage_has_a_source, since),
        partial(invariants.told_is_charged, since),
    ]
