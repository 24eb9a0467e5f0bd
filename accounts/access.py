"""The one door to what belongs to a tenant: whatever is read for a caller is read through here.

What is not the caller's does not exist for it: the answer is the same 404 as for an id that was never given out.
"""

from typing import TypeVar

from django.db.models import Model, Q, QuerySet
from django.db.models.functions import Now

from accounts.authentication import Caller
from accounts.models import APIKey

Row = TypeVar("Row", bound=Model)


def visible_to(caller: Caller, rows: QuerySet[Row]) -> QuerySet[Row]:
    """Those rows that belong to the caller's project; their model has `organization_id` and `project_id`."""
    return rows.filter(organization_id=caller.organization_id, project_id=caller.project_id)


def usable_keys() -> QuerySet[APIKey]:
    """The keys that may be used at this moment: not revoked, not expired, of a project and an organization that are active."""
    is_current = Q(expires_at__isnull=True) | Q(expires_at__gt=Now())
    return APIKey.objects.filter(is_current, revoked_at__isnull=True, project__is_active=True, project__organization__is_active=True)


def own_key(caller: Caller) -> APIKey:
    """The key that calls, with its project and organization."""
    return APIKey.objects.select_related("project__organization").get(pk=caller.api_key_id, project_id=caller.project_id)
