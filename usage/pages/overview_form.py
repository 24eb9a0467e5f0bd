"""The GET form of the Overview: a range of time, filters, a grouping and a measure, with the page's links."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, get_args

from django import forms
from django.db.models import QuerySet
from django.http import QueryDict
from django.utils import timezone

from accounts import access
from accounts.models import Project
from accounts.natural_order import NaturalOrder
from usage import insights
from usage.insights import Bucket, Filters, GroupBy, NewestRequests, Range, SumsSpec, request_sums
from usage.models import Outcome
from usage.pages.filters import NO_HELP, Chip, UsageFilterForm, choice_field, words
from usage.pages.links import ADMIN, Choice, Pages
from usage.pages.measures import MEASURES, Measure

# Keys of metadata that are offered; a URL may name any.
_MAX_KEYS = 12
# Pages of the list of all groups.
MAX_PAGES = 1_000
# So that the page stays below 150 kB.
GROUPS_PER_PAGE = 30
# The links to what the chart can be grouped by.
_GROUPS: Mapping[GroupBy, str] = {
    "organization": "Organization",
    "project": "Project",
    "model": "Model",
    "key": "Key",
    "outcome": "Outcome",
    "error": "Error",
    "metadata": "Metadata",
    "end_user": "End user",
}


@dataclass(frozen=True, slots=True)
class SumsPage:
    """A page of sums: its name, and what it shows unless its URL says otherwise."""

    name: str = "index"
    usual_group: str = "model"
    """The groups if the URL has none; empty: no groups."""
    usual_measure: str = "spend"
    is_about_failures: bool = False
    """Whether the page shows failures and hours, which the rollup of end users does not have."""


OVERVIEW = SumsPage()
# What the rollup of end users does not have.
_NOT_BY_END_USER = ("key", "key_kind", "outcome", "error", "metadata")


class OverviewForm(UsageFilterForm):
    """What the Overview or another page of sums shows."""

    usual_days = "7"
    over: Range
    model_kinds: Mapping[str, str] = {}
    """The kinds of the models whose requests are no completions."""

    outcome = choice_field("Outcome", {name: words(name) for name in Outcome.values})
    group = choice_field("By", {name: words(name) for name in get_args(GroupBy)}, blank=None)
    measure = choice_field("Measure", {name: each.title for name, each in MEASURES.items()}, blank=None)
    end_user = forms.CharField(
        required=False,
        label="End user",
        max_length=512,
        widget=forms.TextInput(NO_HELP | {"placeholder": "full name", "type": "search"}),
    )

    metadata_key = forms.CharField(
        required=False, label="Metadata key", max_length=64, strip=False, widget=forms.HiddenInput
    )

    groups = forms.IntegerField(required=False, min_value=1, max_value=MAX_PAGES, widget=forms.HiddenInput)

    def __init__(
        self, query: QueryDict, person: access.Person, pages: Pages = ADMIN, sums_page: SumsPage = OVERVIEW
    ) -> None:
        super().__init__(query, person, pages)
        self.page, self.sums_page = sums_page.name, sums_page

    def clean(self) -> dict[str, Any]:
        """Read the range of time; group and measure as usual unless the URL says otherwise."""
        data = super().clean()
        data["group"] = data.get("group") or self.sums_page.usual_group
        data["measure"] = data.get("measure") or (
            "requests" if data["group"] == "error" else self.sums_page.usual_measure
        )
        if self.has_days_of_end_users:
            self._choose_counting_project(data)
        elif self.is_by_end_user and access.is_operator(self.person) and not self.is_about_one_owner:
            self.add_error("end_user", "Choose the organization, project or key of the end users, too.")
        return data

    def _choose_counting_project(self, data: dict[str, Any]) -> None:
        """Choose a project that counts its end users, unless one is chosen; refuse too many to add up."""
        projects = self._counting_projects(data.get("organization"))
        chosen = {"pk": data["project"]} if data.get("project") else {}
        found = projects.filter(**chosen).first()
        if found is None:
            text = "This project does not count its" if chosen else "No project counts its"
            self.add_error("end_user", f"{text} end users. The switch “Counts end users” is on its page.")
            return
        data["project"] = found.pk
        if not data.get("end_user") and self.over and not self._can_rank(found.pk):
            text = (
                "Too many end users to add up this range. Choose fewer days or, of all models, one calendar"
            )
            self.add_error("start" if data.get("start") else "days", f"{text} month (UTC).")

    def _can_rank(self, project_id: int) -> bool:
        return insights.can_rank(self.over, project_id, self.cleaned_data.get("model") or None)

    @property
    def shown_measure(self) -> Measure:
        return MEASURES[self.cleaned_data["measure"]]

    def label(self, group: GroupBy, name: str) -> str:
        """Return the name of a group as the page shows it."""
        if group in ("error", "outcome"):
            return words(name)
        if group == "project" and self.pages.organization:
            return name.removeprefix(f"{self.pages.organization} / ")
        return f"{name} ({self.model_kinds[name]})" if group == "model" and name in self.model_kinds else name

    def _counting_projects(self, organization_id: int | None) -> "QuerySet[Project]":
        rows = Project.objects.filter(counts_end_users=True).select_related("organization")
        rows = rows.filter(organization=organization_id) if organization_id else rows
        return self.pages.seen_by(
            self.person, rows.order_by(NaturalOrder("organization__name"), NaturalOrder("name"))
        )

    @property
    def is_by_end_user(self) -> bool:
        """Return whether the page shows the end users of a project, or one of them."""
        return bool(self.cleaned_data.get("end_user")) or self.cleaned_data.get("group") == "end_user"

    @property
    def finds_end_users_in_requests(self) -> bool:
        """Return whether a page of end users has those of the newest requests: the rollup has too little."""
        data = self.cleaned_data
        is_beyond = data.get("group") in _NOT_BY_END_USER or any(map(data.get, _NOT_BY_END_USER))
        return self.sums_page.is_about_failures or is_beyond

    @property
    def has_days_of_end_users(self) -> bool:
        """Return whether the page shows the days that the rollup of end users has."""
        return self.is_by_end_user and not self.finds_end_users_in_requests

    @cached_property
    def counts_end_users(self) -> bool:
        """Return whether the rollup has the end users of the project that the page is about."""
        data = self.cleaned_data
        if data["project"] is None or any(data[name] for name in _NOT_BY_END_USER):
            return False
        if self.is_by_end_user:
            return True
        project = self.row("project")
        counts = project is not None and project.counts_end_users
        # The console saves the query: its link may lead to the advice to choose fewer days.
        return counts and (self.pages.organization is not None or self._can_rank(project.pk))

    @property
    def filters(self) -> Filters:
        key = self.shown_key if self.group_by == "metadata" else None
        return replace(self._ungrouped_filters, metadata_key=key)

    @cached_property
    def _ungrouped_filters(self) -> Filters:
        """Return the filters without the key of metadata, which is one of those that they leave."""
        end_user = self.cleaned_data.get("end_user") or None
        is_by_request = self.is_by_end_user and self.finds_end_users_in_requests
        filters = replace(super().filters, end_user=end_user, is_by_request=is_by_request)
        if not is_by_request:
            return filters
        known = insights.with_stored_name(self.with_known_owners(filters))
        return replace(filters, end_user=known.end_user, is_stored_name=known.is_stored_name)

    @cached_property
    def metadata_keys(self) -> Sequence[str]:
        """Return the keys of the newest requests' metadata, if the page groups by one."""
        # Not while the form is validated: its organization may be chosen for the person afterwards.
        return insights.metadata_keys(self.newest.rows) if self.group_by == "metadata" else []

    @cached_property
    def newest(self) -> NewestRequests:
        """Return the newest requests, for what the rollups don't know."""
        return insights.newest_settled(self.over, self.with_known_owners(self._ungrouped_filters))

    @property
    def shown_key(self) -> str:
        """Return the key by whose values the page groups: the most frequent one, unless the URL names one."""
        return self.cleaned_data["metadata_key"] or next(iter(self.metadata_keys), "metadata")

    @property
    def group_title(self) -> str:
        """Return what the groups are: of metadata the key."""
        return self.shown_key if self.group_by == "metadata" else words(self.group_by)

    @property
    def column_title(self) -> str:
        """Return the heading of the groups' names: a key of metadata keeps its case."""
        has_key = self.group_by == "metadata" and self.shown_key != "metadata"
        return self.shown_key if has_key else words(self.group_by).capitalize()

    @property
    def has_partial_groups(self) -> bool:
        """Return whether the groups don't add up to all requests, because no rollup has them."""
        is_by_request = self.group_by == "end_user" and self.finds_end_users_in_requests
        return is_by_request or self.group_by in ("error", "metadata")

    @property
    def is_about_one_owner(self) -> bool:
        """Return whether the page is narrowed to an organization, a project or a key."""
        return any(self.cleaned_data.get(name) is not None for name in ("organization", "project", "key"))

    @property
    def is_of_requests(self) -> bool:
        """Return whether the filters are of columns that only requests have."""
        return request_sums.are_needed(None, self.filters)

    @property
    def has_utc_days(self) -> bool:
        """Return whether the rollup of end users has exactly the range, which may end with this hour."""
        days = self.over.in_utc_days(timezone.now())
        return (days.start, days.end) == (self.over.start, self.over.end)

    @property
    def is_comparable(self) -> bool:
        """Return whether the range before has sums of the same kind.

        Of the newest requests there may be more in one of the two times, and the days of an end user before
        are whole ones, though today is not over.
        """
        is_day_open = self.filters.has_days_of_end_user and self.over.end > timezone.now()
        return not (self.is_of_requests or is_day_open)

    @cached_property
    def chart(self) -> SumsSpec:
        """Return what the chart shows: of the newest requests if the rollups know too little."""
        is_of_requests = request_sums.are_needed(self.group_by, self.filters)
        newest = self.newest if is_of_requests else None
        number = self.cleaned_data["groups"] if self.is_grouped else None
        listed = range((number - 1) * GROUPS_PER_PAGE, number * GROUPS_PER_PAGE) if number else None
        known = self.with_known_owners(self.filters)
        return SumsSpec(self.over, self.group_by, known, newest, listed=listed)

    def newest_since(self) -> datetime | None:
        """Return how far back the chart reaches if it has the newest requests of the range only."""
        return self.chart.newest and self.chart.newest.since

    @property
    def reader_time_zone(self) -> str:
        """Return UTC for days of end users: their dates name days of UTC."""
        return "UTC" if self.has_days_of_end_users else super().reader_time_zone

    def read_range(self, query: Mapping[str, str], now: datetime) -> Range:
        """Return the range: by UTC day for end users, and by day where hours would be too many."""
        if self.has_days_of_end_users:
            over = insights.parse_range({**query, "bucket": "day", "time_zone": "UTC"}, now)
            return over.in_utc_days(now)
        usual = insights.parse_range({**query, "bucket": ""}, now)
        # A link with hours may get a longer range from another link of the page; days are the better answer
        # than an error.
        is_too_long = query["bucket"] == "hour" and not usual.fits("hour")
        return usual if is_too_long else insights.parse_range(query, now)

    @property
    def is_grouped(self) -> bool:
        return bool(self.cleaned_data["group"])

    @property
    def group_by(self) -> GroupBy:
        """Return the kind of thing that each group of the chart is."""
        group: GroupBy = self.cleaned_data["group"]
        return group

    def offer_choices(self) -> None:
        """Show the range and what the person can choose here, and hide the other fields."""
        edges = "".join(self.parameters("start", "end").values())
        has_times = "T" in edges and not self.has_days_of_end_users
        kind, pattern = ("datetime-local", "%Y-%m-%dT%H:%M") if has_times else ("date", "%Y-%m-%d")
        # A date at the end is included, a time is not.
        last = self.over.end if has_times else self.over.end - timedelta(microseconds=1)
        dates = {"start": f"{self.over.start:{pattern}}", "end": f"{last:{pattern}}"}
        rest = {name: value for name, value in self.query.items() if name != "days"}
        self.data = rest | {name: self.cleaned_data[name] for name in ("group", "measure")} | dates
        shown = {"end_user"} if self.is_by_end_user else set()
        shown |= {"project"} if self.has_days_of_end_users else set()
        for name, field in self.fields.items():
            if name in dates:
                field.widget = forms.TextInput({"type": kind, "required": True})
            elif name not in shown:
                field.widget = forms.HiddenInput()
        if self.has_days_of_end_users:
            projects = self._counting_projects(self.cleaned_data["organization"])
            project: Any = self.fields["project"]
            self.data["project"] = project.offer(projects, self.cleaned_data["project"])
        options = [(row.pk, str(row)) for row in self.own_organizations]
        if len(options) > 1:
            self.fields["organization"].widget = forms.Select(choices=options)

    def chips(self) -> list[Chip]:
        name = self.cleaned_data["end_user"]
        return [*super().chips(), *([Chip(f"end user: {name}", self.without("end_user"))] if name else [])]

    # ---- links

    def group_links(self) -> list[Choice]:
        names: dict[str, str] = {name: text for name, text in _GROUPS.items() if self.offers_group(name)}
        everything = {} if self.sums_page.usual_group else {"": "All"}
        return [
            self._choice(text, name == self.group_by, group=name, measure="", metadata_key="", groups="")
            for name, text in (everything | names).items()
        ]

    def offers_group(self, group: GroupBy) -> bool:
        if group == "end_user":
            is_found = self.finds_end_users_in_requests and self.is_about_one_owner
            return is_found or self.is_by_end_user or self.counts_end_users
        if group == "metadata" and self.pages.organization:
            projects = self.pages.projects()
            own = [row for row in projects if row.pk == self.cleaned_data["project"]] or projects
            return self.group_by == group or any(row.stores_metadata for row in own)
        return group != "organization" or not self.cleaned_data["organization"]

    def metadata_links(self) -> list[Choice]:
        keys = self.metadata_keys[:_MAX_KEYS]
        return [self._choice(key, key == self.shown_key, metadata_key=key, groups="") for key in keys]

    def bucket_links(self) -> list[Choice]:
        """Return links to hours and days as columns; none where there would be too many hours."""
        has_hours = self.over.fits("hour") and not self.has_days_of_end_users
        names: tuple[Bucket, ...] = get_args(Bucket) if has_hours else ()
        return [
            self._choice(f"{name}s".capitalize(), name == self.over.bucket, bucket=name) for name in names
        ]

    def measure_links(self) -> list[Choice]:
        chosen = self.cleaned_data["measure"]
        return [self._choice(each.title, name == chosen, measure=name) for name, each in MEASURES.items()]

    def groups_url(self, number: int = 1) -> str:
        """Return the URL of this page with a page of the list of all groups."""
        return self.link(self.page, self.query | {"groups": number}) + "#all-groups"
