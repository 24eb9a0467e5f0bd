"""The URLs of an organization's pages in the console, and clients that have a role there."""

from django.test import Client

from accounts.models import Member, Role
from tests.admin_pages import client_of
from tests.cast import Person


def url(person: Person, page: str) -> str:
    """Return the URL of a page of the person's organization."""
    return f"/console/{person.project.organization_id}/{page}"


def as_role(person: Person, role: Role) -> Client:
    """Return a client that is signed in as this person, who now has this role."""
    Member.objects.filter(user=person.user).update(role=role)
    return client_of(person.user)
