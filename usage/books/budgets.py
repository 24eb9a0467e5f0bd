"""Holds and spending of budgets: conditional updates, so that no budget and no prepaid credit is overdrawn.

An organization's budget "ever" counts all that it has spent, so its credit is one more limit of that budget.
Rows are always locked in id order, which rules out deadlocks. Weeks have no rows: see `weeks.py`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connection

from usage.books import weeks
from usage.books.budget_limits import limit_of, signed_limit_of
from usage.database import sql
from usage.errors import BudgetExceeded
from usage.models.budget_keys import BudgetKey, Period
from usage.models.budgets import CREDIT_BUDGET, LOW_CREDIT

# The most that a column holds, and so the limit of an unlimited budget. Beyond it SQLite would compute in
# floating point and PostgreSQL fail.
MAX_NANODOLLARS = 2**63 - 1
# Whether the budget `b` may not exceed the credit `c`.
_OF_CREDIT = " AND ".join(f"b.{name} = '{value}'" for name, value in CREDIT_BUDGET.items())
_IS_REQUIRED_CREDIT = f"{_OF_CREDIT} AND c.organization_id = b.scope_id AND c.is_required"


@sql.together()
def hold(amounts: Mapping[str, int]) -> bool:
    """Add each amount to its budget's pending, or none of them.

    Return False if a budget has no room or no row yet (`read_headroom` creates it). Must run in a
    transaction.
    """
    # A batch can add up to more than a column holds, though each of its requests fits.
    if max(amounts.values()) > MAX_NANODOLLARS:
        return False
    _lock(amounts)
    values, parameters = sql.rows_of_values("hold", ["target", "amount"], sorted(amounts.items()))
    held = sql.fetch_all(
        f"""{values} UPDATE usage_budget AS b
        SET pending_nanodollars = b.pending_nanodollars + hold.amount
        FROM hold
        WHERE b.id = hold.target
        AND b.posted_nanodollars + b.pending_nanodollars <= {MAX_NANODOLLARS} - hold.amount
        AND NOT EXISTS (
            SELECT 1 {limit_of(amounts)}
            AND b.posted_nanodollars + b.pending_nanodollars > l.limit_nanodollars - hold.amount)
        AND NOT EXISTS (
            SELECT 1 FROM usage_credit AS c WHERE {_IS_REQUIRED_CREDIT}
            AND b.posted_nanodollars + b.pending_nanodollars > c.credited_nanodollars - hold.amount)
        AND (b.period <> '{weeks.DAY}' OR NOT EXISTS (
            SELECT 1 {limit_of(amounts, Period.WEEK)} AND (
                SELECT SUM(d.posted_nanodollars + d.pending_nanodollars)
                    > l.limit_nanodollars - SUM(COALESCE(of_day.amount, 0))
                FROM usage_budget AS d LEFT JOIN hold AS of_day ON of_day.target = d.id
                WHERE {weeks.days_of_week()})))
        RETURNING id""",  # noqa: S608  the text is ours, the values are parameters
        parameters,
    )
    if len(held) == len(amounts):
        return True
    _release({budget_id: amounts[budget_id] for (budget_id,) in held})
    return False


def _release(amounts: Mapping[str, int]) -> None:
    """Take back what was held a moment ago, without the two statements of a savepoint."""
    if amounts:
        values, parameters = sql.rows_of_values("hold", ["target", "amount"], sorted(amounts.items()))
        sql.execute(
            f"""{values} UPDATE usage_budget AS b
            SET pending_nanodollars = b.pending_nanodollars - hold.amount
            FROM hold WHERE b.id = hold.target""",  # noqa: S608
            parameters,
        )


@dataclass(slots=True)
class Headroom:
    """What a budget has spent and holds, and its limit: its own or the required credit, if lower."""

    posted_nanodollars: int
    pending_nanodollars: int
    limit_nanodollars: int
    is_credit: bool

    @property
    def left_nanodollars(self) -> int:
        """Return the part of the limit that is not spent; 0 if more was spent."""
        return max(0, self.limit_nanodollars - self.posted_nanodollars)

    def has(self, amount: int) -> bool:
        """Return whether the amount may be held now."""
        return self.could_ever_have(self.pending_nanodollars + amount)

    def could_ever_have(self, amount: int) -> bool:
        """Return whether the amount might be held once all other holds have ended."""
        return self.posted_nanodollars + amount <= self.limit_nanodollars


@sql.together()
def read_headroom(ids: Collection[str]) -> dict[str, Headroom]:
    """Create missing budgets, lock all of them and read how much room each has, and each of their weeks with
    a limit; in a transaction.
    """
    ensure(ids)
    _lock(ids)
    placeholders = ", ".join(["%s"] * len(ids))
    rows = sql.fetch_all(
        f"""SELECT
            b.id, b.posted_nanodollars, b.pending_nanodollars,
            (SELECT l.limit_nanodollars {limit_of(ids)}), c.credited_nanodollars,
            CASE WHEN b.period = '{weeks.DAY}'
                THEN (SELECT l.limit_nanodollars {limit_of(ids, Period.WEEK)}) END
        FROM usage_budget AS b
        LEFT JOIN usage_credit AS c ON {_IS_REQUIRED_CREDIT}
        WHERE b.id IN ({placeholders})""",  # noqa: S608  the text is ours, the values are parameters
        list(ids),
    )
    found: dict[str, Headroom] = {}
    limits_of_weeks: dict[str, int] = {}
    for budget_id, posted, pending, limit, credited, limit_of_week in rows:
        is_credit = credited is not None and (limit is None or credited <= limit)
        lower = credited if is_credit else limit
        found[budget_id] = Headroom(posted, pending, MAX_NANODOLLARS if lower is None else lower, is_credit)
        if limit_of_week is not None:
            limits_of_weeks[weeks.week_of(budget_id)] = limit_of_week
    if limits_of_weeks:
        for week_id, spent in weeks.read([BudgetKey.parse(each) for each in limits_of_weeks]).items():
            found[week_id] = Headroom(*spent, limits_of_weeks[week_id], is_credit=False)
    return found


def reserve(
    known: Mapping[str, Headroom], ids: Sequence[str], amount: int, time_zone: str
) -> BudgetExceeded | None:
    """Hold the amount in memory on those of these budgets that are known, or return the refusal; `hold` does
    it in the database.
    """
    if not amount:
        return None
    ids = [budget_id for budget_id in ids if budget_id in known]
    # Sorted, so that the same request names the same budget in its refusal whenever it is repeated.
    refusing = [budget_id for budget_id in sorted(ids) if not known[budget_id].has(amount)]
    if refusing:
        return _refusal(known, refusing, amount, time_zone)
    for budget_id in ids:
        known[budget_id].pending_nanodollars += amount
    return None


def _refusal(
    known: Mapping[str, Headroom], refusing: Sequence[str], amount: int, time_zone: str
) -> BudgetExceeded:
    """Return the refusal by the first budget that lacks room even when all holds end, or else by the first
    one that refuses.
    """
    for_good = [budget_id for budget_id in refusing if not known[budget_id].could_ever_have(amount)]
    budget_id = (for_good or refusing)[0]
    room = known[budget_id]
    return BudgetExceeded(
        BudgetKey.parse(budget_id),
        needed_nanodollars=amount,
        left_nanodollars=room.left_nanodollars,
        time_zone=time_zone,
        is_in_flight=not for_good,
        is_credit=room.is_credit,
    )


class Posted(NamedTuple):
    """A budget after a posting, with the numbers that its thresholds are compared with."""

    id: str
    posted_nanodollars: int
    soft_limit_reached_at: datetime | str | None
    signed_limit_nanodollars: int | None
    """The limit in nanodollars; negative for a soft limit without another one."""
    credited_nanodollars: int | None
    low_credit_nanodollars: int | None
    """The balance at which credit is low; None unless credit pays for this budget."""

    def reached_soft_limit_at(self, now: datetime) -> bool:
        """Return whether the posting of that time is the one that reached the soft limit."""
        if self.soft_limit_reached_at is None:
            return False
        # SQLite's times have no zone; all are UTC.
        return sql.to_datetime(self.soft_limit_reached_at).replace(tzinfo=None) == now.replace(tzinfo=None)


# The name by which RETURNING knows the row, though the statement calls it `b`.
_RETURNED = {"sqlite": "usage_budget", "postgresql": "b"}


@sql.together()
def post(
    now: datetime, changes: Mapping[str, tuple[int, int]], *, has_thresholds: bool = True
) -> list[tuple[Any, ...]]:
    """Release and post: each budget's pending falls by the first number, its posted rises by the second.

    Return the columns of `Posted` for each budget, in a list that is filled once the statement is sent
    (`sql.fetch_later`). It stays empty without `has_thresholds`: then no budget has a limit or credit.
    """
    if not changes:
        return []
    _lock(changes)
    values, parameters = sql.rows_of_values(
        "change", ["target", "released", "amount"], [(key, *changes[key]) for key in sorted(changes)]
    )
    update = f"""{values} UPDATE usage_budget AS b
        SET pending_nanodollars = b.pending_nanodollars - change.released,
        posted_nanodollars = b.posted_nanodollars + change.amount"""  # noqa: S608
    source = "FROM change WHERE b.id = change.target"
    if not has_thresholds:
        sql.execute(f"{update} {source}", parameters)
        return []
    budget = _RETURNED[connection.vendor]
    # A CASE, because each subquery costs something for each row, even if it finds nothing.
    is_paid = " AND ".join(f"{budget}.{name} = '{value}'" for name, value in CREDIT_BUDGET.items())
    credit = f"FROM usage_credit AS c WHERE c.organization_id = {budget}.scope_id"
    return sql.fetch_later(
        f"""{update},
        soft_limit_reached_at = COALESCE(b.soft_limit_reached_at, CASE WHEN EXISTS (
            SELECT 1 {limit_of(changes)}
            AND b.posted_nanodollars + change.amount >= l.soft_limit_nanodollars) THEN %s END)
        {source}
        RETURNING id, posted_nanodollars, soft_limit_reached_at, {signed_limit_of(budget)},
            CASE WHEN {is_paid} THEN (SELECT c.credited_nanodollars {credit}) END,
            CASE WHEN {is_paid} THEN (SELECT {LOW_CREDIT} {credit}) END""",
        [*parameters, sql.db_value(now)],
    )


def ensure(ids: Iterable[str]) -> None:
    """Create the budgets that do not exist yet, such as those of a new period or key."""
    # Sorted, because two transactions that insert the same rows in different orders would deadlock.
    # Conflicts are ignored: another admission may create the same budget now.
    rows = [(each, *BudgetKey.parse(each), 0, 0) for each in sorted(ids)]
    if rows:
        columns = ("id", *BudgetKey._fields, "posted_nanodollars", "pending_nanodollars")
        sql.insert("usage_budget", columns, rows, "ON CONFLICT DO NOTHING")


def _lock(ids: Iterable[str]) -> None:
    """Lock the rows in id order; SQLite's IMMEDIATE transaction already holds the whole database."""
    if connection.features.has_select_for_update:
        sql.execute("SELECT FROM usage_budget WHERE id = ANY(%s) ORDER BY id FOR UPDATE", [list(ids)])
