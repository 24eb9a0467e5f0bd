"""`/v1/organization/projects`: projects and the models that their keys can use."""

from typing import Any

from django.db import transaction
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import access
from accounts.model_lists import ModelsMode
from accounts.models import Organization, Project
from chatapi import errors
from chatapi.api.management import bodies, objects
from chatapi.api.management.operations import ManagementOperation
from chatapi.api.management.pages import Page, page_of_rows
from chatapi.api.management.route import ManagementRoute, find, refuse, refuse_more
from chatapi.api.views import caller_of, respond
from chatapi.models import ServedModel
from chatapi.wire.invalid_request import InvalidRequest


class Projects(ManagementRoute):
    path = "projects"
    operations = {
        "GET": ManagementOperation(
            "listProjects", "List the projects", "accounts.view_project", Page[objects.Project],
            query=bodies.ProjectListQuery,
        ),
        "POST": ManagementOperation(
            "createProject", "Create a project", "accounts.add_project", objects.Project,
            body=bodies.ProjectBody,
            description="Its name is unique in the organization.",
        ),
    }  # fmt: skip

    def get(self, request: Request) -> Response:
        query = self.query(request)
        rows = access.managed_by(caller_of(request), Project.objects.all())
        if not query.include_archived:
            rows = rows.filter(is_active=True)
        return respond(page_of_rows(rows, query, lambda rows: [project(row) for row in rows]))

    @transaction.atomic
    def post(self, request: Request) -> Response:
        # The lock keeps two requests from passing the checks of the number and the name at the same time.
        owner = Organization.objects.select_for_update(no_key=True).get(pk=caller_of(request).organization_id)
        refuse_more(owner.projects.all(), "projects")
        row = Project(organization=owner, name=self.body(request).name)
        _save_named(row)
        return respond(project(row))


class OneProject(ManagementRoute):
    path = "projects/<str:project_id>"
    operations = {
        "GET": ManagementOperation(
            "retrieveProject", "Show a project", "accounts.view_project", objects.Project
        ),
        "POST": ManagementOperation(
            "modifyProject", "Rename a project", "accounts.change_project", objects.Project,
            body=bodies.ProjectChange,
        ),
    }  # fmt: skip

    def get(self, request: Request, project_id: str) -> Response:
        return respond(project(self.project(request, project_id)))

    @transaction.atomic
    def post(self, request: Request, project_id: str) -> Response:
        row, name = self.project(request, project_id), self.body(request).name
        if name is not None:
            row.name = name
            _save_named(row)
        return respond(project(row))


class ProjectArchive(ManagementRoute):
    path = "projects/<str:project_id>/archive"
    operations = {
        "POST": ManagementOperation(
            "archiveProject", "Archive a project", "accounts.change_project", objects.Project,
            description="Its keys are refused within a second. Its page in the admin can make it active.",
        )
    }  # fmt: skip

    @transaction.atomic
    def post(self, request: Request, project_id: str) -> Response:
        """Archive the project, unless an admin key in it has a role above the caller's."""
        row = find(caller_of(request), Project.objects.all(), project_id, "project")
        if row.pk == caller_of(request).project_id:
            message = "This project has the key of this request. Archive it with a key of another project."
            raise InvalidRequest(message, "project_id")
        for role in row.api_keys.filter(is_admin=True, revoked_at=None).values_list("manages_as", flat=True):
            access.require_role(caller_of(request), role)
        if row.is_active:
            row.is_active = False
            row.save()
        return respond(project(row))


class ProjectModelPermissions(ManagementRoute):
    path = "projects/<str:project_id>/model_permissions"
    operations = {
        "GET": ManagementOperation(
            "retrieveModelPermissions", "Show which models a project can use", "accounts.view_project",
            objects.ModelPermissions,
            description="Without a list, the answer is an empty `deny_list`.",
        ),
        "POST": ManagementOperation(
            "modifyModelPermissions", "Set which models a project can use", "accounts.change_project",
            objects.ModelPermissions,
            body=bodies.ModelPermissionsBody,
        ),
        "DELETE": ManagementOperation(
            "deleteModelPermissions", "Let a project use all models", "accounts.change_project",
            objects.Deleted,
        ),
    }  # fmt: skip

    def get(self, request: Request, project_id: str) -> Response:
        return respond(_permissions(self.project(request, project_id)))

    @transaction.atomic
    def post(self, request: Request, project_id: str) -> Response:
        """Set the list. Raises `InvalidRequest` for a model that neither exists nor was listed before."""
        row, sent = self.project(request, project_id), self.body(request)
        wanted = list(dict.fromkeys(sent.model_ids))
        known = {*ServedModel.objects.filter(pk__in=wanted).values_list("pk", flat=True), *row.listed_models}
        if unknown := [name for name in wanted if name not in known]:
            refuse(f"there is no model {unknown[0]!r}.", "model_ids")
        row.models_mode, row.listed_models = sent.mode, wanted
        row.save()
        return respond(_permissions(row))

    @transaction.atomic
    def delete(self, request: Request, project_id: str) -> Response:
        row = self.project(request, project_id)
        if row.models_mode == ModelsMode.ALL:
            raise errors.not_set("This project has no list of models.", "project_id")
        row.models_mode, row.listed_models = ModelsMode.ALL, []
        row.save()
        return respond(objects.Deleted(object="project.model_permissions.deleted"))


routes: list[type[ManagementRoute]] = [Projects, OneProject, ProjectArchive, ProjectModelPermissions]


def project(row: Project) -> objects.Project:
    return objects.Project(
        id=str(row.pk),
        name=row.name,
        created_at=int(row.created_at.timestamp()),
        archived_at=int(row.archived_at.timestamp()) if row.archived_at else None,
        status="active" if row.is_active else "archived",
    )


def _save_named(row: Project) -> None:
    """Save the project with its new name; refuse a name that another project of the organization has."""
    others = Project.objects.filter(organization=row.organization_id, name=row.name).exclude(pk=row.pk)
    if others.exists():
        refuse("a project of your organization has this name already.", "name")
    row.full_clean()
    row.save()


def _permissions(row: Project) -> objects.ModelPermissions:
    if row.models_mode == ModelsMode.ALL:  # the row may still have a list that the admin chose before
        return objects.ModelPermissions(mode="deny_list", model_ids=[])
    mode: Any = row.models_mode
    return objects.ModelPermissions(mode=mode, model_ids=row.listed_models)
