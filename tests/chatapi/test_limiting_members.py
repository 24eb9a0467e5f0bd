"""Limiting members to single projects: the console's forms, what they refuse, and what the audit log says."""

from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage
from django.test import Client
from pytest_django import Settings

from accounts import memberships
from accounts.audit.models import AuditEntry
from accounts.models import Member, Organization, Project, Role
from chatapi.console import member_pages
from tests.admin_pages import client_of, page, text
from tests.cast import Person
from tests.chatapi.console_pages import as_role, url
from tests.chatapi.signing_in import choose, link_in

ROOT = Path(__file__).resolve().parents[2]
INVITATION = {"email": "dora@example.com", "role": "viewer", "sees": "only"}


@pytest.fixture
def owner(alice: Person, bob: Person) -> Client:
    """Return a client of Acme's owner, whose project is "default"; that of bob is "research"."""
    Project.objects.create(organization=alice.project.organization, name="website")
    return as_role(alice, Role.OWNER)


def place(name: str) -> tuple[str, bool, list[str]]:
    """Return the role, whether it is limited, and the names of the projects."""
    member = Member.objects.get(user__username=name)
    return member.role, member.is_limited, [row.name for row in member.projects.all()]


def test_a_person_is_invited_to_single_projects(owner: Client, alice: Person, bob: Person) -> None:
    sent = INVITATION | {"projects": [bob.project.pk]}
    shown = text(owner.post(url(alice, "members/invite"), sent, follow=True))
    assert "dora@example.com is invited to the project research of Acme as viewer." in shown
    assert place("dora@example.com") == ("viewer", True, ["research"])
    changes = [
        entry.changes
        for entry in AuditEntry.objects.filter(object_type="accounts.member").order_by("id")
        if entry.organization_id == alice.project.organization_id
    ]
    assert (changes[0]["is_limited"], changes[1]) == ([None, True], {"projects": [[], ["Acme / research"]]})
    row = next(line for line in owner.get(url(alice, "members")).context["members"] if line[0].is_limited)
    assert row[1] == "research"


@pytest.mark.usefixtures("mailing", "counting")
def test_the_mail_and_the_page_of_an_invitation_name_the_projects(
    owner: Client, alice: Person, bob: Person, mailoutbox: list[EmailMessage], settings: Settings
) -> None:
    settings.PUBLIC_URL = "http://testserver"
    sent = INVITATION | {"projects": [bob.project.pk, alice.project.pk]}
    owner.post(url(alice, "members/invite"), sent)
    (mail,) = mailoutbox
    named = "the projects default and research of Acme as viewer"
    assert f"alice invites you to {named}." in str(mail.body)
    visitor = Client()
    assert f"alice invited you to {named}." in text(visitor.get(link_in(mail), follow=True))
    choose(visitor, link_in(mail))
    assert visitor.get("/console/", follow=True).status_code == 200
    assert visitor.get(url(alice, "members")).status_code == 403


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"role": "admin"}, "role", "Only a viewer or a member can be limited to projects."),
        ({"role": "owner"}, "role", "Only a viewer or a member can be limited to projects."),
        ({"projects": []}, "projects", "Choose at least one project."),
        ({"projects": [999_999]}, "projects", "Select a valid choice."),
        ({"sees": "some"}, "sees", "Select a valid choice."),
        ({"sees": ""}, "sees", "This field is required."),
        ({"sees": "all"}, "sees", "Projects are chosen, too"),
    ],
)
def test_a_limit_that_can_not_be_is_an_error_of_its_field(
    owner: Client, alice: Person, bob: Person, changes: dict[str, Any], field: str, message: str
) -> None:
    sent = INVITATION | {"projects": [bob.project.pk]} | changes
    form = owner.post(url(alice, "members/invite"), sent).context["form"]
    assert message in form.errors[field][0]
    assert not User.objects.filter(username="dora@example.com").exists()
    member = Member.objects.get(user=bob.user)
    answer = owner.post(url(alice, f"members/{member.pk}/place"), sent | {"opened_with": "member all"})
    assert answer.status_code == 400
    assert message in answer.context["form"].errors[field][0]


def test_a_project_of_another_organization_is_no_choice(
    owner: Client, alice: Person, charlie: Person
) -> None:
    sent = INVITATION | {"projects": [charlie.project.pk]}
    assert owner.post(url(alice, "members/invite"), sent).context["form"].errors["projects"]
    member = Member(organization=alice.project.organization, user=User(username="x"), role=Role.VIEWER)
    with pytest.raises(ValidationError):
        memberships.join(member, [charlie.project])


