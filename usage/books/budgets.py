"""Holds and spending of budgets: conditional updates, so that no budget and no prepaid credit is overdrawn.

An organization's budget "ever" counts all that it has spent, so its credit is one more limit of that budget.
Rows are always locked in id order, which rules out deadlocks.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache

from django.db import connection

from usage.database.sql import db_value, execute, fetch_all, rows_of_values
from usage.errors import BudgetExceeded
from usage.models import Budget, Period, Scope
from usage.models.budgets import BudgetKey, BudgetOwners

EVER = date(1970, 1, 1)
# The most that a column holds, and so the limit of an unlimited budget. Beyond it SQLite would compute in
# floating point and PostgreSQL fail.
MAX_NANODOLLARS = 2**63 - 1


def ids_for(owners: BudgetOwners, day: date) -> tuple[str, ...]:
    """Return the nine budgets in which a request that is admitted on that day counts, and the three of its
    end user, if the project counts them.
    """
    end_user_id = owners.end_user_id
    # Cached without the end user: a key has few owners, and any number of end users.
    own = _of_key(owners if end_user_id is None else owners._replace(end_user_id=None), day)
    return own if end_user_id is None else own + _of(Scope.END_USER, end_user_id, day)


# Each admission and each settlement asks for the same ids; building nine strings costs more than a look-up.
@lru_cache(maxsize=4_096)
def _of_key(owners: BudgetOwners, day: date) -> tuple[str, ...]:
    scopes = (
        (Scope.ORGANIZATION, owners.organization_id),
        (Scope.PROJECT, owners.project_id),
        (Scope.API_KEY, owners.api_key_id),
    )
    return tuple(budget_id for scope, scope_id in scopes for budget_id in _of(scope, scope_id, day))


def _of(scope: Scope, scope_id: int, day: date) -> tuple[str, ...]:
    periods = ((Period.DAY, day), (Period.MONTH, day.replace(day=1)), (Period.EVER, EVER))
    return tuple(str(BudgetKey(scope.value, scope_id, period.value, start)) for period, start in periods)


# Whether `l` is the owner's own limit of the budget `b`: `LimitKey` in SQL.
IS_OWN_LIMIT = "l.scope = b.scope AND l.scope_id = b.scope_id AND l.period = b.period"
# Two texts, because the second costs a subquery for each budget, which only budgets of end users need.
_OWN_LIMIT = f"FROM usage_budgetlimit AS l WHERE {IS_OWN_LIMIT}"
_NEAREST_LIMIT = """FROM (
        SELECT n.limit_nanodollars, n.soft_limit_nanodollars FROM usage_budgetlimit AS n
        WHERE n.period = b.period AND (n.scope = b.scope AND n.scope_id = b.scope_id
            OR b.scope = 'end_user' AND n.scope = 'project_user' AND n.scope_id = (
                SELECT u.project_id FROM accounts_enduser AS u WHERE u.id = b.scope_id)
            OR b.scope = 'end_user' AND n.scope = 'org_user' AND n.scope_id = (
                SELECT p.organization_id FROM accounts_enduser AS u
                JOIN accounts_project AS p ON p.id = u.project_id WHERE u.id = b.scope_id))
        ORDER BY CASE n.scope WHEN 'org_user' THEN 2 WHEN 'project_user' THEN 1 ELSE 0 END LIMIT 1) AS l
    WHERE 1 = 1"""


def _limit_of(ids: Iterable[str]) -> str:
    """Return the part of a query that finds the limit `l` of each budget `b`: an end user's is its own, its
    project's or its organization's.
    """
    return _NEAREST_LIMIT if any(each.startswith(Scope.END_USER.value) for each in ids) else _OWN_LIMIT


def hold(amounts: Mapping[str, int]) -> bool:
    """Add each amount to its budget's pending, or none of them.

    Return False if a budget has no room or no row yet (`read_headroom` creates it). Must run in a
    transaction.
    """
    # A batch can add up to more than a column holds, though each of its requests fits.
    if max(amounts.values()) > MAX_NANODOLLARS:
        return False
    _lock(amounts)
    values, parameters = rows_of_values("hold", ["target", "amount"], sorted(amounts.items()))
    held = fetch_all(
        f"""{values} UPDATE usage_budget AS b
        SET pending_nanodollars = b.pending_nanodollars + hold.amount
        FROM hold
        WHERE b.id = hold.target
        AND b.posted_nanodollars + b.pending_nanodollars <= {MAX_NANODOLLARS} - hold.amount
        AND NOT EXISTS (
            SELECT 1 {_limit_of(amounts)}
            AND b.posted_nanodollars + b.pending_nanodollars > l.limit_nanodollars - hold.amount)
        AND NOT EXISTS (
            SELECT 1 FROM usage_credit AS c
            WHERE b.scope = 'organization' AND b.period = 'ever'
            AND c.organization_id = b.scope_id AND c.is_required
            AND b.posted_nanodollars + b.pending_nanodollars > c.credited_nanodollars - hold.amount)
        RETURNING id""",  # noqa: S608  the text is ours, the values are parameters
        parameters,
    )
    if len(held) == len(amounts):
        return True
    _release({budget_id: amounts[budget_id] for (budget_id,) in held})
    return False


def _release(amounts: Mapping[str, int]) -> None:
    """Take back what was held a moment ago. A savepoint would cost every request that fits two more
    statements.
    """
    if amounts:
        values, parameters = rows_of_values("hold", ["target", "amount"], sorted(amounts.items()))
        execute(
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
        """Return whether the amount may be held."""
        return self.would_have(self.pending_nanodollars + amount)

    def would_have(self, amount: int) -> bool:
        """Return whether the amount might be held if nothing else were."""
        return self.posted_nanodollars + amount <= self.limit_nanodollars


def read_headroom(ids: Collection[str]) -> dict[str, Headroom]:
    """Create missing budgets, lock all of them and read how much room each has; in a transaction."""
    ensure(ids)
    _lock(ids)
    placeholders = ", ".join(["%s"] * len(ids))
    rows = fetch_all(
        f"""SELECT
            b.id, b.posted_nanodollars, b.pending_nanodollars,
            (SELECT l.limit_nanodollars {_limit_of(ids)}), c.credited_nanodollars
        FROM usage_budget AS b
        LEFT JOIN usage_credit AS c
            ON b.scope = 'organization' AND b.period = 'ever'
            AND c.organization_id = b.scope_id AND c.is_required
        WHERE b.id IN ({placeholders})""",  # noqa: S608  the text is ours, the values are parameters
        list(ids),
    )
    found: dict[str, Headroom] = {}
    for budget_id, posted, pending, limit, credited in rows:
        is_credit = credited is not None and (limit is None or credited <= limit)
        lower = credited if is_credit else limit
        found[budget_id] = Headroom(posted, pending, MAX_NANODOLLARS if lower is None else lower, is_credit)
    return found


def reserve(
    known: Mapping[str, Headroom], ids: Sequence[str], amount: int, time_zone: str
) -> BudgetExceeded | None:
    """Hold the amount in memory on these budgets, or return the refusal; `hold` does it in the database."""
    if not amount:
        return None
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
    """Name the first budget that refuses for good, if any: for this one a retry would be in vain."""
    for_good = [budget_id for budget_id in refusing if not known[budget_id].would_have(amount)]
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


def post(now: datetime, changes: Mapping[str, tuple[int, int]]) -> None:
    """Release and post: each budget's pending falls by the first number, its posted rises by the second."""
    if not changes:
        return
    _lock(changes)
    values, parameters = rows_of_values(
        "change", ["target", "released", "amount"], [(key, *changes[key]) for key in sorted(changes)]
    )
    execute(
        f"""{values} UPDATE usage_budget AS b
        SET pending_nanodollars = b.pending_nanodollars - change.released,
        posted_nanodollars = b.posted_nanodollars + change.amount,
        soft_limit_reached_at = COALESCE(b.soft_limit_reached_at, CASE WHEN EXISTS (
            SELECT 1 {_limit_of(changes)}
            AND b.posted_nanodollars + change.amount >= l.soft_limit_nanodollars) THEN %s END)
        FROM change WHERE b.id = change.target""",  # noqa: S608
        [*parameters, db_value(now)],
    )


def ensure(ids: Iterable[str]) -> None:
    """Create the budgets that do not exist yet, such as those of a new period or key."""
    # Sorted, because two transactions that insert the same rows in different orders would deadlock.
    # Conflicts are ignored: another admission may create the same budget now.
    rows = [Budget(id=each, **BudgetKey.parse(each)._asdict()) for each in sorted(ids)]
    Budget.objects.bulk_create(rows, ignore_conflicts=True)


def _lock(ids: Iterable[str]) -> None:
    """Lock the rows in id order; SQLite's IMMEDIATE transaction already holds the whole database."""
    if connection.features.has_select_for_update:
        execute("SELECT FROM usage_budget WHERE id = ANY(%s) ORDER BY id FOR UPDATE", [list(ids)])
