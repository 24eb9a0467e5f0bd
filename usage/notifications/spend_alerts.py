"""Adds spend alerts, of which an organization has a bounded number, and names their recipients."""

from collections.abc import Sequence

from django.db import transaction

from accounts import memberships
from accounts.models import Organization
from usage.models import SpendAlert

MAX_ALERTS = 20
"""The most alerts of one organization and its projects. Those of archived projects are not sent, and do not
count.
"""


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


def addresses(alerts: Sequence[SpendAlert]) -> list[list[str]]:
    """Return the addresses of each alert's recipients, for alerts of one organization; people who have left
    the organization, or see single projects of it only, get no mail.
    """
    people = {person for alert in alerts for person in alert.recipients}
    organizations = {alert.organization_id for alert in alerts}
    members = memberships.of_whole(*organizations).filter(user__in=people)
    emails = dict(members.exclude(user__email="").values_list("user", "user__email"))
    return [sorted(emails[person] for person in alert.recipients if person in emails) for alert in alerts]
