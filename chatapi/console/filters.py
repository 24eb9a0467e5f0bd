"""The admin's filter forms, bound to the organization of a console's URL, with the console's links."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS
from django.db.models import Model
from django.http import Http404, HttpRequest, QueryDict

from accounts import access
from chatapi.console.tenancy import Console
from usage.pages.filters import MAX_OPTIONS, NO_HELP, RANGE, RowField, UsageFilterForm
from usage.pages.links import Pages
from usage.pages.overview_form import OverviewForm

Form = TypeVar("Form", bound=UsageFilterForm)
# The console's page for each name that the forms link to.
_PAGES = {"index": "overview", "usage_ledgerentry_changelist": "requests"}
# The filters of sums that are text fields, with their placeholders.
_HINTS = {
    "project": "name", "key": "name", "model": "name", "end_user": "full name", "error": "code",
    "metadata": "key=value",
}  # fmt: skip


def scoped(
    make_form: Callable[[QueryDict, access.Person, Pages], Form], request: HttpRequest, console: Console
) -> Form:
    """Return the form of the URL, validated; raises `Http404` for a project or key that the person does not
    see here. For a person who sees single projects, the form is about the one of the console.

    The parameter `deployment` is a 404, too: only operators may know which deployment runs a model.
    """
    if request.GET.get("deployment"):
        raise Http404("There is no such deployment.")
    query = request.GET.copy()
    query["organization"] = str(console.organization.pk)
    limited_to = console.project if console.limit is not None else None
    if limited_to is not None:
        query["project"] = str(limited_to.pk)
    pages = Pages(
        partial(_url, console), console.organization, lambda: console.projects, console.rows, limited_to
    )
    form = make_form(query, console.person, pages)
    if not form.is_valid():
        return form
    for name, field in form.fields.items():
        row_id = form.cleaned_data[name]
        if isinstance(field, RowField) and row_id is not None:
            field.known = _row(console, field.model, row_id)
            if field.known is None:
                raise Http404(f"There is no such {field.model._meta.verbose_name}.")
    return form


def offer_filters(form: OverviewForm, console: Console) -> None:
    """Give the filters their widgets: a list of projects, if they are few enough, and text fields."""
    form.offer_choices()
    typed, names, shown = dict(_HINTS), console.project_names(), {}
    if form.has_days_of_end_users:
        # End users belong to one project; the form itself offers the projects that count theirs.
        del typed["project"]
    elif len(names) <= MAX_OPTIONS:
        del typed["project"]
        every = [("", "all projects")] if console.limit is None else []
        form.fields["project"].widget = forms.Select(choices=[*every, *names])
    for name, hint in typed.items():
        form.fields[name].widget = forms.TextInput(NO_HELP | {"placeholder": hint})
        if name in ("project", "key") and (row := form.row(name)) is not None:
            shown[name] = str(row)
    form.data = {**form.data, **shown}


def without_mistakes(form: UsageFilterForm) -> str:
    """Return the page's URL without its invalid parameters."""
    wrong = set(form.errors)
    if wrong & {*RANGE, NON_FIELD_ERRORS}:
        # Without a range in the URL, the grouping is at fault: the usual range has too many end users.
        if not any(form.data.get(name) for name in RANGE):
            wrong.add("group")
        wrong.update(RANGE)
    if "end_user" in wrong and form.data.get("group") == "end_user":
        wrong.add("group")
    right = {name: form.data[name] for name in form.fields if name in form.data and name not in wrong}
    return form.link(form.page, right)


def _url(console: Console, name: str, query: Mapping[str, object]) -> str:
    """Return the URL of the console's page; the organization is in its path, and no parameter."""
    parameters = {key: value for key, value in query.items() if key != "organization"}
    return console.url(_PAGES.get(name, name), **parameters)


def _row(console: Console, model: type[Model], row_id: int) -> Model | None:
    """Return the row with this id, if the person sees it here; the frame has read most such rows already."""
    own = (console.organization, console.project, *console.projects)
    read = next((row for row in own if isinstance(row, model) and row.pk == row_id), None)
    rows = model._default_manager.select_related().filter(pk=row_id)
    return read or console.rows(rows).first()
