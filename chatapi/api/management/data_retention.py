"""Whether projects store responses, and whether their organization allows it, in OpenAI's words for data
retention.

No prompt or answer is ever logged, so only two of OpenAI's values apply: content is never stored
(`zero_data_retention`), or only as application state (`modified_abuse_monitoring`).
"""

from django.db import transaction
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.models import Organization, Project
from accounts.models.organizations import MAX_RESPONSE_DAYS
from chatapi.api.management import bodies, objects
from chatapi.api.management.bodies import RetentionType
from chatapi.api.management.operations import ManagementOperation
from chatapi.api.management.route import ManagementRoute, refuse
from chatapi.api.views import caller_of, respond


class OrganizationDataRetention(ManagementRoute):
    path = "data_retention"
    operations = {
        "GET": ManagementOperation(
            "retrieveDataRetention", "Show whether projects may store responses",
            "accounts.view_organization", objects.OrganizationDataRetention,
            description="`zero_data_retention` if the organization forbids it.",
        ),
        "POST": ManagementOperation(
            "modifyDataRetention", "Set whether projects may store responses", "accounts.change_organization",
            objects.OrganizationDataRetention,
            body=bodies.DataRetentionBody,
            description="`zero_data_retention` forbids it: stored responses can't be read any more, and are "
            "deleted within a minute. `modified_abuse_monitoring` lets each project store them for its days.",
        ),
    }  # fmt: skip

    def get(self, request: Request) -> Response:
        return respond(_shown_organization(Organization.objects.get(pk=caller_of(request).organization_id)))

    @transaction.atomic
    def post(self, request: Request) -> Response:
        """Forbid or allow storing responses; the projects keep their days for the time when it is allowed."""
        wanted = self.body(request).retention_type
        row = Organization.objects.select_for_update(no_key=True).get(pk=caller_of(request).organization_id)
        if wanted != _type(not row.forbids_stored_responses):
            row.forbids_stored_responses = wanted == "zero_data_retention"
            row.save(update_fields=["forbids_stored_responses"])
        return respond(_shown_organization(row))


class ProjectDataRetention(ManagementRoute):
    path = "projects/<str:project_id>/data_retention"
    operations = {
        "GET": ManagementOperation(
            "retrieveProjectDataRetention", "Show whether a project stores responses",
            "accounts.view_project", objects.ProjectDataRetention,
            description="`modified_abuse_monitoring`: it does. Nothing is logged for abuse monitoring.",
        ),
        "POST": ManagementOperation(
            "modifyProjectDataRetention", "Set whether a project stores responses",
            "accounts.change_project", objects.ProjectDataRetention,
            body=bodies.DataRetentionBody,
            description="`modified_abuse_monitoring` keeps the project's number of days, which is "
            f"{MAX_RESPONSE_DAYS} if it stored none. It is refused if the organization forbids it.",
        ),
    }  # fmt: skip

    def get(self, request: Request, project_id: str) -> Response:
        return respond(_shown(self.project(request, project_id)))

    @transaction.atomic
    def post(self, request: Request, project_id: str) -> Response:
        """Set the number of days if the type changes. Raises `InvalidRequest` for forbidden storing."""
        row, wanted = self.project(request, project_id), self.body(request).retention_type
        if wanted != "zero_data_retention" and row.organization.forbids_stored_responses:
            refuse(
                "your organization has 'zero_data_retention', so none of its projects stores responses.",
                "retention_type",
            )
        if wanted != _type(row.stores_responses_days > 0):
            row.stores_responses_days = 0 if wanted == "zero_data_retention" else MAX_RESPONSE_DAYS
            row.save(update_fields=["stores_responses_days"])
        return respond(_shown(row))


routes: list[type[ManagementRoute]] = [OrganizationDataRetention, ProjectDataRetention]


def _shown_organization(row: Organization) -> objects.OrganizationDataRetention:
    return objects.OrganizationDataRetention(type=_type(not row.forbids_stored_responses))


def _shown(row: Project) -> objects.ProjectDataRetention:
    return objects.ProjectDataRetention(type=_type(row.response_days > 0))


def _type(stores: bool) -> RetentionType:
    return "modified_abuse_monitoring" if stores else "zero_data_retention"
