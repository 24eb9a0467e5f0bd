"""Rate limits of each end user and of a single one; without `counts_end_users`, a project has none."""

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts import end_users
from accounts.limits import Limit
from accounts.models import EndUser, Project, RateLimit
from tests.admin_pages import client_of
from tests.cast import Person
from usage.models import BudgetLimit

pytestmark = pytest.mark.django_db


def limits(person: Person, name: str) -> set[tuple[str, str, int]]:
    """Return the model, what is counted, and the number of each limit that the end user has."""
    caller = person.caller
    found = end_users.limits(caller.project_id, name, caller.end_user_limits)
    assert {(limit.scope, limit.scope_id, limit.name) for limit in found} <= {
        ("end_user", caller.project_id, name)
    }
    return {(limit.model, limit.counts, limit.most) for limit in found}


@pytest.fixture(autouse=True)
def counting(alice: Person, charlie: Person) -> None:
    Project.objects.update(counts_end_users=True)


def test_the_own_row_comes_first_then_the_projects_then_the_organizations(alice: Person) -> None:
    organization = alice.project.organization
    RateLimit.objects.create(organization=organization, each_end_user=True, requests_per_minute=1)
    RateLimit.objects.create(organization=organization, each_end_user=True, model="m", tokens_per_day=9)
    assert limits(alice, "ann") == {("", "requests", 1), ("m", "tokens", 9)}
    RateLimit.objects.create(project=alice.project, each_end_user=True, requests_per_day=2)
    assert limits(alice, "ann") == {("", "requests", 2), ("m", "tokens", 9)}
    ann = EndUser.objects.create(project=alice.project, name="ann")
    row = RateLimit.objects.create(end_user=ann, concurrent_requests=3)
    assert limits(alice, "ann") == {("", "running", 3), ("m", "tokens", 9)}
    assert row.limits == end_users.limits(alice.project.pk, "ann", ())
    assert limits(alice, "bob") == {("", "requests", 2), ("m", "tokens", 9)}


def test_limits_of_each_end_user_are_no_limits_of_the_key(alice: Person, charlie: Person) -> None:
    RateLimit.objects.create(project=alice.project, each_end_user=True, requests_per_minute=1)
    caller = alice.caller
    assert (caller.rate_limits, len(caller.end_user_limits)) == ((), 1)
    assert not caller.has_own_end_user_limits
    assert charlie.caller.end_user_limits == ()
    ann = EndUser.objects.create(project=alice.project, name="ann")
    RateLimit.objects.create(end_user=ann, requests_per_minute=1)
    assert alice.caller.has_own_end_user_limits
    assert not charlie.caller.has_own_end_user_limits
    Project.objects.update(counts_end_users=False)
    caller = alice.caller
    assert (caller.end_user_limits, caller.has_own_end_user_limits) == ((), False)


def test_a_key_is_looked_up_with_as_many_queries_as_before(alice: Person) -> None:
    RateLimit.objects.create(project=alice.project, each_end_user=True, requests_per_minute=1)
    with CaptureQueriesContext(connection) as queries:
        assert alice.caller.end_user_limits
    assert len(queries) == 2


def test_end_users_of_two_projects_share_no_limit(alice: Person, charlie: Person) -> None:
    RateLimit.objects.create(project=alice.project, each_end_user=True, requests_per_minute=1)
    RateLimit.objects.create(project=charlie.project, each_end_user=True, requests_per_minute=1)
    ids = {
        limit.id
        for person in (alice, charlie)
        for name in ("ann", "ann 2")
        for limit in end_users.named(person.caller.end_user_limits, name)
    }
    assert len(ids) == 4


def test_a_refusal_names_the_end_user(alice: Person) -> None:
    RateLimit.objects.create(project=alice.project, each_end_user=True, requests_per_minute=1)
    (limit,) = alice.caller.end_user_limits
    assert isinstance(limit, Limit)
    assert str(limit) == "1 request per minute for this end user"


@pytest.mark.parametrize(
    ("values", "owner"),
    [
        ({"each_end_user": "on"}, "each"),
        ({"end_user_name": "ann"}, "ann"),
        ({}, "project"),
        ({"end_user_name": "ann", "each_end_user": "on"}, None),
        ({"end_user_name": "ann", "project": ""}, None),
        ({"project": ""}, None),
    ],
)
def test_they_are_set_on_the_page_of_rate_limits(
    alice: Person, admin_client: Client, values: dict[str, Any], owner: str | None
) -> None:
    form = {"project": alice.project.pk, "model": "", "requests_per_minute": "7"} | values
    page = admin_client.post(reverse("admin:accounts_ratelimit_add"), form)
    if owner is None:
        assert page.status_code == 200
        assert not RateLimit.objects.exists()
        return
    row = RateLimit.objects.get()
    assert row.each_end_user == (owner == "each")
    assert (row.end_user and row.end_user.name) == (owner if owner == "ann" else None)
    assert (row.project is None) == (owner == "ann")
    url = reverse("admin:accounts_ratelimit_change", args=[row.pk])
    admin_client.post(url, {"project": row.project_id or "", "each_end_user": values.get("each_end_user", ""),
                            "model": "", "requests_per_minute": "8"})  # fmt: skip
    row.refresh_from_db()
    assert (row.requests_per_minute, row.each_end_user) == (8, owner == "each")


@pytest.mark.parametrize("where", ["admin", "console"])
def test_limits_of_one_end_user_hold_when_the_project_hashes_names(alice: Person, where: str) -> None:
    project, hashed = alice.project, end_users.digest
    stay = ["without a limit", hashed("a long name"), "limited twice", hashed("limited twice")]
    names = ["ann", "bob", *stay, "known by both", hashed("known by both")]
    rows = [EndUser.objects.create(project=project, name=name) for name in names]
    for row in (rows[0], *rows[3:7]):
        RateLimit.objects.create(end_user=row, requests_per_minute=0)
    BudgetLimit.objects.create(scope="end_user", scope_id=rows[1].pk, period="month", limit_nanodollars=0)
    url = {
        "admin": reverse("admin:accounts_project_change", args=[project.pk]),
        "console": reverse("console:project_settings", args=[project.organization_id, project.pk]),
    }[where]
    form = {"name": project.name, "is_active": "on", "counts_end_users": "on", "hashes_end_users": "on"}
    assert client_of(alice.user).post(url, form).status_code == 302
    for name in ("ann", "known by both", "limited twice"):
        assert limits(alice, hashed(name)) == {("", "requests", 0)}
    found = EndUser.objects.order_by("pk").values_list("name", flat=True)
    assert [*found] == [hashed("ann"), hashed("bob"), *stay, hashed("known by both"), "known by both"]


def test_people_see_limits_of_their_own_end_users_only(alice: Person, charlie: Person) -> None:
    ann = EndUser.objects.create(project=alice.project, name="ann")
    RateLimit.objects.create(end_user=ann, requests_per_minute=1)
    url = reverse("admin:accounts_ratelimit_changelist")
    assert "ann" in client_of(alice.user).get(url).text
    assert "/ ann" not in client_of(charlie.user).get(url).text
