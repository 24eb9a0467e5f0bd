"""Groups of members in the console: their pages, and what these say and refuse."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts import groups
from accounts.audit.models import AuditEntry
from accounts.models import Group, Member, Organization, Project, Role
from chatapi.console import member_pages
from tests.admin_pages import client_of, text
from tests.cast import Person
from tests.chatapi import test_page_weight
from tests.chatapi.console_pages import as_role, url


@pytest.fixture
def owner(alice: Person, bob: Person) -> Client:
    """Return a client of Acme's owner, whose project is "default"; that of bob is "research"."""
    return as_role(alice, Role.OWNER)


@pytest.fixture
def eve(acme: Organization) -> Member:
    """Return a member who is limited to no project."""
    user = User.objects.create_user("eve")
    return Member.objects.create(organization=acme, user=user, role=Role.MEMBER, is_limited=True)


def form_of(client: Client, path: str) -> dict[str, Any]:
    """Return what the form at this path sends if nobody changes it."""
    return dict(client.get(path).context["form"].initial)


def test_a_group_is_made_changed_and_removed(owner: Client, alice: Person, bob: Person, eve: Member) -> None:
    empty = text(owner.get(url(alice, "members/groups")))
    assert "No groups yet. A group gives projects to several people at once" in empty
    sent = {"name": "Research", "people": [eve.pk], "projects": [bob.project.pk]}
    made = owner.post(url(alice, "members/groups/new"), sent, follow=True)
    assert "The group Research is made. This holds at once." in text(made)
    (row,) = made.context["groups"]
    assert row[1:] == ("eve", "research")
    page_of_bob = url(bob, f"keys/{bob.api_key.pk}")
    assert client_of(eve.user).get(page_of_bob).status_code == 200

    group = Group.objects.get()
    path = url(alice, f"members/groups/{group.pk}")
    changed = form_of(owner, path) | {"name": "Labs", "projects": [alice.project.pk]}
    assert "The group Labs is changed." in text(owner.post(path, changed, follow=True))
    assert [*group.projects.all()] == [alice.project]
    assert client_of(eve.user).get(page_of_bob).status_code == 404
    assert client_of(eve.user).get(url(alice, f"keys/{alice.api_key.pk}")).status_code == 200

    removed = owner.post(f"{path}/remove", follow=True)
    assert "The group Labs is removed. Its people stay members." in text(removed)
    assert client_of(eve.user).get(url(alice, f"keys/{alice.api_key.pk}")).status_code == 404
    assert Member.objects.filter(pk=eve.pk).exists()
    entries = AuditEntry.objects.filter(object_type="accounts.group").order_by("pk")
    assert [row.action for row in entries] == ["created", *["changed"] * 5, "deleted"]


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"name": ""}, "name", "This field is required."),
        ({"name": "a/b"}, "name", "Use 1 to 100 ASCII letters"),
        ({"name": "Ops"}, "__all__", "A group of the organization has this name already."),
        ({"people": [999_999]}, "people", "Select a valid choice."),
        ({"projects": [999_999]}, "projects", "Select a valid choice."),
    ],
)
def test_a_wrong_group_is_an_error_of_its_field(
    owner: Client, alice: Person, changes: dict[str, Any], field: str, message: str
) -> None:
    groups.create(alice.project.organization_id, "Ops")
    sent = {"name": "Research", "people": [], "projects": []} | changes
    answer = owner.post(url(alice, "members/groups/new"), sent)
    assert answer.status_code == 400
    assert message in answer.context["form"].errors[field][0]
    assert Group.objects.count() == 1


def test_people_and_projects_of_others_are_no_choice(owner: Client, alice: Person, charlie: Person) -> None:
    stranger = Member.objects.get(user=charlie.user)
    sent = {"name": "Research", "people": [stranger.pk], "projects": [charlie.project.pk]}
    answer = owner.post(url(alice, "members/groups/new"), sent)
    assert set(answer.context["form"].errors) == {"people", "projects"}
    assert not Group.objects.exists()


def test_an_older_form_gives_nothing_back(owner: Client, alice: Person, bob: Person, eve: Member) -> None:
    group = groups.create(alice.project.organization_id, "Research", [eve], [alice.project, bob.project])
    path = url(alice, f"members/groups/{group.pk}")
    older = form_of(owner, path)
    groups.take(group, projects=[bob.project])
    answer = owner.post(path, older)
    assert "This group was changed or removed just now. Look again." in text(answer, 400)
    assert [*group.projects.all()] == [alice.project]
    groups.remove(Group.objects.get())
    assert owner.post(path, older).status_code == 404


def test_a_form_names_those_who_get_nothing_more(
    owner: Client, alice: Person, bob: Person, eve: Member
) -> None:
    choices = dict(owner.get(url(alice, "members/groups/new")).context["form"].fields["people"].choices)
    assert choices[str(eve.pk)] == "eve (member)"
    assert choices[str(Member.objects.get(user=bob.user).pk)] == "bob (member, sees all projects)"


