"""What Overview and Requests show to people of organizations: one organization of theirs at a time."""

from typing import Any, TypeVar

from django.http import Http404, HttpRequest

from accounts import access
from accounts.models import APIKey, Organization, Project
from usage.models import Generation
from usage.pages.filters import UsageFilterForm

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
    # The key first: it is read with its owners.
    for name, model in (("key", APIKey), ("project", Project), ("organization", Organization)):
        if form.cleaned_data[name] is not None and form.row(name) is None:
            raise Http404(f"There is no such {model._meta.verbose_name}.")
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
    if data.get("id"):
        rows = access.seen_by(person, Generation.objects.filter(pk=data["id"]))
        if (found := rows.values_list("organization_id", flat=True).first()) is not None:
            return int(found)
    own = access.organizations_of(person) or ()
    return own[0] if len(own) == 1 else form.own_organizations[0].pk
