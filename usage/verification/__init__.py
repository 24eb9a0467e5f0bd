"""Checks of the books on a live system: every invariant is a query that must find nothing.

All queries see one snapshot, so that running settlements are no differences.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice

from django.db.models import Sum

from usage.database.snapshot import snapshot
from usage.models import Generation, LedgerSeal, RetentionHorizon, State
from usage.verification import invariants, issued_statements, seals, sum_checks
from usage.verification.invariants import Difference

Check = Callable[[], Iterator[Difference]]

# Differences of one kind that are reported at most.
MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a check. With `since`, the counts leave out what is older."""

    generations: int
    """The number of generations that were not dropped."""
    open_generations: int
    dropped_generations: int
    """The number of generations that were ever exported and dropped."""
    entries: int
    sealed_entries: int
    newest_seal: str
    """The digest of the last seal, and so of all sealed entries; empty without a seal."""
    differences: list[Difference]
    is_cut: bool
    """Whether there are more differences than these."""
    notes: list[str]
    """Remarks for the operator that are no differences."""


def verify(*, since: datetime | None = None, now: datetime | None = None) -> Report:
    """Check every invariant in one snapshot, or in the caller's transaction.

    `since` leaves out older rows, for books that are too large to add up each time. With `now`, the
    database's time, a generation that should have been settled long ago is a difference too.
    """
    since = since.astimezone(UTC) if since else None  # days and hours are UTC's
    with snapshot():
        newest = LedgerSeal.objects.order_by("-id").first()
        entries = invariants.entries(since)
        # One more than is shown says whether there are others.
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
            notes=list(islice(sum_checks.over_limit(), MAX_SHOWN)),
        )


def checks(since: datetime | None, now: datetime | None = None) -> list[Check]:
    """Return all checks of `verify`; each may run in its own snapshot."""
    return [
        partial(invariants.one_charge_each, since),
        partial(invariants.generations_are_kept, since),
        partial(sum_checks.budgets_conserve, since),
        sum_checks.credit_conserves,
        partial(sum_checks.rollup_is_the_ledger, since),
        partial(sum_checks.days_are_their_hours, since),
        partial(sum_checks.end_users_days_are_the_ledger, since),
        partial(sum_checks.end_users_months_are_their_days, since),
        partial(issued_statements.items_are_the_ledger, since),
        partial(issued_statements.statements_are_as_issued, since),
        *([partial(invariants.nothing_is_stuck, now)] if now is not None else []),
        partial(invariants.overage_is_apart, since),
        invariants.rows_are_protected,
        partial(seals.check, since),
        partial(invariants.amounts_recompute, since),
        partial(invariants.corrections_belong, since),
        partial(invariants.usage_has_a_source, since),
        partial(invariants.told_is_charged, since),
    ]
