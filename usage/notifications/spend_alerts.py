"""Adds spend alerts, of which an organization has a bounded number."""

from django.db import transaction

from accounts.models import Organization
from usage.models import SpendAlert

MAX_ALERTS = 20
"""Of one organization with its projects. Those of archived projects do not count: they say nothing."""


def add(alert: SpendAlert) -> bool:
    """Save a new alert; return False if its organization has as many as it may."""
    with transaction.atomic():
        # Locked, so that two at once do not exceed the bound.
        Organization.objects.select_for_update(no_key=True).get(pk=alert.organization_id)
        rows = SpendAlert.objects.filter(organization=alert.organization_id)
        if rows.exclude(project__is_active=False).count() >= MAX_ALERTS:
            return False
        alert.save()
    return True
