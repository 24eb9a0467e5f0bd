"""The admin's filter forms, bound to the organization of a console's URL, with the console's links."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from django import forms
from django.db.models import Model, QuerySet
from django.forms import BoundField
from django.http import Http404, HttpRequest
from django.utils import timezone

from accounts import access
from accounts.models import APIKey, Organization
from chatapi.console.tenancy import Console
from usage.insights import GroupBy, Range
from usage.models.generations import ANY_ERROR
from usage.pages.filters import NO_HELP, RANGE, TIME, RowField, UsageFilterForm
from usage.pages.overview_form import Choice, OverviewForm
from usage.pages.requests_form import RequestsForm

# The console's page for each name that the forms link to.
_PAGES = {"index": "overview", "usage_ledgerentry_changelist": "requests"}
_GROUPS: Mapping[GroupBy, str] = {
    "project": "Project",
    "model": "Model",
    "key": "Key",
    "outcome": "Outcome",
    "end_user": "End user",
}


class OfConsole(UsageFilterForm):
    """A form about one organization; `console` is set before the form is validated."""

    console: Console

    def read_range(self, query: Mapping[str, str], now: datetime) -> Range:
        """Return the range in the organization's time zone, unless the URL names another."""
        zone = query["time_zone"] or self.console.organization.time_zone
        return super().read_range({**query, "time_zone": zone}, now)

    def range_links(self) -> list[Choice]:
        """Return the links to the usual ranges of time."""
        now = timezone.now().astimezone(ZoneInfo(self.console.organization.time_zone))
        own = {name: self.query.get(name, "") for name in RANGE}
        found = []
        for text, chosen in _ranges(now).items():
            query = {**dict.fromkeys(RANGE, ""), **chosen}
            found.append(Choice(text, self.link(self.page, self.query | query), query == own))
        return found

    @property
    def is_of_one_organization(self) -> bool:
        return True

    def link(self, name: str, query: Mapping[str, object]) -> str:
        """Return the URL of the console's page; its path has the organization."""
        parameters = {key: value for key, value in query.items() if key != "organization"}
        return self.console.url(_PAGES.get(name, name), **parameters)


def _ranges(now: datetime) -> Mapping[str, Mapping[str, str]]:
    """Return the parameters of the usual ranges. One that ends now has no end, so its URL stays current."""
    hour = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
    yesterday, month = now.date() - timedelta(days=1), now.date().replace(day=1)
    last = month - timedelta(days=1)
    return {
        "Last hour": {"start": f"{hour:%Y-%m-%dT%H:%M}"},
        "Today": {"days": "1"},
        "Yesterday": {"start": str(yesterday), "end": str(yesterday)},
        "7 days": {"days": "7"},
        "30 days": {"days": "30"},
        "This month": {"start": str(month)},
        "Last month": {"start": str(last.replace(day=1)), "end": str(last)},
    }


class ConsoleOverviewForm(OfConsole, OverviewForm):
    """What the Overview of an organization shows."""

    def own_organizations(self) -> "QuerySet[Organization]":
        return Organization.objects.none()

    def group_links(self) -> list[Choice]:
        """Return the links to what the chart can be grouped by."""
        groups = dict(_GROUPS)
        if not self._counts_end_users:
            del groups["end_user"]
        return [self._choice(text, name == self.group_by, group=name) for name, text in groups.items()]

    @property
    def _counts_end_users(self) -> bool:
        """Return whether the page is about a project, and no key or outcome, with end users."""
        field: Any = self.fields["project"]
        is_narrower = self.cleaned_data["key"] or self.cleaned_data["outcome"]
        return self.is_by_end_user or bool(field.known and field.known.counts_end_users and not is_narrower)

    def label(self, group: GroupBy, name: str) -> str:
        """Return the name of a group; a project's is without the organization's."""
        shown = super().label(group, name)
        return shown.removeprefix(f"{self.console.organization} / ") if group == "project" else shown


class ConsoleUsageForm(OfConsole, OverviewForm):
    """What the page of usage over time shows."""

    page = "usage"

    def own_organizations(self) -> "QuerySet[Organization]":
        return Organization.objects.none()

    def offer_choices(self) -> None:
        """Show the filters, too: a project to choose, a key and a model to type."""
        super().offer_choices()
        options = [("", "all projects"), *((str(row.pk), row.name) for row in self.console.projects)]
        self.fields["project"].widget = forms.Select(choices=options)
        for name in ("key", "model"):
            self.fields[name].widget = forms.TextInput(NO_HELP | {"placeholder": "name"})
        field: Any = self.fields["key"]
        if field.known is not None:
            self.data = {**self.data, "key": str(field.known)}

    def errors_of(self, code: str) -> str:
        """Return the URL of the range's requests that failed with this error code."""
        filters = self.parameters("project", "key", "model", *TIME)
        return self.link("requests", {**filters, "error": code, "outcome": ANY_ERROR})


class ConsoleRequestsForm(OfConsole, RequestsForm):
    """The filters of the requests of an organization."""

    def offered_rows(self) -> Mapping[str, "QuerySet[Any] | Sequence[Any]"]:
        """Return the organization's projects and keys."""
        chosen = self.cleaned_data["project"]
        keys = access.belonging_to(self.console.organization.pk, APIKey.objects.all())
        return {
            "project": self.console.projects,
            "key": keys.filter(project=chosen) if chosen else keys,
        }

    @property
    def usual_fields(self) -> list[BoundField]:
        return [self[name] for name in ("id", "project", "key", "model", "outcome", "start", "end")]

    @property
    def kept(self) -> dict[str, str]:
        return super().kept | self.parameters("sort")

    def sort_links(self) -> list[Choice]:
        """Return the links to the orders of the list."""
        chosen = self.filters.sort
        return [
            Choice(text, self.link(self.page, self.query | {"sort": name}), name == chosen)
            for name, text in {"newest": "Newest", "cost": "Most expensive", "duration": "Slowest"}.items()
        ]

    @property
    def rare_fields(self) -> list[BoundField]:
        names = ("end_user", "metadata", "error", "endpoint", "dialect", "source", "time", "min", "max")
        return [self[name] for name in names]


Form = TypeVar("Form", bound=OfConsole)


def scoped(form_class: type[Form], request: HttpRequest, console: Console) -> Form:
    """Return the form of the URL, validated; raises `Http404` for another organization's project or key.

    Deployments are a 404, too: what runs a model is the operator's to know.
    """
    if request.GET.get("deployment"):
        raise Http404("There is no such deployment.")
    query = request.GET.copy()
    query["organization"] = str(console.organization.pk)
    form = form_class(query, console.person)
    form.console = console
    if not form.is_valid():
        return form
    for name, field in form.fields.items():
        row_id = form.cleaned_data[name]
        if isinstance(field, RowField) and row_id is not None:
            field.known = _row(console, field.model, row_id)
            if field.known is None:
                raise Http404(f"There is no such {field.model._meta.verbose_name}.")
    return form


def _row(console: Console, model: type[Model], row_id: int) -> Model | None:
    """Return the organization's row; the frame has read most of those that are asked for."""
    own = (console.organization, *console.projects)
    read = next((row for row in own if isinstance(row, model) and row.pk == row_id), None)
    rows = model._default_manager.filter(pk=row_id)
    return read or access.belonging_to(console.organization.pk, rows).first()
