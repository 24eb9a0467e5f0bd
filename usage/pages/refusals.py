"""The requests that were refused before they began, for the page with the errors of requests that ran."""

from collections.abc import Callable
from dataclasses import dataclass

from usage.database.clock import hour_of
from usage.database.time_limit import time_limit
from usage.insights import Range
from usage.pages.links import admin_time, page_url
from usage.pages.overview_form import OverviewForm
from usage.rollups import refused_requests
from usage.rollups.refused_requests import KeyRefusals

# The lines that a page shows: the most frequent ones.
MAX_LINES = 20


@dataclass(frozen=True, slots=True)
class Refusal:
    """A key, why it was refused, and the URL of its refusals by hour, if the reader has such a page."""

    row: KeyRefusals
    key: str
    owner: str
    url: str


@time_limit()
def refusals(form: OverviewForm, url_of: Callable[[KeyRefusals, Range], str]) -> list[Refusal] | None:
    """Return the form's refusals, the most frequent first; None for filters that refusals don't have."""
    filters, columns = form.filters, form.filters.by_column()
    if form.is_of_requests or filters.model or filters.outcome or filters.is_test is not None:
        return None
    owners = {name: value for name, value in columns.items() if name.endswith("_id")}
    rows = refused_requests.by_key(form.over.start, form.over.end, MAX_LINES, **owners)
    return [
        Refusal(row, row.key, f"{row.organization} / {row.project}", url_of(row, form.over)) for row in rows
    ]


def list_url(row: KeyRefusals, over: Range) -> str:
    """Return the URL of the admin's list of these refusals by hour."""
    times = {"hour__gte": admin_time(hour_of(over.start)), "hour__lt": admin_time(over.end)}
    return page_url(
        "usage_refusedrequests_changelist", {"api_key__id__exact": row.api_key_id, "code": row.code, **times}
    )
