"""What Overview and Requests show to people of organizations: one organization of theirs at a time."""

from typing import Any, TypeVar

from django.http import Http404, HttpRequest

from accounts import access
from accounts.models import Organization
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
            rows = field.model._default_manager.select_related().filter(pk=row_id)
            field.known = access.seen_by(request.user, rows).first()
            if field.known is None:
                raise Http404(f"There is no such {field.model._meta.verbose_name}.")
    form.cleaned_data["organization"] = form.cleaned_data["organization"] or _home(form)
    return form


def _home(form: UsageFilterForm) -> int:
    """Return the organization of the project, key or request that is asked for; else the person's first."""
    data, person = form.cleaned_data, form.person
    fields: dict[str, Any] = form.fields
    if (project := fields["project"].known) is not None:
        return int(project.organization_id)
    if (key := fields["key"].known) is not None:
        return int(key.project.organization_id)
    ids = [data["id"]] if data.get("id") else []
    by_request = access.seen_by(person, Generation.objects.filter(pk__in=ids))
    places: list[Any] = [
        by_request.values_list("organization_id", flat=True),
        access.seen_by(person, Organization.objects.order_by("name")).values_list("pk", flat=True),
    ]
    return int(next(found for rows in places if (found := rows.first()) is not None))
