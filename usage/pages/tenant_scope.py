"""What Overview and Requests show to people of organizations: one organization of theirs at a time."""

from functools import reduce
from operator import or_
from typing import Any, TypeVar

from django.db.models import Q
from django.http import Http404, HttpRequest

from accounts import access
from accounts.models import Organization, Project
from usage.models import Generation
from usage.pages.filters import RowField, UsageFilterForm

Form = TypeVar("Form", bound=UsageFilterForm)


def scoped_form(form_class: type[Form], request: HttpRequest) -> Form:
    """Return the form of the request's URL; for people of organizations, narrowed to one of theirs.

    Raises `Http404` for another organization and its projects and keys, as if there were none, and for each
    deployment: what runs a model is the operators' to know. A form that is not valid has its mistakes.
    """
    form = form_class(request.GET, request.user)
    if access.is_operator(request.user):
        return form
    if request.GET.get("deployment"):
        raise Http404("There is no such deployment.")
    if not form.is_valid():
        return form
    for name, field in form.fields.items():
        row_id = form.cleaned_data[name]
        if isinstance(field, RowField) and row_id is not None:
            rows = field.model._default_manager.filter(pk=row_id)
            if not access.seen_by(request.user, rows).exists():
                raise Http404(f"There is no such {field.model._meta.verbose_name}.")
    form.cleaned_data["organization"] = form.cleaned_data["organization"] or _home(form)
    return form


def _home(form: UsageFilterForm) -> int:
    """Return the organization of the project, key or request that is asked for; else the person's first."""
    data, person = form.cleaned_data, form.person
    named = {"pk": data["project"], "api_keys": data["key"]}
    parts = [Q(**{name: row_id}) for name, row_id in named.items() if row_id is not None]
    by_part = Project.objects.filter(reduce(or_, parts)) if parts else Project.objects.none()
    ids = [data["id"]] if data.get("id") else []
    by_request = access.seen_by(person, Generation.objects.filter(pk__in=ids))
    places: list[Any] = [
        by_part.values_list("organization_id", flat=True),
        by_request.values_list("organization_id", flat=True),
        access.seen_by(person, Organization.objects.order_by("name")).values_list("pk", flat=True),
    ]
    return int(next(found for rows in places if (found := rows.first()) is not None))
