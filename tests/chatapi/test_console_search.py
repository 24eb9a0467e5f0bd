"""One search for everything of an organization, from the field in the frame of each page."""

from datetime import date
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts import end_users, keys
from accounts.models import EndUser, Member, Project, Role
from chatapi.console import search_page
from chatapi.models import ServedModel
from tests.admin_pages import client_of, text
from tests.cast import Person, join, run
from tests.chatapi.console_pages import as_role, url
from tests.chatapi.test_limited_members import limited
from usage.models import Statement

pytestmark = pytest.mark.usefixtures("small")


def found(client: Client, person: Person, sought: str, **more: Any) -> dict[str, list[str]]:
    """Return the results of each kind."""
    response = client.get(url(person, "search"), {"q": sought, **more})
    assert response.status_code == 200, response
    return {group.title: [hit.text for hit in group.rows] for group in response.context["groups"]}


def test_the_field_is_on_each_page_and_needs_no_script(alice: Person) -> None:
    page = client_of(alice.user).get(url(alice, "overview")).content.decode()
    form = page.partition(f'<form method="get" action="{url(alice, "search")}"')[2].partition("</form>")[0]
    assert '<input type="search" name="q"' in form
    assert '<button type="submit"' in form


@pytest.mark.parametrize("form", ["{}", "gen_{}", " chatcmpl-{} ", "log line: gen_{}, 200 OK"])
def test_a_requests_id_leads_to_its_receipt(alice: Person, form: str) -> None:
    row = run(alice)
    response: Any = client_of(alice.user).get(url(alice, "search"), {"q": form.format(row.pk.hex)})
    assert response.url == url(alice, f"requests/{row}")


def test_an_id_of_another_organization_finds_nothing(alice: Person, charlie: Person) -> None:
    row = run(charlie)
    response = client_of(alice.user).get(url(alice, "search"), {"q": str(row)})
    assert "Nothing is named" in text(response)


def test_the_month_of_a_statement_and_of_its_credit_notes_leads_to_it(alice: Person) -> None:
    client, organization = client_of(alice.user), alice.project.organization
    Statement.objects.create(
        organization=organization, month=date(2026, 3, 1), charged_nanodollars=0,
        closing_balance_nanodollars=0, content="{}", digest="", issued_at=timezone.now(),
    )  # fmt: skip
    for sought in ("2026-03", "2026-03-CN2", f"{timezone.now():%Y-%m}"):
        response: Any = client.get(url(alice, "search"), {"q": sought})
        assert response.url == url(alice, f"statements/{sought[:7]}")
    assert "Nothing is named" in text(client.get(url(alice, "search"), {"q": "2026-02"}))


def test_keys_are_found_by_name_and_by_what_pages_show_of_them(alice: Person, charlie: Person) -> None:
    row, _ = keys.create_key(alice.project, name="Batch jobs")
    keys.create_key(charlie.project, name="batch of another")
    client = client_of(alice.user)
    for sought in ("batch", "JOBS", row.redacted, row.public[:6]):
        assert found(client, alice, sought)["API keys"] == ["Batch jobs"], sought
    assert "API keys" not in found(client, alice, "of another")


def test_projects_models_members_and_pages_are_found_by_a_part_of_their_name(
    alice: Person, bob: Person
) -> None:
    Project.objects.create(organization=alice.project.organization, name="Smaller shop", is_active=False)
    hits = found(client_of(alice.user), alice, "SMALL")
    assert hits == {"Projects": ["Smaller shop (archived)"], "Models": ["small"]}
    assert found(client_of(alice.user), alice, "bob")["Members"] == ["bob"]
    assert found(client_of(alice.user), alice, "budget")["Pages"] == ["Budgets and limits"]


@pytest.mark.parametrize("projects", [1, 2])
def test_an_end_user_is_found_by_name_or_where_one_project_counts_by_its_beginning(
    alice: Person, charlie: Person, projects: int
) -> None:
    organization, client = alice.project.organization, client_of(alice.user)
    Project.objects.filter(pk=alice.project.pk).update(counts_end_users=True)
    if projects == 2:
        Project.objects.create(organization=organization, name="other", counts_end_users=True)
    for name in ("customer-1", "customer-17", "an other", end_users.digest("hidden")):
        EndUser.objects.create(project=alice.project, name=name)
    EndUser.objects.create(project=charlie.project, name="customer-18")
    assert found(client, alice, "customer-17")["End users"] == ["customer-17"]
    assert found(client, alice, "hidden")["End users"] == [end_users.digest("hidden")]
    beginning = ["customer-1", "customer-17"] if projects == 1 else ["customer-1"]
    assert found(client, alice, "customer-1")["End users"] == beginning
    chosen = found(client, alice, "customer", project=alice.project.pk)["End users"]
    assert chosen == ["customer-1", "customer-17"]


def test_there_are_at_most_ten_of_a_kind_and_a_link_to_all(alice: Person) -> None:
    for number in range(12):
        keys.create_key(alice.project, name=f"worker {number}")
    response: Any = client_of(alice.user).get(url(alice, "search"), {"q": "worker"})
    (group,) = response.context["groups"]
    assert len(group.rows) == 10
    listed = client_of(alice.user).get(group.more_url).context["keys"]
    assert len(listed) == 12


