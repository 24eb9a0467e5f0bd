"""The list of all groups of a chart, which colours only a few of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from usage import insights
from usage.insights import Totals
from usage.pages.overview_cards import Spender
from usage.pages.overview_form import MAX_PAGES, OverviewForm

# So that the page stays below 150 kB.
GROUPS_PER_PAGE = 50


@dataclass(frozen=True, slots=True)
class AllGroups:
    """A page of the groups, the most expensive first."""

    lines: Sequence[Spender]
    count: int
    """The number of groups on all pages."""
    previous_url: str
    next_url: str
    close_url: str
    """The URL of the same page without this list."""


def all_groups(form: OverviewForm, whole: Totals) -> AllGroups | None:
    """Return the page of groups that the URL names; None if it names none."""
    number = form.cleaned_data["groups"]
    if not number or not form.is_grouped:
        return None
    start = (number - 1) * GROUPS_PER_PAGE
    rows, count = insights.ranked(form.chart, start, GROUPS_PER_PAGE)
    spent = max(whole.amount_nanodollars, 1)
    group = form.group_by
    lines = [
        Spender(
            form.label(group, row.label),
            form.group_url(group, row.group_id),
            row.totals,
            f"{min(max(100 * row.totals.amount_nanodollars / spent, 0), 100):.2f}%",
        )
        for row in rows
    ]
    return AllGroups(
        lines,
        count,
        form.groups_url(number - 1) if number > 1 else "",
        form.groups_url(number + 1) if start + GROUPS_PER_PAGE < count and number < MAX_PAGES else "",
        form.without("groups"),
    )
