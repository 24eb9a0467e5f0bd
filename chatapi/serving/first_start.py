"""Sets up what a first start needs: a tenant, an API key, an administrator and the models of the sandbox."""

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
    """The secrets of a first start, shown once; the database keeps only hashes."""

    api_key: str
    password: str | None
    """The administrator's; None if there already was an account of that name."""


@transaction.atomic
def set_up() -> Credentials | None:
    """Set up a tenant if there is no organization yet, and return its secrets; None if there is one."""
    if Organization.objects.exists():
        return None
    # Imported here, because it loads the engines, which no later start of this process needs.
    from chatapi.catalog import file, loading  # noqa: PLC0415

    loading.load(file.read(SANDBOX_CATALOG))
    project = keys.get_or_create_project(ORGANIZATION, "default")
    _, api_key = keys.create_key(project, name="demo", is_admin=True)
    users = get_user_model().objects
    password = None
    if not users.filter(username=ADMINISTRATOR).exists():
        password = secrets.token_urlsafe(12)
        users.create_superuser(ADMINISTRATOR, password=password)
    return Credentials(api_key, password)
