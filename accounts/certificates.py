"""Certificates of authorities: uploads, renames and removes them, and says for which keys they are active.

Each change locks the organization, so that bounds hold.
"""

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
_NOT_RECEIVED = (
    "No proxy passes on client certificates to this service, so each request would be refused. Its operator "
    "has to set CHATAPI_CLIENT_CERTIFICATE_HEADER and CHATAPI_TRUSTED_PROXIES."
)


def create(organization_id: int, content: str, name: str = "") -> Certificate:
    """Return the new row of a certificate in PEM, which is not active. Raises `ValidationError`."""
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
        _save(row)
    return row


def rename(row: Certificate, name: str) -> None:
    """Give the certificate another name, which may be empty. Raises `ValidationError`."""
    if row.name != name:
        row.name = name
        _save(row)


def remove(row: Certificate) -> None:
    """Remove a certificate that is not active. Raises `ValidationError`."""
    with _locked(row.organization_id):
        if Certificate.objects.filter(pk=row.pk, is_active=True).exists() or row.projects.exists():
            raise ValidationError("This certificate is active. Deactivate it first, also for its projects.")
        row.delete()


def activate(organization_id: int, rows: Collection[Certificate], project: Project | None = None) -> None:
    """Require client certificates of these authorities, for all keys of the organization or for those of the
    project. Rows that are active there stay so. Raises `ValidationError`.
    """
    if not (settings.CLIENT_CERTIFICATE_HEADER and settings.TRUSTED_PROXIES):
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


def _save(row: Certificate) -> None:
    if row.name:
        try:
            identifier(row.name)
        except ValidationError as error:
            raise ValidationError({"name": error.messages}) from None
    row.save()


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