def test_a_limit_is_set_changed_and_taken_away(owner: Client, alice: Person, bob: Person) -> None:
    member = Member.objects.get(user=bob.user)
    path = url(alice, f"members/{member.pk}/place")
    initial = owner.get(path).context["form"].initial
    assert initial == {
        "role": "member",
        "sees": "all",
        "projects": [],
        "groups": [],
        "opened_with": "member all",
    }
    own = {"role": "member", "sees": "only", "projects": [bob.project.pk], "opened_with": "member all"}
    shown = text(owner.post(path, own, follow=True))
    assert "bob now has the role member in the project research of Acme. This holds at once." in shown
    assert place("bob") == ("member", True, ["research"])
    assert owner.get(path).context["form"].initial["projects"] == [str(bob.project.pk)]
    # Raising the role is an error until the limit is taken away.
    raised = owner.post(url(alice, f"members/{member.pk}/role"), {"role": "admin"}, follow=True)
    assert "This person sees single projects only" in text(raised)
    assert place("bob")[0] == "member"
    assert "viewer" in text(
        owner.post(url(alice, f"members/{member.pk}/role"), {"role": "viewer"}, follow=True)
    )
    assert place("bob") == ("viewer", True, ["research"])
    known = f"viewer {bob.project.pk}"
    owner.post(path, {"role": "admin", "sees": "all", "projects": [bob.project.pk], "opened_with": known})
    assert place("bob") == ("admin", False, [])


def test_a_member_without_a_project_gets_one_by_the_form(owner: Client, alice: Person, bob: Person) -> None:
    member = Member.objects.get(user=bob.user)
    memberships.change_place(member, Role.MEMBER, [])
    path = url(alice, f"members/{member.pk}/place")
    form = owner.get(path).context["form"].initial
    owner.post(path, form | {"projects": [bob.project.pk]})
    assert place("bob") == ("member", True, ["research"])


def test_a_form_of_before_takes_no_limit_away(owner: Client, alice: Person, bob: Person) -> None:
    member = Member.objects.get(user=bob.user)
    path = url(alice, f"members/{member.pk}/place")
    opened = owner.get(path).context["form"].initial
    memberships.change_place(member, Role.VIEWER, [bob.project])
    answer = owner.post(path, opened)
    assert "This member was changed or removed just now. Look again." in text(answer, 400)
    assert place("bob") == ("viewer", True, ["research"])


def test_a_form_without_its_choice_takes_no_limit_away(owner: Client, alice: Person, bob: Person) -> None:
    member = Member.objects.get(user=bob.user)
    memberships.change_place(member, Role.MEMBER, [bob.project])
    answer = owner.post(url(alice, f"members/{member.pk}/place"), {"role": "viewer"})
    assert answer.status_code == 400
    assert place("bob") == ("member", True, ["research"])
    owner.post(url(alice, "members/invite"), {"email": "dora@example.com", "role": "viewer"})
    assert not User.objects.filter(username="dora@example.com").exists()


def test_an_older_form_gives_no_taken_project_back(owner: Client, alice: Person, bob: Person) -> None:
    member = Member.objects.get(user=bob.user)
    path = url(alice, f"members/{member.pk}/place")
    memberships.change_place(member, Role.MEMBER, [bob.project, alice.project])
    older = owner.get(path)
    sent = older.context["form"].initial | {"role": "viewer"}
    assert f'name="opened_with" value="{sent["opened_with"]}"' in older.content.decode()
    memberships.take_project(member, alice.project)
    answer = owner.post(path, sent)
    assert "This member was changed or removed just now." in text(answer, 400)
    for each in (sent | {"opened_with": ""}, sent | {"opened_with": "member all"}):
        assert owner.post(path, each).status_code == 400
    assert place("bob") == ("member", True, ["research"])
    sent = owner.get(path).context["form"].initial | {"role": "viewer"}
    assert owner.post(path, sent).status_code == 302
    assert place("bob") == ("viewer", True, ["research"])


def test_a_narrower_limit_says_that_keys_still_work(owner: Client, alice: Person, bob: Person) -> None:
    path = url(alice, f"members/{Member.objects.get(user=bob.user).pk}/place")
    own, other = bob.project.pk, alice.project.pk

    def says_so(sees: str, *projects: int) -> bool:
        known = owner.get(path).context["form"].initial["opened_with"]
        sent = {"role": "member", "sees": sees, "projects": projects, "opened_with": known}
        shown = text(owner.post(path, sent, follow=True))
        assert "This holds at once." in shown
        return "API keys that they made or know still work" in shown

    notes = [says_so("only", own, other), says_so("only", own), says_so("only", own, other), says_so("all")]
    assert notes == [True, True, False, False]
    assert says_so("only", own)
    assert says_so("only", other)


def test_a_limited_membership_is_not_saved_without_its_projects(acme: Organization) -> None:
    member = Member(organization=acme, user=User(username="x"), role=Role.VIEWER, is_limited=True)
    with pytest.raises(ValueError, match="needs its projects"):
        memberships.join(member)
    memberships.join(member, [])
    assert place("x") == ("viewer", True, [])


