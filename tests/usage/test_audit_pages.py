"""The audit log's page: what people did, filtered, in pages, and linked from what they did it to."""

import re
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from pytest_django.fixtures import DjangoAssertNumQueries

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts.audit import recorder
from accounts.audit.recorder import Actor
from accounts.models import Organization
from chatapi.models import ServedModel
from tests.admin_pages import shown
from tests.cast import Person, run
from usage.models import BudgetLimit


def act(name: str, changes: int = 1, organization: str = "Globex") -> Organization:
    """Create an organization as this person, and rename it this number of times."""
    with recorder.acting(lambda: Actor(None, name)):
        row = Organization.objects.create(name=organization)
        for number in range(changes):
            row.name = f"{organization} {number}"
            row.save()
    return row


def test_it_shows_persons_and_values_before_and_after(root: Client) -> None:
    act("<b>alice</b>")
    response = root.get("/admin/audit/")
    page = shown(response)
    assert "changed organization, history Globex 0" in page
    assert "name Globex → became Globex 0" in page
    assert "created" in page
    assert "&lt;b&gt;alice&lt;/b&gt;" in response.content.decode()


def test_money_is_in_dollars_and_empty_is_a_dash(root: Client, alice: Person) -> None:
    with recorder.acting(lambda: Actor(None, "alice")):
        limit = BudgetLimit.objects.create(
            scope="key", scope_id=alice.api_key.pk, period="day", limit_nanodollars=1_500_000_000
        )
        limit.limit_nanodollars, limit.soft_limit_nanodollars = None, 2_000_000
        limit.save()
    assert "limit $1.50 → became –" in shown(root.get("/admin/audit/"))
    assert "soft limit $0.002" in shown(root.get("/admin/audit/"))


def test_it_is_filtered_by_person_kind_and_object(root: Client) -> None:
    row = act("alice")
    act("bob", organization="Initech")
    assert "Initech" not in shown(root.get("/admin/audit/?person=alice"))
    about_one = shown(root.get(f"/admin/audit/?type=accounts.organization&object={row.pk}"))
    assert "Initech" not in about_one
    assert "Globex 0" in about_one
    assert "No entry matches these filters" in shown(root.get("/admin/audit/?type=accounts.project"))
    assert "person: nobody-of-that-name ×" in shown(root.get("/admin/audit/?person=nobody-of-that-name"))


def test_older_entries_are_a_page_away(root: Client) -> None:
    act("alice", changes=60)
    first = root.get("/admin/audit/?person=alice").content.decode()
    (older,) = re.findall(r'href="([^"]+)" rel="next"', first)
    second = root.get(older.replace("&amp;", "&")).content.decode()
    assert first.count("<tr>") == 51
    assert second.count("<tr>") == 12
    assert 'rel="first"' in second


def test_a_model_with_a_slash_has_a_history(root: Client, db: None) -> None:
    with recorder.acting(lambda: Actor(None, "alice")):
        ServedModel.objects.create(id="org/model", owned_by="x")
    page = root.get("/admin/chatapi/servedmodel/org_2Fmodel/change/")
    (link,) = set(re.findall(r'href="([^"]+/history/)"', page.content.decode()))
    found = root.get(link, follow=True)
    assert found.redirect_chain == [("/admin/audit/?type=chatapi.servedmodel&object=org%2Fmodel", 302)]
    assert "created model, history org/model" in shown(found)


def test_a_ledger_entrys_history_is_its_requests(root: Client, alice: Person, charlie: Person) -> None:
    row = run(alice)
    link = f"/admin/usage/ledgerentry/{row.ledger_entries.get().pk}/history/"
    assert root.get(link).headers["location"] == f"/admin/audit/?type=usage.generation&object={row.pk}"
    client = Client()
    client.force_login(charlie.user)
    assert str(row.pk) not in client.get(link).headers["location"]
    assert root.get(f"/admin/usage/ledgerentry/{'9' * 40}/history/").status_code == 302


def test_an_empty_log_says_so(root: Client, settings: Any) -> None:
    assert "signed in" in shown(root.get("/admin/audit/"))
    assert "Show all" in shown(root.get("/admin/audit/?person=x"))


@pytest.mark.parametrize(
    "path", ["?before=x", "?before=-1", "?before=99999999999999999999", "?before=%D9%A3"]
)
def test_a_number_of_no_entry_is_an_error(root: Client, path: str) -> None:
    assert "is not the number of an entry" in shown(root.get("/admin/audit/" + path), 400)


@pytest.mark.parametrize(
    "path", ["?person=%00", "?type=no.such", "?type=nonsense", "?object=%00%00", "?object=" + "x" * 3000]
)
def test_filters_of_what_is_not_there_find_nothing(root: Client, path: str) -> None:
    assert root.get("/admin/audit/" + path).status_code == 200


def test_it_is_for_people_with_the_permission(db: None, alice: Person) -> None:
    clerk = User.objects.create_user("clerk", is_staff=True)
    client = Client()
    assert client.get("/admin/audit/").status_code == 302
    client.force_login(clerk)
    assert client.get("/admin/audit/").status_code == 403
    assert "/history/" not in client.get("/admin/").content.decode()
    clerk.user_permissions.add(Permission.objects.get(codename="view_auditentry"))
    client = Client()
    client.force_login(User.objects.get(pk=clerk.pk))
    assert client.get("/admin/audit/").status_code == 200
    assert client.post("/admin/audit/").status_code == 405


def test_people_of_an_organization_see_what_was_done_to_theirs(alice: Person, charlie: Person) -> None:
    with recorder.acting(lambda: Actor(None, "root", "192.0.2.1")):
        for person in (alice, charlie):
            person.project.name = f"of {person.user}"
            person.project.save()
    client = Client()
    client.force_login(charlie.user)
    page = shown(client.get("/admin/audit/"))
    assert "of charlie" in page
    assert "alice" not in page, "not even among the people to choose from"
    assert "192.0.2.1" not in page
    assert "of alice" not in shown(
        client.get(f"/admin/audit/?type=accounts.project&object={alice.project.pk}")
    )


def test_it_is_read_in_few_queries(
    root: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    act("alice", changes=49)
    root.get("/admin/audit/")
    with django_assert_max_num_queries(7):
        root.get("/admin/audit/")


def test_it_says_how_a_person_signed_in_and_quotes_reasons(root: Client) -> None:
    person = User.objects.create_user("alice")
    recorder.write(Actor(person.pk, "alice", None), "signed in", person, reason="password, totp")
    recorder.write(Actor(person.pk, "alice", None), "corrected", person, reason="ticket 91")
    text = shown(root.get("/admin/audit/?person=alice"))
    assert "by password, totp" in text
    assert "“ticket 91”" in text
