"""Spend alerts of the organization and of its projects: amounts of a month of which members get mail."""

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from chatapi.api.management import bodies, objects
from chatapi.api.management.bodies import NANODOLLARS_PER_CENT
from chatapi.api.management.operations import ManagementOperation
from chatapi.api.management.pages import Page, page_of_rows
from chatapi.api.management.route import ManagementRoute, find, refuse
from chatapi.api.views import caller_of, respond
from chatapi.notifications.dispatch import mailable
from chatapi.wire.invalid_request import InvalidRequest
from usage.models import SpendAlert
from usage.notifications import spend_alerts
from usage.notifications.spend_alerts import MAX_ALERTS

_RECIPIENTS = "The recipients are addresses of members who have signed in."


class _SpendAlertRoute(ManagementRoute):
    """A route of the alerts of a project or, without one in its path, of the organization itself."""

    def rows(self, request: Request, project_id: str | None) -> QuerySet[SpendAlert]:
        project = None if project_id is None else self.project(request, project_id)
        return SpendAlert.objects.filter(organization=caller_of(request).organization_id, project=project)

    def find(self, request: Request, project_id: str | None, alert_id: str) -> SpendAlert:
        return find(caller_of(request), self.rows(request, project_id), alert_id, "spend alert")


class SpendAlerts(_SpendAlertRoute):
    path = "spend_alerts"
    operations = {
        "GET": ManagementOperation(
            "listSpendAlerts", "List the organization's spend alerts", "usage.view_budgetlimit",
            Page[objects.OrganizationSpendAlert],
            query=bodies.SpendAlertListQuery,
        ),
        "POST": ManagementOperation(
            "createSpendAlert", "Create a spend alert of the organization", "usage.add_budgetlimit",
            objects.OrganizationSpendAlert,
            body=bodies.SpendAlertBody,
            description=_RECIPIENTS,
        ),
    }  # fmt: skip

    def get(self, request: Request, project_id: str | None = None) -> Response:
        query = self.query(request)
        page = page_of_rows(self.rows(request, project_id), query, _shown, newest_first=query.order == "desc")
        return respond(page)

    @transaction.atomic
    def post(self, request: Request, project_id: str | None = None) -> Response:
        project = None if project_id is None else self.project(request, project_id)
        row = SpendAlert(organization_id=caller_of(request).organization_id, project=project)
        _set(row, self.body(request))
        if not spend_alerts.add(row):
            raise InvalidRequest(
                f"There can be {MAX_ALERTS} spend alerts of an organization and its projects at most.",
                None,
                "too_many_objects",
            )
        return respond(*_shown([row]))


class OneSpendAlert(_SpendAlertRoute):
    path = "spend_alerts/<str:spend_alert_id>"
    operations = {
        "GET": ManagementOperation(
            "retrieveSpendAlert", "Show a spend alert of the organization", "usage.view_budgetlimit",
            objects.OrganizationSpendAlert,
        ),
        "POST": ManagementOperation(
            "modifySpendAlert", "Change a spend alert of the organization", "usage.change_budgetlimit",
            objects.OrganizationSpendAlert,
            body=bodies.SpendAlertBody,
            description=_RECIPIENTS,
        ),
        "DELETE": ManagementOperation(
            "deleteSpendAlert", "Remove a spend alert of the organization", "usage.delete_budgetlimit",
            objects.Deleted,
        ),
    }  # fmt: skip

    def get(self, request: Request, spend_alert_id: str, project_id: str | None = None) -> Response:
        return respond(*_shown([self.find(request, project_id, spend_alert_id)]))

    @transaction.atomic
    def post(self, request: Request, spend_alert_id: str, project_id: str | None = None) -> Response:
        row = self.find(request, project_id, spend_alert_id)
        _set(row, self.body(request))
        row.save()
        return respond(*_shown([row]))

    @transaction.atomic
    def delete(self, request: Request, spend_alert_id: str, project_id: str | None = None) -> Response:
        row = self.find(request, project_id, spend_alert_id)
        row.delete()
        owner = "organization" if project_id is None else "project"
        return respond(objects.Deleted(object=f"{owner}.spend_alert.deleted", id=spend_alert_id))


class ProjectSpendAlerts(SpendAlerts):
    path = "projects/<str:project_id>/spend_alerts"
    operations = {
        "GET": ManagementOperation(
            "listProjectSpendAlerts", "List a project's spend alerts", "usage.view_budgetlimit",
            Page[objects.ProjectSpendAlert],
            query=bodies.SpendAlertListQuery,
        ),
        "POST": ManagementOperation(
            "createProjectSpendAlert", "Create a spend alert of a project", "usage.add_budgetlimit",
            objects.ProjectSpendAlert,
            body=bodies.SpendAlertBody,
            description=_RECIPIENTS,
        ),
    }  # fmt: skip


class ProjectSpendAlert(OneSpendAlert):
    path = "projects/<str:project_id>/spend_alerts/<str:spend_alert_id>"
    operations = {
        "GET": ManagementOperation(
            "retrieveProjectSpendAlert", "Show a spend alert of a project", "usage.view_budgetlimit",
            objects.ProjectSpendAlert,
        ),
        "POST": ManagementOperation(
            "modifyProjectSpendAlert", "Change a spend alert of a project", "usage.change_budgetlimit",
            objects.ProjectSpendAlert,
            body=bodies.SpendAlertBody,
            description=_RECIPIENTS,
        ),
        "DELETE": ManagementOperation(
            "deleteProjectSpendAlert", "Remove a spend alert of a project", "usage.delete_budgetlimit",
            objects.Deleted,
        ),
    }  # fmt: skip


routes: list[type[ManagementRoute]] = [SpendAlerts, OneSpendAlert, ProjectSpendAlerts, ProjectSpendAlert]


def _set(row: SpendAlert, sent: bodies.SpendAlertBody) -> None:
    """Set what was sent; raises `InvalidRequest` for an address that is no member's."""
    channel = sent.notification_channel
    known = {person.email.lower(): person.pk for person in mailable(row.organization_id)}
    for address in channel.recipients:
        if address.lower() not in known:
            refuse(
                f"{address!r} is not the address of a member who has signed in.",
                "notification_channel.recipients",
            )
    row.recipients = sorted({known[address.lower()] for address in channel.recipients})
    row.threshold_nanodollars = sent.threshold_amount * NANODOLLARS_PER_CENT
    row.subject_prefix = channel.subject_prefix or ""


def _shown(rows: Sequence[SpendAlert]) -> Sequence[Any]:
    """Return the alerts as clients see them, without recipients who have left the organization."""
    return [
        (objects.OrganizationSpendAlert if row.project_id is None else objects.ProjectSpendAlert)(
            id=str(row.pk),
            threshold_amount=row.threshold_nanodollars // NANODOLLARS_PER_CENT,
            notification_channel=objects.NotificationChannel(
                recipients=emails, subject_prefix=row.subject_prefix or None
            ),
        )
        for row, emails in zip(rows, spend_alerts.addresses(rows), strict=True)
    ]
