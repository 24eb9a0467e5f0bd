"""Spend alerts of the organization and of its projects: monthly amounts at which members get mail."""

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.models import Project
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


class SpendAlerts(ManagementRoute):
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

    def get(self, request: Request) -> Response:
        return _page(self, request, None)

    @transaction.atomic
    def post(self, request: Request) -> Response:
        return _create(self, request, None)


class OneSpendAlert(ManagementRoute):
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

    def get(self, request: Request, spend_alert_id: str) -> Response:
        return respond(*_shown([_find(request, None, spend_alert_id)]))

    @transaction.atomic
    def post(self, request: Request, spend_alert_id: str) -> Response:
        return _change(self, request, _find(request, None, spend_alert_id))

    @transaction.atomic
    def delete(self, request: Request, spend_alert_id: str) -> Response:
        return _remove(_find(request, None, spend_alert_id), "organization.spend_alert.deleted")


class ProjectSpendAlerts(ManagementRoute):
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

    def get(self, request: Request, project_id: str) -> Response:
        return _page(self, request, self.project(request, project_id))

    @transaction.atomic
    def post(self, request: Request, project_id: str) -> Response:
        return _create(self, request, self.project(request, project_id))


class ProjectSpendAlert(ManagementRoute):
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

    def get(self, request: Request, project_id: str, spend_alert_id: str) -> Response:
        return respond(*_shown([_find(request, self.project(request, project_id), spend_alert_id)]))

    @transaction.atomic
    def post(self, request: Request, project_id: str, spend_alert_id: str) -> Response:
        return _change(self, request, _find(request, self.project(request, project_id), spend_alert_id))

    @transaction.atomic
    def delete(self, request: Request, project_id: str, spend_alert_id: str) -> Response:
        row = _find(request, self.project(request, project_id), spend_alert_id)
        return _remove(row, "project.spend_alert.deleted")


routes: list[type[ManagementRoute]] = [SpendAlerts, OneSpendAlert, ProjectSpendAlerts, ProjectSpendAlert]


def _alerts(request: Request, project: Project | None) -> QuerySet[SpendAlert]:
    """Return the alerts of the project or, without one, of the organization itself."""
    return SpendAlert.objects.filter(organization=caller_of(request).organization_id, project=project)


def _find(request: Request, project: Project | None, alert_id: str) -> SpendAlert:
    return find(caller_of(request), _alerts(request, project), alert_id, "spend alert")


def _page(route: ManagementRoute, request: Request, project: Project | None) -> Response:
    query = route.query(request)
    newest_first = query.order == "desc"
    return respond(page_of_rows(_alerts(request, project), query, _shown, newest_first=newest_first))


def _create(route: ManagementRoute, request: Request, project: Project | None) -> Response:
    row = SpendAlert(organization_id=caller_of(request).organization_id, project=project)
    _set(row, route.body(request))
    if not spend_alerts.add(row):
        raise InvalidRequest(
            f"There can be {MAX_ALERTS} spend alerts of an organization and its projects at most.",
            None,
            "too_many_objects",
        )
    return respond(*_shown([row]))


def _change(route: ManagementRoute, request: Request, row: SpendAlert) -> Response:
    _set(row, route.body(request))
    row.save()
    return respond(*_shown([row]))


def _remove(row: SpendAlert, event: str) -> Response:
    alert_id = str(row.pk)
    row.delete()
    return respond(objects.Deleted(object=event, id=alert_id))


def _set(row: SpendAlert, sent: bodies.SpendAlertBody) -> None:
    """Set what was sent; raises `InvalidRequest` for an address that is no member's."""
    channel = sent.notification_channel
    known = {person.email.lower(): person.pk for person in mailable(row.organization_id)}
    for address in channel.recipients:
        if address.lower() not in known:
            refuse(
                f"{address!r} is not the address of a member who has signed in and sees all projects.",
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
