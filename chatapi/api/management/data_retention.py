"""Whether projects store responses, in OpenAI's words for data retention.

No prompt or answer is ever logged, so only two of OpenAI's values apply: content is never stored
(`zero_data_retention`), or only as application state (`modified_abuse_monitoring`).
"""

from django.db import transaction
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import access
from accounts.models import Project
from accounts.models.organizations import MAX_RESPONSE_DAYS
from chatapi.api.management import bodies, objects
from chatapi.api.management.bodies import RetentionType
from chatapi.api.management.operations import ManagementOperation
from chatapi.api.management.route import ManagementRoute
from chatapi.api.views import caller_of, respond


class OrganizationDataRetention(ManagementRoute):
    path = "data_retention"
    operations = {
        "GET": ManagementOperation(
            "retrieveDataRetention", "Show whether any project stores responses", "accounts.view_project",
            objects.OrganizationDataRetention,
            description="`zero_data_retention` if none of the organization's projects stores responses.",
        )
    }  # fmt: skip

    def get(self, request: Request) -> Response:
        """Return `zero_data_retention` only if no project, archived ones included, stores responses."""
        projects = access.managed_by(caller_of(request), Project.objects.all())
        any_stores = projects.filter(stores_responses_days__gt=0).exists()
        return respond(objects.OrganizationDataRetention(type=_type(any_stores)))


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
            f"{MAX_RESPONSE_DAYS} if it stored none.",
        ),
    }  # fmt: skip

    def get(self, request: Request, project_id: str) -> Response:
        return respond(_shown(self.project(request, project_id)))

    @transaction.atomic
    def post(self, request: Request, project_id: str) -> Response:
        """Set the number of days if the type changes."""
        row, wanted = self.project(request, project_id), self.body(request).retention_type
        if wanted != _type(row.stores_responses_days > 0):
            row.stores_responses_days = 0 if wanted == "zero_data_retention" else MAX_RESPONSE_DAYS
            row.save(update_fields=["stores_responses_days"])
        return respond(_shown(row))


routes: list[type[ManagementRoute]] = [OrganizationDataRetention, ProjectDataRetention]


def _shown(row: Project) -> objects.ProjectDataRetention:
    return objects.ProjectDataRetention(type=_type(row.stores_responses_days > 0))


def _type(stores: bool) -> RetentionType:
    return "modified_abuse_monitoring" if stores else "zero_data_retention"
