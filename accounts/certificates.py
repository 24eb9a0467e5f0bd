"""Certificates of authorities: uploads, renames and removes them, and says for which keys they are active.

Each change locks the organization, so that bounds hold.
"""

import hashlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from accounts import client_certificates
from accounts.audit import recorder
from accounts.audit.changes import Changes
from accounts.client_certificates import MAX_BYTES
from accounts.models import Certificate, CertificateProject, Organization, Project
from accounts.models.organizations import identifier

if TYPE_CHECKING:
    from cryptography import x509

MAX_CERTIFICATES = 50
MAX_OF_SUBJECT = 3
"""A client's certificate is verified against each active authority that has the name of its issuer."""
MAX_PROJECTS = 100
_CHANGED = "This certificate was changed or removed just now. Look again."
_NOT_RECEIVED = (
    "No proxy passes on client certificates to this service, so each request would be refused. Its operator "
    "has to set CHATAPI_CLIENT_CERTIFICATE_HEADER and CHATAPI_TRUSTED_PROXIES."
)


def create(organization_id: int, content: str, name: str = "") -> Certificate:
    """Return the new row of a certificate in PEM, which is not active. Raises `ValidationError`."""
    _check_name(name)
    found = _authority(content)
    row = Certificate(
        organization_id=organization_id,
        name=name,
        content=client_certificates.pem(found),
        fingerprint=client_certificates.fingerprint(found),
        valid_at=found.not_valid_before_utc,
        expires_at=found.not_valid_after_utc,
    )
    with _locked(organization_id):
        own = Certificate.objects.filter(organization=organization_id)
        if own.filter(fingerprint=row.fingerprint).exists():
            raise ValidationError({"certificate": "The organization has this certificate already."})
        if own.count() >= MAX_CERTIFICATES:
            raise ValidationError(f"An organization has at most {MAX_CERTIFICATES} certificates.")
        same = [each for each in own if client_certificates.authority(each.content).subject == found.subject]
        if len(same) >= MAX_OF_SUBJECT:
            text = f"An organization has at most {MAX_OF_SUBJECT} certificates of one subject."
            raise ValidationError({"certificate": text})
        row.save()
    return row


def rename(row: Certificate, name: str) -> None:
    """Give the certificate another name, which may be empty. Raises `ValidationError`."""
    _check_name(name)
    with _locked(row.organization_id):
        _require(row)
        if row.name != name:
            row.name = name
            row.save(update_fields=["name"])


def change(
    row: Certificate, name: str, *, is_active: bool, projects: Collection[Project], known: str | None = None
) -> None:
    """Give the certificate this name, and activate it for the whole organization, if that is wanted, and for
    these projects only. Raises `ValidationError`, also if its `state` is not `known` any more.
    """
    organization_id = row.organization_id
    with _locked(organization_id):
        _require(row)
        if known not in (None, state(row)):
            raise ValidationError(_CHANGED)
        rename(row, name)
        before = set(row.projects.all())
        for project in before.difference(projects):
            deactivate(organization_id, [row], project)
        for project in set(projects) - before:
            activate(organization_id, [row], project)
        if is_active != row.is_active:
            (activate if is_active else deactivate)(organization_id, [row])


def state(row: Certificate) -> str:
    """Return a digest of the certificate's name and state as the database has them, to be compared."""
    row.refresh_from_db()
    projects = sorted(row.projects.values_list("pk", flat=True))
    return hashlib.sha256(repr((row.name, row.is_active, projects)).encode()).hexdigest()


def remove(row: Certificate) -> None:
    """Remove a certificate that is not active. Raises `ValidationError`."""
    with _locked(row.organization_id):
        _require(row)
        if Certificate.objects.filter(pk=row.pk, is_active=True).exists() or row.projects.exists():
            raise ValidationError("This certificate is active. Deactivate it first, also for its projects.")
        row.delete()


def are_received() -> bool:
    """Return whether the settings name proxies that pass on client certificates, and the header."""
    return bool(settings.CLIENT_CERTIFICATE_HEADER and settings.TRUSTED_PROXIES)


def activate(organization_id: int, rows: Collection[Certificate], project: Project | None = None) -> None:
    """Require client certificates of these authorities, for all keys of the organization or for those of the
    project. Rows that are active there stay so. Raises `ValidationError`.
    """
    if not are_received():
        raise ValidationError(_NOT_RECEIVED)
    now = timezone.now()
    with _locked(organization_id):
        for row in _differing(organization_id, rows, project, is_active=True):
            if not row.valid_at <= now < row.expires_at:
                raise ValidationError(f"The certificate '{row.name or row.pk}' is not valid now.")
            if project is None:
                Certificate.objects.filter(pk=row.pk).update(is_active=True)
            else:
                CertificateProject.objects.create(certificate=row, project=project)
                if row.projects.count() > MAX_PROJECTS:
                    raise ValidationError(f"A certificate is active for at most {MAX_PROJECTS} projects.")
            recorder.record("activated", row, _changes(project, is_active=True))


def deactivate(organization_id: int, rows: Collection[Certificate], project: Project | None = None) -> None:
    """End what `activate` began; keys for which no certificate is active any more need none."""
    with _locked(organization_id):
        for row in _differing(organization_id, rows, project, is_active=False):
            if project is None:
                Certificate.objects.filter(pk=row.pk).update(is_active=False)
            else:
                CertificateProject.objects.filter(certificate=row, project=project).delete()
            recorder.record("deactivated", row, _changes(project, is_active=False))


def _differing(
    organization_id: int, rows: Collection[Certificate], project: Project | None, *, is_active: bool
) -> list[Certificate]:
    """Return those of the organization's rows that are not in the wanted state, as the database has them."""
    own = Certificate.objects.filter(organization=organization_id, pk__in=[row.pk for row in rows])
    active = own.filter(is_active=True) if project is None else own.filter(projects=project)
    return list(own.exclude(pk__in=active.values("pk")) if is_active else active)


def _changes(project: Project | None, *, is_active: bool) -> Changes:
    if project is None:
        return {"is_active": [not is_active, is_active]}
    names = [str(project)]
    return {"projects": [[], names] if is_active else [names, []]}


@contextmanager
def _locked(organization_id: int) -> Iterator[None]:
    with transaction.atomic():
        Organization.objects.select_for_update(no_key=True).get(pk=organization_id)
        yield


def _require(row: Certificate) -> None:
    """Raise `ValidationError` if the row was removed since it was read."""
    if not Certificate.objects.filter(pk=row.pk).exists():
        raise ValidationError(_CHANGED)


def _check_name(name: str) -> None:
    try:
        if name:
            identifier(name)
    except ValidationError as error:
        raise ValidationError({"name": error.messages}) from None


def _authority(content: str) -> "x509.Certificate":
    """Return the certificate in the text. Raises `ValidationError` unless it can issue certificates that
    `client_certificates` accepts.
    """
    if len(content.encode()) > MAX_BYTES:
        raise ValidationError({"certificate": f"A certificate has at most {MAX_BYTES:,} bytes."})
    try:
        found = client_certificates.of_pem(content.encode())
    except ValueError:
        raise ValidationError(
            {
                "certificate": "This must be one X.509 certificate as PEM, from -----BEGIN CERTIFICATE----- "
                "on, without its chain and without a private key."
            }
        ) from None
    if fault := client_certificates.fault_of_authority(found):
        raise ValidationError({"certificate": fault})
    if found.not_valid_after_utc < timezone.now() + timedelta(days=1):
        raise ValidationError({"certificate": "This certificate has expired, or expires within a day."})
    return found
