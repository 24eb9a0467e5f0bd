"""Certificates of the authorities that issue the certificates of an organization's clients."""

from django.db import models

from accounts.models.organizations import Organization, Project


class Certificate(models.Model):
    """The certificate of an authority (CA). Where it is active, keys need a client certificate that it has
    issued.
    """

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="certificates", db_index=False
    )
    name = models.CharField(max_length=100, blank=True, default="")
    content = models.TextField()
    """The certificate as PEM."""
    fingerprint = models.CharField(max_length=64)
    """The SHA-256 of its DER, in hexadecimal digits."""
    valid_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    is_active = models.BooleanField(default=False, db_default=False)
    """Whether it is active for all keys of the organization."""
    projects = models.ManyToManyField(Project, through="CertificateProject", related_name="certificates")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["organization_id", "pk"]
        constraints = [
            # Its index begins with the organization, so that column has none of its own.
            models.UniqueConstraint(
                fields=["organization", "fingerprint"], name="certificate_once_in_organization"
            )
        ]

    def __str__(self) -> str:
        return f"{self.organization} / {self.name or self.fingerprint[:16]}"


class CertificateProject(models.Model):
    """A project for whose keys a certificate is active."""

    certificate = models.ForeignKey(Certificate, on_delete=models.CASCADE, db_index=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["certificate", "project"], name="one_row_per_certificate_and_project"
            )
        ]

    def __str__(self) -> str:
        return f"{self.certificate} for {self.project}"
