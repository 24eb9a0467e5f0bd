"""The objects of the management API about certificates, as OpenAI's reference has them."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType


class CertificateDetails(Struct, frozen=True, kw_only=True):
    """From when to when a certificate is valid. `content`, its PEM, is present only if it was asked for."""

    valid_at: int
    expires_at: int
    content: str | UnsetType = UNSET


class Certificate(Struct, frozen=True, kw_only=True):
    """The certificate of an authority that issues certificates for clients."""

    object: Literal["certificate"] = "certificate"
    id: str
    name: str | None
    created_at: int
    certificate_details: CertificateDetails


class OrganizationCertificate(Struct, frozen=True, kw_only=True):
    """A certificate, and whether it is active for all keys of the organization."""

    object: Literal["organization.certificate"] = "organization.certificate"
    id: str
    name: str | None
    active: bool
    created_at: int
    certificate_details: CertificateDetails


class ProjectCertificate(Struct, frozen=True, kw_only=True):
    """A certificate, and whether it is active for the keys of the project; one that is active for the whole
    organization counts for them, too.
    """

    object: Literal["organization.project.certificate"] = "organization.project.certificate"
    id: str
    name: str | None
    active: bool
    created_at: int
    certificate_details: CertificateDetails


class OrganizationActivation(Struct, frozen=True, kw_only=True):
    """The certificates that were activated or deactivated for the organization."""

    object: Literal["organization.certificate.activation", "organization.certificate.deactivation"]
    data: list[OrganizationCertificate]


class ProjectActivation(Struct, frozen=True, kw_only=True):
    """The certificates that were activated or deactivated for a project."""

    object: Literal[
        "organization.project.certificate.activation", "organization.project.certificate.deactivation"
    ]
    data: list[ProjectCertificate]
