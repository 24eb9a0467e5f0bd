"""The list of all groups of a chart, which colours only a few of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from usage.insights import GroupList, Totals
from usage.pages import overview_form
from usage.pages.overview_cards import Spender
from usage.pages.overview_form import OverviewForm
from usage.pages.row_links import group_url


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


def all_groups(form: OverviewForm, whole: Totals, listed: GroupList | None) -> AllGroups | None:
    """Return the page of groups that the URL names, which were read with the chart; None if it names none."""
    if listed is None:
        return None
    number, group = form.cleaned_data["groups"], form.group_by
    spent = max(whole.amount_nanodollars, 1)
    lines = [
        Spender(
            form.label(group, row.label),
            group_url(form, group, row.group_id),
            row.totals,
            f"{min(max(100 * row.totals.amount_nanodollars / spent, 0), 100):.2f}%",
        )
        for row in listed.rows
    ]
    has_next = number * overview_form.GROUPS_PER_PAGE < listed.count and number < overview_form.MAX_PAGES
    return AllGroups(
        lines,
        listed.count,
        form.groups_url(number - 1) if number > 1 else "",
        form.groups_url(number + 1) if has_next else "",
        form.without("groups"),
    )
