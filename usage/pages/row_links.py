"""The URLs of the requests, and of the ledger entries, behind the numbers of pages of sums."""

from usage.insights import GroupBy
from usage.models import Kind
from usage.models.generations import ANY_ERROR
from usage.pages.filters import TIME
from usage.pages.links import admin_time
from usage.pages.overview_form import OverviewForm

# The parameters of the list of ledger entries for those of our filters that it has.
_ENTRY_FILTERS = {"organization": "organization__id__exact", "model": "model", "outcome": "outcome__exact"}
# The filters that the list of requests has, too.
_FILTERS = (
    "organization", "project", "key", "key_kind", "model", "outcome", "error", "metadata", "end_user",
)  # fmt: skip
# Groups whose sums are those of single requests, by the second.
_OF_SINGLE_REQUESTS = {"error", "metadata", "end_user"}


def rows_url(form: OverviewForm, **narrowed: object) -> str:
    """Return the URL of the requests behind a number: those that were settled in the range."""
    return form.link("requests", rows_query(form, **narrowed))


def rows_query(form: OverviewForm, **narrowed: object) -> dict[str, object]:
    """Return the parameters of that list, and of its file."""
    own = form.parameters(*TIME) | form.parameters(*_FILTERS)
    # The reader's own times may be within a day that counts as a whole, or within an hour.
    counted = form.over.counted
    is_exact = form.is_of_requests or narrowed.keys() & _OF_SINGLE_REQUESTS
    if counted and (form.has_days_of_end_users or (counted != form.over and not is_exact)):
        own |= {"days": "", "start": counted.start.isoformat(), "end": counted.end.isoformat()}
    return {**own, **narrowed, "time": "settled"}


def group_url(form: OverviewForm, group: GroupBy, group_id: str) -> str:
    """Return the URL of the requests of one group; empty if their list can't be narrowed to it."""
    if group != "metadata":
        return rows_url(form, **{group: group_id}) if group_id else ""
    pair = pair_of(form, group_id)
    return rows_url(form, metadata=pair) if pair else ""


def pair_of(form: OverviewForm, group_id: str) -> str:
    """Return the filter of a group of metadata; empty if there is none: of requests without the key,
    beside the filter of another key, and of a key that the filter's first "=" would cut.
    """
    key, narrowed = form.shown_key, form.filters.metadata
    is_possible = group_id and "=" not in key and (narrowed is None or narrowed[0] == key)
    return f"{key}={group_id}" if is_possible else ""


def errors_url(form: OverviewForm) -> str:
    """Return the URL of the requests that failed: in any way, or with the outcome that is asked for."""
    return rows_url(form) if form.filters.outcome else rows_url(form, outcome=ANY_ERROR)


def entries_url(form: OverviewForm, kind: Kind) -> str:
    """Return the URL of the ledger entries of that kind behind a number.

    Their list can't be narrowed to a project or keys: then it is the URL of the requests.
    """
    if form.parameters("project", "key", "key_kind"):
        return rows_url(form)
    narrowed = {_ENTRY_FILTERS[name]: value for name, value in form.parameters(*_ENTRY_FILTERS).items()}
    start, end = admin_time(form.over.start), admin_time(form.over.end)
    times = {"kind__exact": kind, "created_at__gte": start, "created_at__lt": end}
    return form.link("usage_ledgerentry_changelist", {**times, **narrowed})
