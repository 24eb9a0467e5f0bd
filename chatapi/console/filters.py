"""The admin's filter forms, bound to the organization of a console's URL, with the console's links."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from django.db.models import Model, QuerySet
from django.forms import BoundField
from django.http import Http404, HttpRequest

from accounts import access
from accounts.models import APIKey, Organization
from chatapi.console.tenancy import Console
from usage.insights import GroupBy
from usage.pages.filters import RowField, UsageFilterForm
from usage.pages.overview_form import Choice, OverviewForm
from usage.pages.requests_form import RequestsForm

# The console's page for each name that the forms link to.
_PAGES = {"index": "overview", "usage_ledgerentry_changelist": "requests"}
_GROUPS: Mapping[GroupBy, str] = {"project": "Project", "model": "Model", "key": "Key", "outcome": "Outcome"}


class OfConsole(UsageFilterForm):
    """A form about one organization; `console` is set before the form is validated."""

    console: Console

    @property
    def is_of_one_organization(self) -> bool:
        return True

    def link(self, name: str, query: Mapping[str, object]) -> str:
        """Return the URL of the console's page; its path has the organization."""
        parameters = {key: value for key, value in query.items() if key != "organization"}
        return self.console.url(_PAGES.get(name, name), **parameters)


class ConsoleOverviewForm(OfConsole, OverviewForm):
    """What the Overview of an organization shows."""

    def own_organizations(self) -> "QuerySet[Organization]":
        return Organization.objects.none()

    def group_links(self) -> list[Choice]:
        """Return the links to what the chart can be grouped by."""
        return [self._choice(text, name == self.group_by, group=name) for name, text in _GROUPS.items()]

    def label(self, group: GroupBy, name: str) -> str:
        """Return the name of a group; a project's is without the organization's."""
        shown = super().label(group, name)
        return shown.removeprefix(f"{self.console.organization} / ") if group == "project" else shown


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
        names = ("end_user", "metadata", "endpoint", "dialect", "source", "time", "min", "max")
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
