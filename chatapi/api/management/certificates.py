"""Certificates of authorities, which decide from which clients the keys of the organization, or of a project,
are accepted (mutual TLS).
"""

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.db.models import Exists, F, OuterRef, QuerySet
from msgspec import UNSET
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import access, certificates, forwarding
from accounts.authentication import look_up_id
from accounts.errors import CertificateRefused
from accounts.models import Certificate, CertificateProject, Project
from chatapi import errors
from chatapi.api.management import bodies, certificate_objects, objects
from chatapi.api.management.operations import ManagementOperation
from chatapi.api.management.pages import Page, page_of_rows
from chatapi.api.management.route import ManagementRoute, find, refuse
from chatapi.api.views import caller_of, respond

_PREFIX = "cert_"
_LOCKOUT = (
    "Up to 10, all or none. A change after which the calling key would be refused is refused itself, so send "
    "it with a client certificate of one of those that will be active."
)


class Certificates(ManagementRoute):
    path = "certificates"
    operations = {
        "GET": ManagementOperation(
            "listCertificates", "List the certificates of the organization", "accounts.view_certificate",
            Page[certificate_objects.OrganizationCertificate],
            query=bodies.CertificateListQuery,
        ),
        "POST": ManagementOperation(
            "uploadCertificate", "Upload a certificate", "accounts.add_certificate",
            certificate_objects.Certificate,
            body=bodies.CertificateBody,
            description="It is that of an authority (CA) that issues your clients' certificates, without a "
            f"private key. It is not active yet. There are {certificates.MAX_CERTIFICATES} at most.",
        ),
    }  # fmt: skip

    def get(self, request: Request) -> Response:
        return _page(self, request, None)

    def post(self, request: Request) -> Response:
        sent = self.body(request)
        row = certificates.create(caller_of(request).organization_id, sent.certificate, sent.name or "")
        return respond(_certificate(row))


class OneCertificate(ManagementRoute):
    path = "certificates/<str:certificate_id>"
    operations = {
        "GET": ManagementOperation(
            "getCertificate", "Show a certificate", "accounts.view_certificate",
            certificate_objects.Certificate,
            query=bodies.CertificateQuery,
        ),
        "POST": ManagementOperation(
            "modifyCertificate", "Rename a certificate", "accounts.change_certificate",
            certificate_objects.Certificate,
            body=bodies.CertificateChange,
        ),
        "DELETE": ManagementOperation(
            "deleteCertificate", "Delete a certificate", "accounts.delete_certificate", objects.Deleted,
            description="It must be active neither for the organization nor for a project.",
        ),
    }  # fmt: skip

    def get(self, request: Request, certificate_id: str) -> Response:
        (row,) = _find(request, [certificate_id], "certificate_id")
        return respond(_certificate(row, has_content="content" in self.query(request).include))

    def post(self, request: Request, certificate_id: str) -> Response:
        (row,) = _find(request, [certificate_id], "certificate_id")
        if (name := self.body(request).name) is not None:
            certificates.rename(row, name)
        return respond(_certificate(row))

    def delete(self, request: Request, certificate_id: str) -> Response:
        (row,) = _find(request, [certificate_id], "certificate_id")
        certificates.remove(row)
        return respond(objects.Deleted(object="certificate.deleted", id=certificate_id))


class CertificateActivation(ManagementRoute):
    path = "certificates/activate"
    operations = {
        "POST": ManagementOperation(
            "activateOrganizationCertificates", "Activate certificates for the organization",
            "accounts.change_certificate", certificate_objects.OrganizationActivation,
            body=bodies.CertificatesBody,
            description=f"All keys of the organization then need a client certificate. {_LOCKOUT}",
        )
    }  # fmt: skip

    @transaction.atomic
    def post(self, request: Request) -> Response:
        return _activate(self, request, None)


class CertificateDeactivation(ManagementRoute):
    path = "certificates/deactivate"
    operations = {
        "POST": ManagementOperation(
            "deactivateOrganizationCertificates", "Deactivate certificates for the organization",
            "accounts.change_certificate", certificate_objects.OrganizationActivation,
            body=bodies.CertificatesBody,
            description=f"Those that are active for a project stay so there. {_LOCKOUT}",
        )
    }  # fmt: skip

    @transaction.atomic
    def post(self, request: Request) -> Response:
        return _deactivate(self, request, None)


class ProjectCertificates(ManagementRoute):
    path = "projects/<str:project_id>/certificates"
    operations = {
        "GET": ManagementOperation(
            "listProjectCertificates", "List the certificates with their state in a project",
            "accounts.view_certificate", Page[certificate_objects.ProjectCertificate],
            query=bodies.CertificateListQuery,
        )
    }  # fmt: skip

    def get(self, request: Request, project_id: str) -> Response:
        return _page(self, request, self.project(request, project_id))


