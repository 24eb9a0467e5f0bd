"""Creates, rotates, disables and revokes API keys, and creates their organizations and projects."""

from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from django.conf import settings
from django.db import transaction
from django.db.models import Case, F, QuerySet, Value, When
from django.db.models.functions import Now

from accounts import api_keys
from accounts.audit import recorder
from accounts.errors import KeyChanged
from accounts.models import APIKey, Organization, Project

Row = TypeVar("Row", Organization, Project)


class _Secret(NamedTuple):
    """A new secret and the values of it that are stored."""

    text: str
    public: str
    digest: str


def create_key(project: Project, **columns: Any) -> tuple[APIKey, str]:
    """Return a new key and its secret, which can't be read again. Raises `ValidationError`."""
    row = APIKey(project=project, **columns)
    return row, issue(row)


def issue(row: APIKey) -> str:
    """Save a new key, and return its secret, which can't be read again. Raises `ValidationError`."""
    secret = _new_secret(is_test=row.is_test)
    row.public, row.digest = secret.public, secret.digest
    row.full_clean()
    row.save()
    return secret.text


def issue_without_secret(row: APIKey) -> None:
    """Save a new key that only access tokens open. Raises `ValidationError`."""
    row.public = api_keys.new_public()
    row.full_clean()
    row.save()


def end_access_tokens(rows: QuerySet[APIKey]) -> None:
    """End the access tokens of these keys within a second: their public parts find no key any more."""
    for row in rows.filter(digest="").order_by("pk"):
        recorder.update(APIKey.objects.filter(pk=row.pk), public=api_keys.new_public())


def rotate(row: APIKey, previous_until: datetime | None) -> str:
    """Give the key a new secret and return it. The old one works until `previous_until`, or ends now if None.

    An older secret that was still valid ends now. Raises `KeyChanged` if the key was rotated or revoked since
    it was read, or has no secret.
    """
    secret = _new_secret(is_test=row.is_test)
    previous: dict[str, Any] = {"previous_public": None, "previous_digest": "", "previous_expires_at": None}
    if previous_until is not None:
        previous = {
            "previous_public": F("public"),
            "previous_digest": F("digest"),
            "previous_expires_at": previous_until,
        }
    # A conditional update instead of a lock: the second of two rotations at once changes no row.
    unchanged = APIKey.objects.filter(pk=row.pk, public=row.public, revoked_at=None).exclude(digest="")
    if not recorder.update(unchanged, public=secret.public, digest=secret.digest, **previous):
        raise KeyChanged
    row.refresh_from_db()
    return secret.text


def end_previous_secrets(rows: QuerySet[APIKey]) -> int:
    """End the previous secrets of these keys; returns how many ended."""
    # Only those that still work, so that the count tells the person whether there was one.
    overlapping = rows.filter(previous_expires_at__gt=Now())
    return recorder.update(overlapping, previous_public=None, previous_digest="", previous_expires_at=None)


@transaction.atomic
def set_active(rows: QuerySet[APIKey], *, is_active: bool) -> int:
    """Enable or disable these keys; returns how many changed. Access tokens of disabled keys end for good."""
    # Revoked keys stay as they are: enabling one would show it as active though it is refused.
    changing = rows.filter(revoked_at=None).exclude(is_active=is_active)
    with_tokens = [] if is_active else list(changing.filter(digest="").values_list("pk", flat=True))
    count = recorder.update(changing, is_active=is_active)
    end_access_tokens(APIKey.objects.filter(pk__in=with_tokens))
    return count


def revoke(rows: QuerySet[APIKey]) -> int:
    """Refuse these keys for good; returns how many were still valid."""
    return recorder.update(rows.filter(revoked_at=None), revoked_at=Now())


def status(row: APIKey, now: datetime) -> str:
    """Return whether requests with the key are accepted, or why not."""
    if row.revoked_at is not None:
        return "revoked"
    if row.expires_at is not None and row.expires_at <= now:
        return "expired"
    if not row.is_active:
        return "disabled"
    if not row.project.organization.is_active:
        return "organization inactive"
    return "active" if row.project.is_active else "project archived"


def with_status(rows: QuerySet[APIKey], wanted: str, now: datetime) -> QuerySet[APIKey]:
    """Return the keys whose `status` is the wanted one."""
    found = Case(
        When(revoked_at__isnull=False, then=Value("revoked")),
        When(expires_at__lte=now, then=Value("expired")),
        When(is_active=False, then=Value("disabled")),
        When(project__organization__is_active=False, then=Value("organization inactive")),
        When(project__is_active=False, then=Value("project archived")),
        default=Value("active"),
    )
    return rows.alias(status=found).filter(status=wanted)


def get_or_create_project(organization: str, project: str) -> Project:
    """Return the project; make it and its organization if they are missing. Raises `ValidationError`."""
    with transaction.atomic():
        owner = Organization.objects.filter(name=organization).first() or _saved(
            Organization(name=organization)
        )
        return Project.objects.filter(organization=owner, name=project).first() or _saved(
            Project(organization=owner, name=project)
        )


def _saved(row: Row) -> Row:
    row.full_clean()
    row.save()
    return row


def _new_secret(*, is_test: bool) -> _Secret:
    text = api_keys.generate(is_test=is_test)
    parsed = api_keys.parse(text)
    assert parsed is not None, "a generated key parses"
    return _Secret(text, parsed.public, api_keys.digest(text, settings.KEY_PEPPER))
