"""The one door to what belongs to a tenant: whatever is read for a caller is read through here.

What is not the caller's does not exist for it: the answer is the same 404 as for an id that was never given out.
"""

from typing import TypeVar

from django.db.models import Model, QuerySet

from accounts.authentication import Caller
from accounts.models import APIKey

Row = TypeVar("Row", bound=Model)


def visible_to(caller: Caller, rows: QuerySet[Row]) -> QuerySet[Row]:
    """Those rows that belong to the caller's project; their model has `organization_id` and `project_id`."""
    return rows.filter(organization_id=caller.organization_id, project_id=caller.project_id)


def own_key(caller: Caller) -> APIKey:
    """The key that calls, with its project and organization."""
    return APIKey.objects.select_related("project__organization").get(pk=caller.api_key_id, project_id=caller.project_id)