def test_nobody_limited_manages_members(owner: Client, alice: Person, bob: Person) -> None:
    member = Member.objects.get(user=bob.user)
    memberships.change_place(member, Role.MEMBER, [bob.project])
    client = client_of(bob.user)
    for path in ("members", "members/invite", f"members/{member.pk}/place"):
        assert client.get(url(alice, path)).status_code == 403


def test_an_archived_project_of_theirs_stays_a_choice(owner: Client, alice: Person, bob: Person) -> None:
    member = Member.objects.get(user=bob.user)
    memberships.change_place(member, Role.MEMBER, [bob.project])
    Project.objects.filter(pk=bob.project.pk).update(is_active=False)
    form = owner.get(url(alice, f"members/{member.pk}/place")).context["form"]
    assert (str(bob.project.pk), "research (archived)") in form.fields["projects"].choices
    form = owner.get(url(alice, "members/invite")).context["form"]
    assert str(bob.project.pk) not in dict(form.fields["projects"].choices)


def test_many_projects_are_one_list(owner: Client, alice: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "<select" not in owner.get(url(alice, "members/invite")).content.decode()
    monkeypatch.setattr(member_pages, "_MAX_CHECKBOXES", 2)
    assert '<select name="projects"' in owner.get(url(alice, "members/invite")).content.decode()


def test_a_limit_has_a_bound(
    owner: Client, alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memberships, "MAX_PROJECTS_OF_LIMIT", 1)
    sent = INVITATION | {"projects": [bob.project.pk, alice.project.pk]}
    form = owner.post(url(alice, "members/invite"), sent).context["form"]
    assert form.errors["projects"] == ["Choose at most 1 projects."]


def test_a_list_names_the_first_projects_only(acme: Organization, bob: Person) -> None:
    member = Member.objects.get(user=bob.user)
    assert (memberships.projects_seen(member), memberships.sees(member)) == ("all", "Acme")
    projects = [Project.objects.create(organization=acme, name=f"shop {number}") for number in range(5)]
    memberships.change_place(member, Role.VIEWER, projects)
    assert memberships.projects_seen(member) == "shop 0, shop 1, shop 2 and 2 more"
    assert memberships.sees(member) == "5 projects of Acme"
    member.projects.clear()
    assert (memberships.projects_seen(member), memberships.sees(member)) == ("none", "no projects of Acme")


def test_a_member_who_was_limited_since_they_were_read_is_not_changed(bob: Person) -> None:
    read = Member.objects.get(user=bob.user)
    memberships.change_place(Member.objects.get(user=bob.user), Role.MEMBER, [bob.project])
    with pytest.raises(ValidationError):
        memberships.change_role(read, Role.ADMIN)
    assert place("bob") == ("member", True, ["research"])


# ---- the admin


def test_the_admin_shows_a_limit_and_raises_no_role(owner: Client, alice: Person, bob: Person) -> None:
    member = Member.objects.get(user=bob.user)
    memberships.change_place(member, Role.MEMBER, [bob.project])
    assert "research" in text(owner.get("/admin/accounts/member/"))
    answer = owner.post(page(member), {"role": "admin"})
    assert "This person sees single projects only" in text(answer)
    assert place("bob")[0] == "member"


# ---- what is of the whole organization

ALL_MEMBERS = {
    "chatapi/api/management/members.py": "lists limited members, too",
    "chatapi/api/management/audit_log.py": "finds what was done to limited members, too",
    "chatapi/console/group_pages.py": "offers limited members, too",
    "chatapi/console/member_pages.py": "lists limited members, too",
    "chatapi/console/password_pages.py": "shows a person the place that they have accepted",
    "chatapi/console/search_page.py": "finds limited members, too, for people who see the whole organization",
    "chatapi/console/start.py": "asks whether somebody was invited",
    "chatapi/pages/key_panels.py": "names the member who made a key",
    "chatapi/pages/organization_page.py": "counts limited members, too",
}
"""Why a module outside accounts/ reads all members, instead of `memberships.of_whole`."""


def test_code_of_a_whole_organization_finds_its_whole_members_only() -> None:
    paths = [*ROOT.glob("chatapi/**/*.py"), *ROOT.glob("usage/**/*.py")]
    reading = {str(each.relative_to(ROOT)) for each in paths if "Member.objects" in each.read_text()}
    assert not reading - set(ALL_MEMBERS)


def test_whole_members_are_those_without_a_limit(acme: Organization, alice: Person, bob: Person) -> None:
    assert {row.user for row in memberships.of_whole(acme.pk)} == {alice.user, bob.user}
    memberships.change_place(Member.objects.get(user=bob.user), Role.MEMBER, [bob.project])
    assert {row.user for row in memberships.of_whole(acme.pk)} == {alice.user}
