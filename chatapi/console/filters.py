"""The admin's filter forms, bound to the organization of a console's URL, with the console's links."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar

from django import forms
from django.db.models import Model, QuerySet
from django.forms import BoundField
from django.http import Http404, HttpRequest

from accounts import access
from accounts.models import APIKey, Organization, Project
from chatapi.console.tenancy import Console
from usage.insights import GroupBy, Range
from usage.models import Outcome
from usage.models.generations import ANY_ERROR
from usage.pages.filters import NO_HELP, RowField, UsageFilterForm, choice_field, words
from usage.pages.overview_form import OverviewForm
from usage.pages.range_links import Choice
from usage.pages.requests_form import RequestsForm

# The console's page for each name that the forms link to.
_PAGES = {"index": "overview", "usage_ledgerentry_changelist": "requests"}


class OfConsole(UsageFilterForm):
    """A form about one organization; `console` is set before the form is validated."""

    console: Console

    def read_range(self, query: Mapping[str, str], now: datetime) -> Range:
        """Return the range in the organization's time zone, unless the URL names another."""
        zone = query["time_zone"] or self.console.organization.time_zone
        return super().read_range({**query, "time_zone": zone}, now)

    @property
    def reader_time_zone(self) -> str:
        return self.query.get("time_zone") or self.console.organization.time_zone

    @property
    def is_of_one_organization(self) -> bool:
        return True

    def link(self, name: str, query: Mapping[str, object]) -> str:
        """Return the URL of the console's page; its path has the organization."""
        parameters = {key: value for key, value in query.items() if key != "organization"}
        return self.console.url(_PAGES.get(name, name), **parameters)


# Inherited, not composed: Django collects a form's fields and `clean` methods from its classes.
class SumsForm(OfConsole, OverviewForm):
    """What pages show that add up an organization's requests."""

    # Sums are not kept of any error; `OfConsole`, which comes first, has the choices of lists.
    outcome = choice_field("Outcome", {name: words(name) for name in Outcome.values})

    @cached_property
    def own_organizations(self) -> Sequence[Organization]:
        return []

    def offers_group(self, group: GroupBy) -> bool:
        """Return whether the page links to this grouping."""
        if group == "metadata":
            return self.group_by == group or any(row.stores_metadata for row in self._own_projects)
        return group not in ("organization", "end_user")

    @property
    def _own_projects(self) -> Sequence[Project]:
        """Return the project of the page, or all of the organization's."""
        return [self.console.project] if self.console.project else self.console.projects

    def label(self, group: GroupBy, name: str) -> str:
        """Return the name of a group; a project's is without the organization's."""
        shown = super().label(group, name)
        return shown.removeprefix(f"{self.console.organization} / ") if group == "project" else shown


class ConsoleOverviewForm(SumsForm):
    """What the Overview of an organization shows."""

    def offers_group(self, group: GroupBy) -> bool:
        return self._counts_end_users if group == "end_user" else super().offers_group(group)

    @property
    def _counts_end_users(self) -> bool:
        """Return whether the page is about a project, and no key or outcome, with end users."""
        field: Any = self.fields["project"]
        is_narrower = any(self.cleaned_data[name] for name in ("key", "outcome", "error", "metadata"))
        return self.is_by_end_user or bool(field.known and field.known.counts_end_users and not is_narrower)


class ConsoleUsageForm(SumsForm):
    """What the page of usage over time shows: without groups, unless the URL names one."""

    page = "usage"
    usual_group = ""
    usual_measure = "requests"

    def offer_choices(self) -> None:
        """Show the filters, too: a project to choose, the others to type."""
        super().offer_choices()
        options = [("", "all projects"), *((str(row.pk), row.name) for row in self.console.projects)]
        self.fields["project"].widget = forms.Select(choices=options)
        for name, hint in {"key": "name", "model": "name", "error": "code", "metadata": "key=value"}.items():
            self.fields[name].widget = forms.TextInput(NO_HELP | {"placeholder": hint})
        field: Any = self.fields["key"]
        if field.known is not None:
            self.data = {**self.data, "key": str(field.known)}

    def group_links(self) -> list[Choice]:
        everything = self._choice("All", not self.is_grouped, group="", measure="", metadata_key="")
        return [everything, *super().group_links()]

    def errors_of(self, code: str) -> str:
        """Return the URL of the range's requests that failed with this error code."""
        return self.rows_url(error=code, outcome=ANY_ERROR)

    def narrowed_url(self, group_id: str) -> str:
        """Return the URL of this page about one group; empty if it can't be narrowed to it."""
        rest = {"group": "", "measure": "", "metadata_key": ""}
        if self.group_by != "metadata":
            return self.link(self.page, self.query | rest | {self.group_by: group_id})
        pair = self.pair_of(group_id)
        return self.link(self.page, self.query | rest | {"metadata": pair}) if pair else ""


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
    rows = model._default_manager.select_related().filter(pk=row_id)
    return read or access.belonging_to(console.organization.pk, rows).first()