def test_the_link_to_all_keys_has_what_was_found_outside_the_chosen_project(alice: Person) -> None:
    other = Project.objects.create(organization=alice.project.organization, name="other")
    for number in range(12):
        keys.create_key(alice.project, name=f"worker {number}")
    client, query = client_of(alice.user), {"q": "worker", "project": str(other.pk)}
    response: Any = client.get(url(alice, "search"), query)
    (group,) = response.context["groups"]
    assert len(group.rows) == 10
    assert len(client.get(group.more_url).context["keys"]) == 12


def test_a_limited_member_finds_the_keys_of_the_project_that_the_list_shows(alice: Person) -> None:
    other = Project.objects.create(organization=alice.project.organization, name="other")
    keys.create_key(alice.project, name="worker of one")
    keys.create_key(other, name="worker of the other")
    eve = limited(alice, Role.VIEWER, alice.project, other)
    assert found(eve, alice, "worker", project=other.pk)["API keys"] == ["worker of the other"]
    assert found(eve, alice, "worker", project=alice.project.pk)["API keys"] == ["worker of one"]


@pytest.mark.parametrize("form", ["{}", "Bearer {}", "{}x"])
@pytest.mark.parametrize("path", ["search", "keys", "requests"])
def test_the_page_of_a_whole_key_has_not_its_secret(alice: Person, path: str, form: str) -> None:
    row, secret = keys.create_key(alice.project, name="Batch jobs")
    client, names = client_of(alice.user), {"requests": "end_user"}
    query = {names.get(path, "q"): form.format(secret), "project": str(alice.project.pk)}
    sent: Any = client.get(url(alice, path), query)
    assert "_".join(secret.split("_")[:3]) in sent.url
    response = client.get(sent.url)
    assert response.status_code == 200
    for text_ in (sent.url, response.content.decode()):
        assert secret[-20:] not in text_
    found = {"keys": [key.name for key, *_ in response.context.get("keys", ())]}
    found["search"] = [hit.text for group in response.context.get("groups", ()) for hit in group.rows]
    if path in found:
        assert found[path] == ([] if "Bearer" in form else [row.name])


def test_of_very_many_keys_the_newest_are_searched(alice: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_page, "MOST_KEYS", 2)
    for number in range(3):
        keys.create_key(alice.project, name=f"worker {number}")
    assert found(client_of(alice.user), alice, "worker")["API keys"] == ["worker 2", "worker 1"]


@pytest.mark.parametrize("sought", ["", " ", "zzz", "a\x00b", "%", "_", "x" * 201, "<b>", "\ud7ff"])
def test_odd_texts_find_nothing_and_break_nothing(alice: Person, sought: str) -> None:
    response = client_of(alice.user).get(url(alice, "search"), {"q": sought})
    assert response.status_code == (400 if "\x00" in sought or len(sought) > 200 else 200)
    assert "<b>" not in response.content.decode()
    assert not response.context.get("groups")


def test_people_find_only_what_their_role_may_read(alice: Person) -> None:
    row = run(alice)
    viewer = as_role(alice, Role.VIEWER)
    assert found(viewer, alice, "audit") == found(viewer, alice, "webhooks") == {}
    assert viewer.get(url(alice, "search"), {"q": str(row)}).status_code == 302
    assert found(as_role(alice, Role.OWNER), alice, "audit") == {"Pages": ["Audit log"]}


def test_limited_members_find_only_what_is_in_their_projects(alice: Person, small: ServedModel) -> None:
    other = join("mallory", Role.MEMBER, alice.project.organization, "alpha")
    own, theirs = run(alice), run(other)
    Project.objects.update(counts_end_users=True)
    EndUser.objects.create(project=other.project, name="person")
    eve = limited(alice)
    for sought in ("alpha", "mallory", "person", f"{timezone.now():%Y-%m}", str(theirs), "members"):
        assert found(eve, alice, sought) == {}, sought
    response: Any = eve.get(url(alice, "search"), {"q": str(own)})
    assert response.url == url(alice, f"requests/{own}?project={alice.project.pk}")
    assert found(eve, alice, "alice")["API keys"] == ["alice"]
    assert Member.objects.filter(user=alice.user).exists()


def test_a_search_asks_the_same_however_many_there_are(alice: Person) -> None:
    client = client_of(alice.user)

    def queries() -> int:
        with CaptureQueriesContext(connection) as asked:
            found(client, alice, "worker")
        return len(asked)

    Project.objects.filter(pk=alice.project.pk).update(counts_end_users=True)
    for number in range(3):
        keys.create_key(alice.project, name=f"worker {number}")
    few = queries()
    for number in range(40):
        EndUser.objects.create(project=alice.project, name=f"worker {number}")
        keys.create_key(alice.project, name=f"worker {number}")
        Project.objects.create(organization=alice.project.organization, name=f"worker {number}")
    assert queries() == few <= 12