class ProjectCertificateActivation(ManagementRoute):
    path = "projects/<str:project_id>/certificates/activate"
    operations = {
        "POST": ManagementOperation(
            "activateProjectCertificates", "Activate certificates for a project",
            "accounts.change_certificate", certificate_objects.ProjectActivation,
            body=bodies.CertificatesBody,
            description=f"The project's keys then need a client certificate. {_LOCKOUT}",
        )
    }  # fmt: skip

    @transaction.atomic
    def post(self, request: Request, project_id: str) -> Response:
        return _activate(self, request, self.project(request, project_id))


class ProjectCertificateDeactivation(ManagementRoute):
    path = "projects/<str:project_id>/certificates/deactivate"
    operations = {
        "POST": ManagementOperation(
            "deactivateProjectCertificates", "Deactivate certificates for a project",
            "accounts.change_certificate", certificate_objects.ProjectActivation,
            body=bodies.CertificatesBody,
            description="Also of an archived project, so that they can be deleted. Those that are active for "
            f"the whole organization stay so. {_LOCKOUT}",
        )
    }  # fmt: skip

    @transaction.atomic
    def post(self, request: Request, project_id: str) -> Response:
        project = find(caller_of(request), Project.objects.all(), project_id, "project")
        return _deactivate(self, request, project)


routes: list[type[ManagementRoute]] = [
    Certificates, CertificateActivation, CertificateDeactivation, OneCertificate, ProjectCertificates,
    ProjectCertificateActivation, ProjectCertificateDeactivation,
]  # fmt: skip


def _rows(request: Request, project: Project | None) -> QuerySet[Any]:
    """Return the organization's certificates with `active`: whether they are, for it or for the project."""
    rows = access.managed_by(caller_of(request), Certificate.objects.all())
    if project is None:
        return rows.annotate(active=F("is_active"))
    of_project = CertificateProject.objects.filter(certificate=OuterRef("pk"), project=project)
    return rows.annotate(active=Exists(of_project))


def _page(route: ManagementRoute, request: Request, project: Project | None) -> Response:
    query = route.query(request)

    def shown(rows: list[Any]) -> Sequence[Any]:
        return [_activated(row, project) for row in rows]

    rows = _rows(request, project)
    return respond(page_of_rows(rows, query, shown, newest_first=query.order == "desc"))


def _find(request: Request, ids: list[str], param: str) -> list[Certificate]:
    """Return the organization's certificates with these ids, or raise a 404."""
    numbers = [each.removeprefix(_PREFIX) for each in ids]
    known = [
        int(number)
        for number, each in zip(numbers, ids, strict=True)
        if each.startswith(_PREFIX) and number.isascii() and number.isdecimal() and len(number) <= 18
    ]
    rows = list(access.managed_by(caller_of(request), Certificate.objects.filter(pk__in=known)))
    if len(rows) != len(set(ids)):
        raise errors.object_not_found("certificate", param)
    return rows


def _activate(route: ManagementRoute, request: Request, project: Project | None) -> Response:
    rows = _find(request, route.body(request).certificate_ids, "certificate_ids")
    certificates.activate(caller_of(request).organization_id, rows, project)
    return _changed(request, rows, project, "activation")


def _deactivate(route: ManagementRoute, request: Request, project: Project | None) -> Response:
    rows = _find(request, route.body(request).certificate_ids, "certificate_ids")
    certificates.deactivate(caller_of(request).organization_id, rows, project)
    return _changed(request, rows, project, "deactivation")


def _changed(request: Request, changed: Sequence[Certificate], project: Project | None, act: Any) -> Response:
    """Answer with the certificates; raise `InvalidRequest` if this request would be refused from now on."""
    caller = look_up_id(caller_of(request).api_key_id)
    try:
        caller.require_certificate(lambda: forwarding.client_certificate_of_meta(request.META))
    except CertificateRefused as refused:
        refuse(
            f"after this change, the calling key would need another client certificate, and {refused}",
            "certificate_ids",
        )
    rows = _rows(request, project).filter(pk__in=[row.pk for row in changed]).order_by("pk")
    shown = [_activated(row, project) for row in rows]
    kind: Any = certificate_objects.OrganizationActivation
    if project is not None:
        kind = certificate_objects.ProjectActivation
    scope = "organization" if project is None else "organization.project"
    return respond(kind(object=f"{scope}.certificate.{act}", data=shown))


def _certificate(row: Certificate, *, has_content: bool = False) -> certificate_objects.Certificate:
    details = certificate_objects.CertificateDetails(
        valid_at=int(row.valid_at.timestamp()),
        expires_at=int(row.expires_at.timestamp()),
        content=row.content if has_content else UNSET,
    )
    return certificate_objects.Certificate(
        id=f"{_PREFIX}{row.pk}",
        name=row.name or None,
        created_at=int(row.created_at.timestamp()),
        certificate_details=details,
    )


def _activated(row: Any, project: Project | None) -> Any:
    shown = _certificate(row)
    kind: Any = certificate_objects.OrganizationCertificate
    if project is not None:
        kind = certificate_objects.ProjectCertificate
    return kind(
        id=shown.id,
        name=shown.name,
        active=bool(row.active),
        created_at=shown.created_at,
        certificate_details=shown.certificate_details,
    )
