"""`/v1/organization/projects/{id}/hosted_tool_permissions`: no project can use tools of OpenAI's servers."""

import msgspec
from rest_framework.request import Request
from rest_framework.response import Response

from chatapi.api.management import bodies, objects
from chatapi.api.management.operations import ManagementOperation
from chatapi.api.management.route import ManagementRoute, refuse
from chatapi.api.views import respond


class ProjectHostedToolPermissions(ManagementRoute):
    path = "projects/<str:project_id>/hosted_tool_permissions"
    operations = {
        "GET": ManagementOperation(
            "retrieveHostedToolPermissions", "Show which hosted tools a project can use",
            "accounts.view_project", objects.HostedToolPermissions,
            description="None is enabled, because the service hosts no tools.",
        ),
        "POST": ManagementOperation(
            "modifyHostedToolPermissions", "Confirm that a project uses no hosted tools",
            "accounts.change_project", objects.HostedToolPermissions,
            body=bodies.HostedToolPermissionsBody,
            description="Changes nothing, and refuses to enable a tool.",
        ),
    }  # fmt: skip

    def get(self, request: Request, project_id: str) -> Response:
        self.project(request, project_id)
        return respond(objects.HostedToolPermissions())

    def post(self, request: Request, project_id: str) -> Response:
        """Raise `InvalidRequest` if the body enables a tool."""
        self.project(request, project_id)
        for name, tool in msgspec.structs.asdict(self.body(request)).items():
            if tool is not None and tool.enabled:
                refuse(
                    "this service hosts no tools, so none can be enabled. Requests can have tools of the "
                    "types 'function' and 'custom', which the client runs.",
                    f"{name}.enabled",
                )
        return respond(objects.HostedToolPermissions())


routes: list[type[ManagementRoute]] = [ProjectHostedToolPermissions]
