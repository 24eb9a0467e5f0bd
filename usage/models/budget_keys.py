"""What identifies a budget and a limit, and in which budgets a request counts.

Tables, statements and forms take the columns of both keys from here, and the ids of budgets are the texts of
their keys. A budget of another kind, such as one for each model, is a last field of `LimitKey` and of
`BudgetKey`, blank by default, a column, and a factor of `budget_ids`.
"""

from collections.abc import Mapping
from datetime import date, timedelta
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, Self

from django.db import models

# The first day of every budget without an end.
EVER = date(1970, 1, 1)


class Scope(models.TextChoices):
    """Kind of owner of a budget or, the last two, of a limit that each of their end users has."""

    ORGANIZATION = "organization"
    PROJECT = "project"
    API_KEY = "key"
    END_USER = "end_user"
    PROJECT_END_USERS = "project_user", "each end user of a project"
    ORGANIZATION_END_USERS = "org_user", "each end user of an organization"


class Period(models.TextChoices):
    """Length of time that one budget counts."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    EVER = "ever"

    def start(self, day: date) -> date:
        """Return the first day of the period that contains the day."""
        match self:
            case Period.DAY:
                return day
            case Period.WEEK:
                return day - timedelta(days=day.weekday())
            case Period.MONTH:
                return day.replace(day=1)
            case Period.EVER:
                return EVER

    def end(self, start: date) -> date | None:
        """Return the first day of the next period; None if there is none."""
        match self:
            case Period.DAY:
                return start + timedelta(days=1)
            case Period.WEEK:
                return start + timedelta(days=7)
            case Period.MONTH:
                return (start + timedelta(days=31)).replace(day=1)
            case Period.EVER:
                return None


# A budget of one of these periods is a row. That of a week is the sum of the rows of its days.
ROW_PERIODS = (Period.DAY, Period.MONTH, Period.EVER)


class LimitKey(NamedTuple):
    """What identifies a limit: its owner, and the budgets of the owner that it limits."""

    scope: str
    scope_id: int
    period: str

    def __str__(self) -> str:
        # The subject of events and the beginning of budgets' ids: a blank part changes no text of before.
        return "/".join(str(part) for part in self if part != "")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the key with this text. Only the last part may have a slash."""
        scope, scope_id, *parts = text.split("/", len(cls._fields) - 1)
        return cls(scope, int(scope_id), *parts)

    @classmethod
    def text_in_sql(cls, table: str) -> str:
        """Return the expression for the text of the key of a table's row."""
        parts = (f"COALESCE('/' || NULLIF(CAST({table}.{name} AS TEXT), ''), '')" for name in cls._fields)
        return f"SUBSTR({' || '.join(parts)}, 2)"

    @classmethod
    def of(cls, row: object) -> Self:
        """Return the key of a limit, or of the own limit of a budget or of its key."""
        return cls._make(_limit_columns(row))

    @classmethod
    def of_owner(cls, scope: str, scope_id: int, parts: Mapping[str, Any]) -> Self:
        """Return the key of the owner's limit with these `LIMIT_PARTS`, as a form or an event has them."""
        return cls(scope, scope_id, **{name: parts.get(name, "") for name in LIMIT_PARTS})

    def budget(self, day: date) -> "BudgetKey":
        """Return the key of the budget that it limits on that day."""
        return BudgetKey(**self._asdict(), period_start=Period(self.period).start(day))


class BudgetKey(NamedTuple):
    """What identifies a budget: whose money, and which period. Its text is the row's id: that of its limit's
    key, and its first day.
    """

    scope: str
    scope_id: int
    period: str
    period_start: date

    def __str__(self) -> str:
        return f"{LimitKey.of(self)}/{self.period_start}"

    @property
    def resets_on(self) -> date | None:
        """Return the first day of the next period; None if there is none."""
        return Period(self.period).end(self.period_start)

    @property
    def row_ids(self) -> tuple[str, ...]:
        """Return the ids of the rows that have its amounts: its own, or those of the days of a week."""
        if self.period != Period.WEEK:
            return (str(self),)
        days = (self.period_start + timedelta(days=number) for number in range(7))
        return tuple(str(self._replace(period=Period.DAY.value, period_start=day)) for day in days)

    @classmethod
    def at(cls, scope: Scope, scope_id: int, period: Period, day: date) -> Self:
        """Return the key of the owner's budget on that day."""
        return cls(scope.value, scope_id, period.value, period.start(day))

    @classmethod
    def of(cls, row: object) -> Self:
        return cls._make(_budget_columns(row))

    @classmethod
    def parse(cls, budget_id: str) -> Self:
        limit, _, start = budget_id.rpartition("/")
        return cls(**LimitKey.parse(limit)._asdict(), period_start=date.fromisoformat(start))


# The parts of the keys beside the owner. Forms, lists and events have a field for each.
LIMIT_PARTS, BUDGET_PARTS = LimitKey._fields[2:], BudgetKey._fields[2:]
# In a subquery: the limit, or the budgets of the limit, of each row of the outer query.
OUTER_LIMIT = LimitKey._make(map(models.OuterRef, LimitKey._fields))
_limit_columns = attrgetter(*LimitKey._fields)
_budget_columns = attrgetter(*BudgetKey._fields)


class BudgetOwners(NamedTuple):
    """Those in whose budgets a request counts: columns of generations and of ledger entries."""

    organization_id: int
    project_id: int
    api_key_id: int
    end_user_id: int | None
    """None if the project does not count its end users."""

    @classmethod
    def of(cls, row: object) -> Self:
        """Return the owners of an admission, a generation or an entry."""
        return cls._make(_owner_columns(row))

    def budget_ids(self, day: date) -> tuple[str, ...]:
        """Return the nine rows in which a request of that day counts, or twelve with its end user's."""
        owners = zip(_SCOPES.values(), self, strict=True)
        return tuple(chain(*(_of(scope, pk, day) for scope, pk in owners if pk is not None)))

    def week_ids(self, day: date) -> tuple[str, ...]:
        """Return the budgets of that day's week, which have no rows."""
        owners = zip(_SCOPES.values(), self, strict=True)
        return tuple(str(BudgetKey.at(scope, pk, Period.WEEK, day)) for scope, pk in owners if pk is not None)


_owner_columns = attrgetter(*BudgetOwners._fields)
_SCOPES = {
    "organization_id": Scope.ORGANIZATION,
    "project_id": Scope.PROJECT,
    "api_key_id": Scope.API_KEY,
    "end_user_id": Scope.END_USER,
}
assert tuple(_SCOPES) == BudgetOwners._fields, "each owner has its budgets"


# Each admission and each settlement asks for the same ids; building them costs more than a look-up.
@lru_cache(maxsize=16_384)
def _of(scope: Scope, scope_id: int, day: date) -> tuple[str, ...]:
    return tuple(str(BudgetKey.at(scope, scope_id, period, day)) for period in ROW_PERIODS)
