"""The GET form of the Overview: a range of time, filters, a grouping and a measure, with the page's links."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from django import forms
from django.db.models import QuerySet
from django.utils import timezone

from accounts import access
from accounts.models import Organization, Project
from usage import formatting, insights
from usage.insights import Bucket, Filters, GroupBy, Range, Totals
from usage.models import Kind, Outcome
from usage.models.generations import ANY_ERROR
from usage.pages.filters import (
    NO_HELP,
    RANGE,
    TIME,
    Chip,
    UsageFilterForm,
    choice_field,
    words,
)

_DAYS = ((1, "Today"), (7, "7 days"), (30, "30 days"), (90, "90 days"))
# The parameters of the list of ledger entries for those of our filters that it has.
_ENTRY_FILTERS = {"organization": "organization__id__exact", "model": "model", "outcome": "outcome__exact"}


@dataclass(frozen=True, slots=True)
class Measure:
    """A number that the chart's columns can show."""

    title: str
    value: Callable[[Totals], int]
    to_text: Callable[[int], str]


MEASURES = {
    "spend": Measure("Spend", lambda sums: sums.amount_nanodollars, formatting.money),
    "requests": Measure("Requests", lambda sums: sums.requests, formatting.count),
    "tokens": Measure("Tokens", lambda sums: sums.total_tokens, formatting.count),
    "uncached": Measure("Uncached input", lambda sums: sums.uncached_tokens, formatting.count),
    "cache_read": Measure("Cache read", lambda sums: sums.cached_tokens, formatting.count),
    "cache_write": Measure("Cache write", lambda sums: sums.cache_write_tokens, formatting.count),
    "output": Measure("Output", lambda sums: sums.completion_tokens, formatting.count),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few links to choose from."""

    text: str
    url: str
    is_chosen: bool


class OverviewForm(UsageFilterForm):
    """What the Overview shows."""

    page = "index"
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

    def clean(self) -> dict[str, Any]:
        """Read the range of time; group by model and measure spend unless the URL says otherwise."""
        data = super().clean()
        data |= {"group": data.get("group") or "model", "measure": data.get("measure") or "spend"}
        if self.is_by_end_user:
            self._check_end_users(data)
        return data

    def _check_end_users(self, data: dict[str, Any]) -> None:
        """Choose a project that counts its end users, unless one is chosen; refuse what they don't have."""
        if data.get("key") or data.get("outcome") or data["group"] in ("key", "outcome"):
            self.add_error("end_user", "Usage of end users is not counted by key or by outcome.")
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
        return f"{name} ({self.model_kinds[name]})" if group == "model" and name in self.model_kinds else name

    def _counting_projects(self, organization_id: int | None) -> "QuerySet[Project]":
        rows = Project.objects.filter(counts_end_users=True).select_related("organization")
        rows = rows.filter(organization=organization_id) if organization_id else rows
        return access.seen_by(self.person, rows.order_by("organization__name", "name"))

    @property
    def is_by_end_user(self) -> bool:
        """Return whether the page shows the end users of a project, or one of them."""
        return bool(self.cleaned_data.get("end_user")) or self.cleaned_data.get("group") == "end_user"

    @property
    def has_end_users(self) -> bool:
        """Return whether the page can show the end users of the project that it is about."""
        data = self.cleaned_data
        if data["project"] is None or data["key"] or data["outcome"]:
            return False
        if self.is_by_end_user:
            return True
        is_counted = self._counting_projects(None).filter(pk=data["project"]).exists()
        return is_counted and self._can_rank(data["project"])

    @property
    def filters(self) -> Filters:
        return replace(super().filters, end_user=self.cleaned_data["end_user"] or None)

    def read_range(self, query: Mapping[str, str], now: datetime) -> Range:
        """Return the range: by UTC day for end users, and by day where hours would be too many."""
        if self.is_by_end_user:
            return insights.parse_range({**query, "bucket": "day", "time_zone": "UTC"}, now)
        usual = insights.parse_range({**query, "bucket": ""}, now)
        # A link with hours may get a longer range from another link of the page; days are the better answer
        # than an error.
        is_too_long = query["bucket"] == "hour" and not usual.fits("hour")
        return usual if is_too_long else insights.parse_range(query, now)

    @property
    def group_by(self) -> GroupBy:
        """Return the kind of thing that each group of the chart is."""
        group: GroupBy = self.cleaned_data["group"]
        return group

    def offer_choices(self) -> None:
        """Show dates, the grouping, of end users the project and a search, and to people of several
        organizations which one; hide the rest.
        """
        # The field's end is included, the range's is not.
        last_day = self.over.end - timedelta(microseconds=1)
        dates = {"start": f"{self.over.start:%Y-%m-%d}", "end": f"{last_day:%Y-%m-%d}"}
        rest = {name: value for name, value in self.query.items() if name != "days"}
        self.data = rest | {name: self.cleaned_data[name] for name in ("group", "measure")} | dates
        shown = {"group", *(("project", "end_user") if self.is_by_end_user else ())}
        for name, field in self.fields.items():
            if name in dates:
                field.widget = forms.TextInput({"type": "date", "required": True})
            elif name not in shown:
                field.widget = forms.HiddenInput()
        if self.is_by_end_user:
            projects = self._counting_projects(self.cleaned_data["organization"])
            project: Any = self.fields["project"]
            self.data["project"] = project.offer(projects, self.cleaned_data["project"])
        options = [(row.pk, str(row)) for row in self.own_organizations()]
        if len(options) > 1:
            self.fields["organization"].widget = forms.Select(choices=options)

    def own_organizations(self) -> "QuerySet[Organization]":
        """Return the organizations of which a member chooses one; none for operators."""
        if access.is_operator(self.person):
            return Organization.objects.none()
        return access.seen_by(self.person, Organization.objects.order_by("name"))

    def chips(self) -> list[Chip]:
        name = self.cleaned_data["end_user"]
        return [*super().chips(), *([Chip(f"end user: {name}", self.without("end_user"))] if name else [])]

    # ---- links

    def _choice(self, text: str, is_chosen: bool, **parameters: object) -> Choice:
        return Choice(text, self.link(self.page, self.query | parameters), is_chosen)

    def range_links(self) -> list[Choice]:
        dates = dict.fromkeys(RANGE[1:], "")
        chosen = self.query.get("days")
        links = [self._choice(text, str(days) == chosen, days=days, **dates) for days, text in _DAYS]
        if self.is_by_end_user:
            links += [self._month_link("This month", 0), self._month_link("Last month", 1)]
        return links

    def _month_link(self, text: str, months_ago: int) -> Choice:
        """Return the link of a calendar month, which has an order of its end users however many there are."""
        first = timezone.now().astimezone(UTC).date().replace(day=1)
        last = (first + timedelta(days=31)).replace(day=1) - timedelta(days=1)
        if months_ago:
            last = first - timedelta(days=1)
            first = last.replace(day=1)
        is_chosen = (self.query.get("start"), self.query.get("end")) == (str(first), str(last))
        return self._choice(text, is_chosen, days="", start=first, end=last)

    def bucket_links(self) -> list[Choice]:
        """Return links to hours and days as columns; none where there would be too many hours."""
        has_hours = self.over.fits("hour") and not self.is_by_end_user
        names: tuple[Bucket, ...] = get_args(Bucket) if has_hours else ()
        return [
            self._choice(f"{name}s".capitalize(), name == self.over.bucket, bucket=name) for name in names
        ]

    def measure_links(self) -> list[Choice]:
        chosen = self.cleaned_data["measure"]
        return [self._choice(each.title, name == chosen, measure=name) for name, each in MEASURES.items()]

    def rows_url(self, **narrowed: object) -> str:
        """Return the URL of the requests behind a number: those that were settled in the range."""
        filters = ("organization", "project", "key", "model", "outcome", "end_user")
        own = self.parameters(*TIME) | self.parameters(*filters)
        return self.link("requests", {**own, **narrowed, "time": "settled"})

    @property
    def errors_url(self) -> str:
        """Return the URL of the requests that failed: in any way, or with the outcome that is asked for."""
        return self.rows_url() if self.filters.outcome else self.rows_url(outcome=ANY_ERROR)

    def entries_url(self, kind: Kind) -> str:
        """Return the URL of the ledger entries of that kind behind a number.

        Their list can't be narrowed to a project or key: then it is the URL of the requests.
        """
        if self.parameters("project", "key"):
            return self.rows_url()
        start, end = (
            f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}+00:00" for moment in (self.over.start, self.over.end)
        )
        narrowed = {_ENTRY_FILTERS[name]: value for name, value in self.parameters(*_ENTRY_FILTERS).items()}
        times = {"kind__exact": kind, "created_at__gte": start, "created_at__lt": end}
        return self.link("usage_ledgerentry_changelist", {**times, **narrowed})
