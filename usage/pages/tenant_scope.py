"""What Overview, Live and Requests show to people of organizations: one organization of theirs at a time, and
nothing of the service.
"""

from collections.abc import Sequence
from typing import Any

from django.db.models import Model
from django.http import Http404, HttpRequest

from accounts import access
from accounts.models import APIKey, Organization, Project
from usage.insights import Filters
from usage.models import BudgetLimit, Generation
from usage.pages.choices import numbered
from usage.pages.page_query import Chip, filters_in
from usage.pages.requests_query import generation_id_in


def own_query(request: HttpRequest) -> dict[str, str]:
    """What the address asks; of people of organizations it names one of theirs, whether they did so or not.

    Another organization, and its projects and keys, are a 404 as if there were none, and so is each
    deployment: what runs a model is the installation's own affair.
    """
    query, user = numbered(request.GET.dict(), request.user), request.user
    if access.is_operator(user):
        return query
    if query.get("deployment"):
        raise Http404("There is no such deployment.")
    try:
        filters = filters_in(query)
    except ValueError:
        return query  # the page refuses it for the same reason, and shows nothing
    asked: tuple[tuple[type[Model], int | None], ...] = (
        (Organization, filters.organization_id),
        (Project, filters.project_id),
        (APIKey, filters.api_key_id),
    )
    for model, row_id in asked:
        if row_id is not None and not access.seen_by(user, model._default_manager.filter(pk=row_id)).exists():
            raise Http404(f"There is no such {model._meta.verbose_name}.")
    return query | {"organization": str(_home(user, filters, query.get("id", "")))}


def own_limits(user: access.Person) -> list[int] | None:
    """The ids of the budget limits that the person sees; None: all."""
    return (
        None
        if access.is_operator(user)
        else list(access.seen_by(user, BudgetLimit.objects.all()).values_list("pk", flat=True))
    )


def choices(user: access.Person) -> list[Organization]:
    """The organizations between which the person has to choose; none for operators, who may look at all at
    once.
    """
    own = (
        [] if access.is_operator(user) else list(access.seen_by(user, Organization.objects.order_by("name")))
    )
    return own if len(own) > 1 else []


def removable(user: access.Person, chips: Sequence[Chip]) -> list[Chip]:
    """The filters without the organization that bounds the person: it is chosen, not removed."""
    return [chip for chip in chips if access.is_operator(user) or not chip.text.startswith("organization: ")]


def _home(user: access.Person, filters: Filters, request_id: str) -> int:
    """The organization that is asked for: by itself, by a part or a request of it; else the person's first."""
    if filters.organization_id is not None:
        return filters.organization_id
    by_part = Project.objects.filter(pk=filters.project_id or 0) | Project.objects.filter(
        api_keys=filters.api_key_id or 0
    )
    by_request = Generation.objects.filter(
        pk__in=[found for found in [generation_id_in(request_id)] if found]
    )
    places: list[Any] = [
        by_part.values_list("organization_id", flat=True),
        access.seen_by(user, by_request).values_list("organization_id", flat=True),
        access.seen_by(user, Organization.objects.order_by("name")).values_list("pk", flat=True),
    ]
    return int(next(found for rows in places if (found := rows.first()) is not None))
