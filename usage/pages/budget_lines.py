"""A budget limit as pages show it, and who spent its budget."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from django.utils import timezone

from accounts.models import Organization
from usage import insights
from usage.budget_words import BudgetWords, words
from usage.database.clock import hour_of
from usage.insights import GroupBy, Range
from usage.insights.budget_limit_list import LimitUse, filters_of
from usage.models import Scope
from usage.pages.filters import parameters_of
from usage.pages.gauges import Fullness, bar_parts, fullness
from usage.pages.overview_cards import Spender
from usage.rollups import closed_days

# The keys, models or projects that a budget's page lists.
_SPENDERS = 10
# What is asked for about the budgets of each kind.
_SPENT_BY: dict[str, tuple[GroupBy, ...]] = {
    Scope.ORGANIZATION: ("project", "key", "model"),
    Scope.PROJECT: ("key", "model"),
    Scope.API_KEY: ("model",),
    Scope.END_USER: ("model",),
}
# The URL of the requests that match these parameters.
RequestsURL = Callable[[dict[str, object]], str]


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """A limit as the pages show it; the bar's lengths are in percent of the limit, 100 together at most."""

    use: LimitUse
    name: str
    words: BudgetWords
    resets: str
    full: Fullness | None
    posted: str
    held: str

    @classmethod
    def of(cls, use: LimitUse, above: str = "") -> "BudgetLine":
        """Return the line; `above` is the beginning of the name that the page has said already."""
        limit, most = use.limit, use.limit.limit_nanodollars
        posted, held = bar_parts(use.posted_nanodollars, use.pending_nanodollars, most)
        used = use.posted_nanodollars + use.pending_nanodollars
        resets_on = use.key.resets_on
        return cls(
            use,
            limit.owner_name.removeprefix(above),
            words(use.key),
            f"{resets_on:%Y-%m-%d} 00:00" if resets_on else "never",
            None if most is None or use.is_of_each_end_user else fullness(used, most),
            posted,
            held,
        )


def period_of(use: LimitUse, organization: Organization) -> Range:
    """Return the budget's current period up to the end of this hour."""
    start = datetime.combine(use.key.period_start, time(), ZoneInfo(organization.time_zone))
    if use.key.resets_on is None:
        start = hour_of(organization.created_at)
    end = hour_of(timezone.now()) + timedelta(hours=1)
    # "hour": the sums of a total may be of more days than a chart may have.
    return Range(start.astimezone(UTC), end.astimezone(UTC), "hour")


def requests_of(use: LimitUse, over: Range) -> dict[str, object] | None:
    """Return the parameters of the requests that count in the budget; None if it has no list."""
    filters = filters_of(use.key)
    if filters is None:
        return None
    times = {"start": over.start.isoformat()} if use.key.resets_on else {}
    return {**parameters_of(filters), **times}


def spent_by(
    use: LimitUse, organization: Organization, requests_url: RequestsURL
) -> list[tuple[GroupBy, list[Spender]]]:
    """Return what spent the budget, by project, key and model, each with the URL of its requests."""
    filters = filters_of(use.key)
    if filters is None:
        return []
    over = period_of(use, organization)
    parameters = requests_of(use, over) or {}
    if use.key.resets_on is not None:
        # The budget counts a request when it begins, these sums when it finishes.
        parameters["time"] = "settled"
    # The rollup of end users has days of UTC, of which one would begin before the period.
    is_by_request = filters.end_user is not None and use.key.resets_on is not None and over.start.hour > 0
    filters = replace(filters, is_by_request=is_by_request)
    with closed_days.read_once(over.start, over.end):
        tops = insights.tops(over, _SPENT_BY[use.limit.scope], filters, _SPENDERS)
    return [
        (
            group,
            [
                _spender(row, organization, use, requests_url({**parameters, group: row.group_id}))
                for row in rows
            ],
        )
        for group, rows in tops.items()
    ]


def _spender(row: insights.Row, organization: Organization, use: LimitUse, url: str) -> Spender:
    share = min(max(100 * row.totals.amount_nanodollars / max(use.posted_nanodollars, 1), 0), 100)
    return Spender(row.label.removeprefix(f"{organization} / "), url, row.totals, f"{share:.2f}%")
