"""What the very first start sets up, so that there is something to try: a tenant, a key, an administrator,
the sandbox's models.
"""

import secrets
from dataclasses import dataclass
from pathlib import Path

from django.contrib.auth import get_user_model
from django.db import transaction

from accounts import keys
from accounts.models import Organization

ORGANIZATION = "demo"
ADMINISTRATOR = "admin"
SANDBOX_CATALOG = Path(__file__).parent.parent / "catalog" / "sandbox.toml"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Shown once; the database keeps only hashes."""

    api_key: str
    password: str | None
    """The administrator's; None when there was an account of that name already."""


@transaction.atomic
def set_up() -> Credentials | None:
    """Set it up when no organization exists yet; None when one does."""
    if Organization.objects.exists():
        return None
    _load_sandbox_models()
    project = keys.get_or_create_project(ORGANIZATION, "default")
    _, api_key = keys.create_key(project, name="demo", is_admin=True)
    return Credentials(api_key, _create_administrator())


def _load_sandbox_models() -> None:
    # Imported here: they bring the engines along, which no later start needs.
    from chatapi.catalog import file, loading  # noqa: PLC0415

    loading.load(file.read(SANDBOX_CATALOG))


def _create_administrator() -> str | None:
    users = get_user_model().objects
    if users.filter(username=ADMINISTRATOR).exists():
        return None
    password = secrets.token_urlsafe(12)
    users.create_superuser(ADMINISTRATOR, password=password)
    return password