def test_an_archived_project_of_a_group_stays_a_choice(owner: Client, alice: Person, bob: Person) -> None:
    group = groups.create(alice.project.organization_id, "Research", projects=[bob.project])
    Project.objects.filter(pk=bob.project.pk).update(is_active=False)
    path = url(alice, f"members/groups/{group.pk}")
    assert "research (archived)" in text(owner.get(path))
    owner.post(path, form_of(owner, path) | {"name": "Labs"})
    assert [*Group.objects.get(name="Labs").projects.all()] == [bob.project]


def test_many_people_are_one_list(owner: Client, alice: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_pages, "_MAX_CHECKBOXES", 1)
    form = owner.get(url(alice, "members/groups/new")).context["form"]
    assert form["people"].widget_type == "selectmultiple"


def test_a_list_names_the_first_people_only(owner: Client, alice: Person, acme: Organization) -> None:
    people = [
        Member.objects.create(
            organization=acme, user=User.objects.create_user(f"p{number}"), role=Role.VIEWER
        )
        for number in range(5)
    ]
    groups.create(acme.pk, "Research", people)
    (row,) = owner.get(url(alice, "members/groups")).context["groups"]
    assert row[1:] == ("p0, p1, p2 and 2 more", "")


# ---- the role and the projects of one member


def test_a_members_row_says_which_projects_come_by_a_group(
    owner: Client, root: Client, bob: Person, eve: Member
) -> None:
    eve.projects.add(Project.objects.get(name="default"))
    groups.create(eve.organization_id, "Research", [eve], [bob.project])
    listed = owner.get(url(bob, "members"))
    row = next(line for line in listed.context["members"] if line[0] == eve)
    assert row[1] == "default, research (by Research)"
    assert "research (by Research)" in text(listed)
    assert "research (by Research)" in text(root.get("/admin/accounts/member/"))


def test_a_member_is_put_into_groups_with_their_projects(
    owner: Client, alice: Person, bob: Person, eve: Member
) -> None:
    first, second = (
        groups.create(eve.organization_id, name, projects=[project])
        for name, project in (("Research", bob.project), ("Ops", alice.project))
    )
    path = url(alice, f"members/{eve.pk}/place")
    sent = {"role": "member", "sees": "only", "opened_with": form_of(owner, path)["opened_with"]}
    shown = text(owner.post(path, sent | {"groups": [first.pk]}, follow=True))
    assert "eve now has the role member in the project research of Acme. This holds at once." in shown
    assert "keys that they made" not in shown
    before = form_of(owner, path)
    assert (before["groups"], before["projects"]) == ([str(first.pk)], [])
    shown = text(owner.post(path, before | {"groups": [second.pk]}, follow=True))
    assert "eve now has the role member in the project default of Acme." in shown
    assert "API keys that they made or know still work" in shown
    # An older form does not give the first one back.
    assert "was changed or removed just now" in text(owner.post(path, before), 400)
    assert [*eve.groups.all()] == [second]
    empty = groups.create(eve.organization_id, "Empty")
    for chosen in ([], [empty.pk]):
        answer = owner.post(path, form_of(owner, path) | {"groups": chosen})
        assert "Choose at least one project, or a group with one." in text(answer, 400)


def test_a_person_is_invited_to_what_a_group_gives(owner: Client, alice: Person, bob: Person) -> None:
    group = groups.create(alice.project.organization_id, "Research", projects=[bob.project])
    sent = {"email": "dora@example.com", "role": "viewer", "sees": "only", "groups": [group.pk]}
    shown = text(owner.post(url(alice, "members/invite"), sent, follow=True))
    assert "dora@example.com is invited to the project research of Acme as viewer." in shown
    member = Member.objects.get(user__username="dora@example.com")
    assert (member.is_limited, member.projects.count(), [*member.groups.all()]) == (True, 0, [group])


def test_a_group_of_another_organization_is_no_choice(
    owner: Client, alice: Person, charlie: Person, eve: Member
) -> None:
    other = groups.create(charlie.project.organization_id, "Theirs", projects=[charlie.project])
    path = url(alice, f"members/{eve.pk}/place")
    sent = form_of(owner, path) | {"groups": [other.pk]}
    assert owner.post(path, sent).context["form"].errors["groups"]
    assert "Theirs" not in text(owner.get(path))


@pytest.mark.parametrize("role", [Role.VIEWER, Role.MEMBER])
def test_people_without_the_right_read_groups_only(alice: Person, eve: Member, role: Role) -> None:
    groups.create(eve.organization_id, "Research", [eve], [alice.project])
    client = as_role(alice, role)
    assert "Remove" not in text(client.get(url(alice, "members/groups")))
    assert client.post(url(alice, "members/groups/new"), {"name": "Ops"}).status_code == 403
    assert client_of(eve.user).get(url(alice, "members/groups")).status_code == 403


def test_the_admins_page_of_an_organization_shows_its_groups(
    root: Client, acme: Organization, alice: Person, eve: Member
) -> None:
    path = f"/admin/accounts/organization/{acme.pk}/change/"
    assert "Research" not in text(root.get(path))
    groups.create(acme.pk, "Research", [eve], [alice.project])
    for client in (root, as_role(alice, Role.VIEWER)):
        assert connection.features.supports_json_field  # Django asks SQLite for it once per connection
        with CaptureQueriesContext(connection) as asked:
            assert "Research 1 1" in text(client.get(path))
        assert len(asked) <= test_page_weight.MAX_QUERIES
