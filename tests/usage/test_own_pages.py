"""Overview, Live and Requests for people of organizations: one organization of theirs at a time, and nothing
of the service.
"""

import re
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts.models import Member, Organization, Role
from tests.admin_pages import client_of, shown
from tests.cast import Person, admit, run
from usage.models import BudgetLimit, Generation, LedgerEntry, Outcome
from usage.pages.live import Sight, snapshot

PAGES = ["/admin/", "/admin/requests/", "/admin/requests/export.csv", "/admin/overview.csv"]


@pytest.fixture
def both(alice: Person, charlie: Person) -> Client:
    """Return a client of Alice, owner of Acme and a viewer of Umbrella, Charlie's organization."""
    Member.objects.create(organization=charlie.project.organization, user=alice.user, role=Role.VIEWER)
    return client_of(alice.user)


@pytest.mark.parametrize("path", PAGES)
def test_another_organizations_parts_are_as_unknown_as_none(
    alice: Person, charlie: Person, path: str
) -> None:
    run(charlie)
    theirs = {
        "organization": charlie.project.organization_id,
        "project": charlie.project.pk,
        "key": charlie.api_key.pk,
    }
    client = client_of(alice.user)
    for name, row_id in theirs.items():
        answers = [client.get(f"{path}?{name}={each}") for each in (row_id, 999_999_999)]
        assert [answer.status_code for answer in answers] == [404, 404]
        assert answers[0].content == answers[1].content


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("query", ["organization=x", "project=-1", "key=9999999999999999999", "outcome=none"])
def test_what_is_no_number_is_a_mistake_and_shows_nothing(
    alice: Person, charlie: Person, path: str, query: str
) -> None:
    run(charlie)
    answer = client_of(alice.user).get(f"{path}?{query}")
    assert answer.status_code == 400
    assert "Umbrella" not in answer.content.decode()


def test_sums_and_requests_are_those_of_the_persons_organization(alice: Person, charlie: Person) -> None:
    own, other = run(alice), run(charlie)
    client = client_of(alice.user)
    listed = client.get("/admin/requests/").content.decode()
    assert str(own) in listed
    assert str(other) not in listed
    overview = shown(client.get("/admin/"))
    assert "Requests 1 " in overview
    assert "Top projects" in overview
    assert "Umbrella" not in overview + listed


def test_a_member_of_two_organizations_sees_one_at_a_time(
    both: Client, alice: Person, charlie: Person
) -> None:
    own, other = run(alice), run(charlie)
    umbrella = charlie.project
    found = {
        query: [str(row) in both.get(f"/admin/requests/{query}").content.decode() for row in (own, other)]
        for query in (
            "",
            f"?organization={umbrella.organization_id}",
            f"?project={umbrella.pk}",
            f"?key={charlie.api_key.pk}",
        )
    }
    assert list(found.values()) == [[True, False], [False, True], [False, True], [False, True]]
    assert both.get(f"/admin/requests/?id={other}").headers["location"] == f"/admin/requests/{other}"


def test_links_stay_within_the_organization_of_their_request(both: Client, charlie: Person) -> None:
    failed = run(charlie, outcome=Outcome.FAILED, error_code="upstream_timeout")
    for path in (
        f"/admin/requests/?organization={charlie.project.organization_id}",
        f"/admin/requests/{failed}",
    ):
        links = re.findall(
            r'href="(/admin/requests/\?[^"]*(?:error|model|endpoint)=[^"]*)"', both.get(path).text
        )
        assert links, path
        for link in links:
            assert str(failed) in both.get(unescape(link)).text, link


def test_the_organization_is_chosen_and_not_removed(both: Client, alice: Person, charlie: Person) -> None:
    chosen = f'<option value="{charlie.project.organization_id}" selected>Umbrella</option>'
    for path in ("/admin/", "/admin/requests/"):
        query = f"{path}?organization={charlie.project.organization_id}"
        assert chosen in both.get(query).content.decode()
        assert "organization: Umbrella" not in shown(both.get(query))
        assert "organization: Umbrella" in shown(
            client_of(User.objects.create_superuser(f"root of {path}")).get(query)
        )
    assert chosen not in client_of(charlie.user).get("/admin/").content.decode()


def test_the_services_own_state_is_the_operators(alice: Person, small: Any) -> None:
    run(alice)
    own, operators = (
        shown(client_of(alice.user).get("/admin/")),
        shown(client_of(User.objects.create_superuser("root")).get("/admin/")),
    )
    for title in ("Waiting for a worker", "Deployments"):
        assert title not in own
        assert title in operators


def test_budgets_are_those_that_the_person_sees(alice: Person, charlie: Person) -> None:
    for person in (alice, charlie):
        run(person)
        BudgetLimit.objects.create(
            scope="project", scope_id=person.project.pk, period="month", limit_nanodollars=10**6
        )
    overview = shown(client_of(alice.user).get("/admin/"))
    assert "Acme / default" in overview
    assert "Umbrella / default" not in overview


# ---- what runs


def test_live_shows_what_the_person_may_see(alice: Person, charlie: Person) -> None:
    own, other = admit(alice), admit(charlie)
    shown = client_of(alice.user).get("/admin/live/").content.decode()
    assert str(own) in shown
    assert str(other) not in shown
    assert snapshot({}, Sight((alice.project.organization_id,))).keys() == {str(own)}
    assert snapshot({}, Sight(())).keys() == set()
    assert snapshot({}).keys() == {str(own), str(other)}


def test_stopping_is_an_admins_in_that_organization(both: Client, alice: Person, charlie: Person) -> None:
    own, other = run(alice), run(charlie)
    assert both.post(f"/admin/live/{own}/stop").status_code == 302
    assert both.post(f"/admin/live/{other}/stop").status_code == 403
    assert client_of(charlie.user).post(f"/admin/live/{own}/stop").status_code == 404


# ---- nothing yet


@pytest.mark.parametrize(
    ("role", "reported"),
    [
        (Role.OWNER, "Create an API key ; its secret is shown once"),
        (Role.VIEWER, "a member, admin or owner of your organization creates it"),
    ],
)
def test_a_list_without_rows_says_what_to_do(alice: Person, small: Any, role: Role, reported: str) -> None:
    run(alice)  # someone else's
    user = User.objects.create_user("new")
    Member.objects.create(organization=Organization.objects.create(name="Initech"), user=user, role=role)
    first = shown(client_of(user).get("/admin/"))
    assert "Three steps to the first answer" in first
    assert reported in first
    assert "loadcatalog" not in first


# ---- the lists of rows, of which there may be very many


@pytest.mark.parametrize(("model", "column"), [(Generation, "admitted_at"), (LedgerEntry, "created_at")])
def test_an_organizations_rows_are_read_through_its_index(alice: Person, model: Any, column: str) -> None:
    run(alice)
    name = model._meta.model_name
    for user, ordering in ((alice.user, f"-{column}"), (User.objects.create_superuser("root"), "-id")):
        changelist = client_of(user).get(f"/admin/usage/{name}/").context["cl"]
        assert changelist.queryset.query.order_by[0] == ordering
