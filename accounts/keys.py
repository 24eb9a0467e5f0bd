"""Making and revoking API keys, and making the organizations and projects they belong to."""

from typing import TypeVar

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from accounts import api_keys
from accounts.models import APIKey, Organization, Project

Row = TypeVar("Row", Organization, Project)


def create_key(project: Project, *, name: str = "default", is_test: bool = False, is_admin: bool = False) -> tuple[APIKey, str]:
    """A new key of the project: its row, and the secret, which nobody can read again. Raises `ValidationError`."""
    secret = api_keys.generate(is_test=is_test)
    parsed = api_keys.parse(secret)
    assert parsed is not None, "a generated key parses"
    row = APIKey(
        project=project,
        name=name,
        public=parsed.public,
        digest=api_keys.digest(secret, settings.KEY_PEPPER),
        is_test=is_test,
        is_admin=is_admin,
    )
    row.full_clean()
    row.save()
    return row, secret


def get_or_create_project(organization: str, project: str) -> Project:
    """The project of that name in the organization of that name; whichever is missing is made. Raises `ValidationError`."""
    with transaction.atomic():
        owner = Organization.objects.filter(name=organization).first() or _saved(Organization(name=organization))
        return Project.objects.filter(organization=owner, name=project).first() or _saved(Project(organization=owner, name=project))


def _saved(row: Row) -> Row:
    row.full_clean()
    row.save()
    return row


def revoke(rows: QuerySet[APIKey]) -> int:
    """Refuse these keys from now on, for good; returns how many of them were still valid."""
    return rows.filter(revoked_at=None).update(revoked_at=Now())
