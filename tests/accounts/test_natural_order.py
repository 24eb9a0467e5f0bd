"""Lists of organizations and projects: a number at a name's end is sorted as a number."""

import re

import pytest
from django.test import Client

from accounts.models import Member, Organization, Project, Role
from accounts.natural_order import NaturalOrder
from tests.admin_pages import client_of
from tests.cast import Person

SORTED = ["0", "1", "2", "10", "11", "team", "team 2", "team 10", "team 10 b", "team2x3", "team2x12"]


@pytest.fixture
def organizations(db: None) -> list[str]:
    """Make organizations and projects of these names, in another order."""
    for name in sorted(SORTED, key=lambda name: name[::-1]):
        Organization.objects.create(name=f"n{name}")
    return [f"n{name}" for name in SORTED]


def shown(html: str, names: list[str]) -> list[str]:
    """Return those of the names that the list of the admin shows, in its order."""
    cells = re.findall(r"<t[hd][^>]*field-(?:project_name|page_link)[^>]*>\s*<a[^>]*>([^<]*)</a>", html)
    return [name for name in cells if name in names]


def sorting(html: str) -> str:
    """Return the number of the column of names, by which its header sorts."""
    found = re.search(r"<th[^>]*column-(?:project_name|page_link).*?[?;&]o=-?(\d+)", html, re.DOTALL)
    assert found
    return found[1]


def test_names_are_sorted_by_the_number_at_their_end(organizations: list[str]) -> None:
    rows = Organization.objects.filter(name__in=organizations)
    assert [row.name for row in rows] == organizations
    assert [row.name for row in rows.order_by(NaturalOrder("name").desc())] == organizations[::-1]
    for row in rows:
        Project.objects.create(organization=row, name="default")
    projects = Project.objects.filter(organization__in=rows).order_by("organization")
    assert [row.organization.name for row in projects.select_related("organization")] == organizations


def test_lists_of_the_admin_are_in_this_order(root: Client, organizations: list[str]) -> None:
    owner = Organization.objects.get(name=organizations[0])
    Project.objects.bulk_create(Project(organization=owner, name=name) for name in reversed(organizations))
    for path in (
        "/admin/accounts/organization/?",
        f"/admin/accounts/project/?organization__id__exact={owner.pk}&",
    ):
        html = root.get(path).content.decode()
        assert shown(html, organizations) == organizations
        column = sorting(html)
        for order, expected in ((column, organizations), (f"-{column}", organizations[::-1])):
            html = root.get(f"{path}o={order}").content.decode()
            assert shown(html, organizations) == expected


def test_lists_of_the_console_are_in_this_order(alice: Person, organizations: list[str]) -> None:
    owner = alice.project.organization
    Member.objects.filter(user=alice.user).update(role=Role.OWNER)
    Project.objects.bulk_create(Project(organization=owner, name=name) for name in reversed(organizations))
    for row in Organization.objects.filter(name__in=organizations):
        Member.objects.create(organization=row, user=alice.user, role=Role.VIEWER)
    html = client_of(alice.user).get(f"/console/{owner.pk}/usage").content.decode()
    options = [name.strip() for name in re.findall(r"<option[^>]*>([^<]*)</option>", html)]
    assert [name for name in options if name in organizations] == organizations
