"""Groups of members: which projects they give, to whom, and when they no longer do."""

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import connection
from django.test.utils import CaptureQueriesContext

import chatapi.urls  # noqa: F401  it says which models the audit log watches
from accounts import access, groups, memberships
from accounts.audit import recorder
from accounts.audit.models import AuditEntry
from accounts.audit.recorder import Actor
from accounts.models import Group, GroupMember, GroupProject, Member, Organization, Project, Role
from tests.cast import Person
from usage.pages import live


@pytest.fixture
def shop(acme: Organization) -> Project:
    return Project.objects.create(organization=acme, name="shop")


@pytest.fixture
def eve(acme: Organization) -> Member:
    """Return a member who is limited to no project."""
    user = User.objects.create_user("eve")
    return Member.objects.create(organization=acme, user=user, role=Role.VIEWER, is_limited=True)


@pytest.fixture
def research(acme: Organization, eve: Member, alice: Person, shop: Project) -> Group:
    return groups.create(acme.pk, "Research", [eve], [alice.project, shop])


def seen(member: Member) -> set[str]:
    """Return the names of the projects that each door shows to the limited member."""
    member = Member.objects.get(pk=member.pk)
    names = {row.name for row in access.projects_of(member)}
    of_feed = access.limited_projects_of([member.user_id]).get(member.user_id, frozenset())
    assert {row.name for row in access.limits_of(member)} == names
    assert {row.name for row in Project.objects.filter(pk__in=[pk for _, pk in of_feed])} == names
    assert len(of_feed) == len(names)
    user = User.objects.get(pk=member.user_id)
    assert bool(access.memberships_of(user)) == access.organizations_in_console(user).exists() == bool(names)
    for row in Project.objects.filter(organization=member.organization_id):
        assert access.members_seeing(row, Member.objects.filter(pk=member.pk)).exists() == (row.name in names)
    return names


def test_a_limited_member_sees_their_own_projects_and_those_of_groups(
    acme: Organization, eve: Member, research: Group, alice: Person, bob: Person
) -> None:
    assert seen(eve) == {"default", "shop"}
    eve.projects.add(bob.project)
    groups.create(acme.pk, "Ops", [eve], [alice.project])
    assert seen(eve) == {"default", "shop", "research"}
    given = access.limits_of(eve)
    assert {row.name: [group.name for group in by] for row, by in given.items()} == {
        "research": [], "default": ["Ops", "Research"], "shop": ["Research"],
    }  # fmt: skip
    assert memberships.projects_seen(eve) == "research, default (by Ops, Research), shop (by Research)"
    eve.projects.add(alice.project)
    assert "default (also by Ops, Research)" in memberships.projects_seen(eve)
    assert memberships.sees(eve) == "the projects default, research and shop of Acme"


def test_what_is_taken_from_a_group_is_taken_from_its_members(
    eve: Member, research: Group, alice: Person, shop: Project
) -> None:
    groups.take(research, projects=[shop])
    assert seen(eve) == {"default"}
    groups.take(research, members=[eve])
    assert seen(eve) == set()
    groups.add(research, members=[eve])
    assert seen(eve) == {"default"}
    groups.remove(research)
    assert seen(eve) == set()


def test_a_group_gives_nothing_to_those_who_see_everything(
    acme: Organization, research: Group, alice: Person, bob: Person
) -> None:
    member = Member.objects.get(user=bob.user)
    groups.add(research, members=[member])
    assert access.limited_projects_of([bob.user.pk]) == {}
    assert access.roles_of(bob.user) == {acme.pk: Role.MEMBER}
    memberships.change_place(member, Role.MEMBER, [bob.project])
    assert seen(member) == {"default", "shop", "research"}


def test_an_archived_project_of_a_group_is_still_seen(eve: Member, research: Group, shop: Project) -> None:
    shop.is_active = False
    shop.save()
    assert seen(eve) == {"default", "shop"}


def test_a_group_reaches_no_other_organization(
    acme: Organization, eve: Member, research: Group, charlie: Person
) -> None:
    stranger = Member.objects.get(user=charlie.user)
    for put in ({"members": [stranger]}, {"projects": [charlie.project]}):
        with pytest.raises(ValidationError, match="are of the group's organization"):
            groups.add(research, **put)
    # Rows that no door makes.
    Member.objects.filter(pk=stranger.pk).update(is_limited=True, role=Role.MEMBER)
    GroupMember.objects.create(group=research, member=stranger)
    GroupProject.objects.create(group=research, project=charlie.project)
    assert seen(eve) == {"default", "shop"}
    assert seen(stranger) == set()
    assert not access.members_seeing(charlie.project, Member.objects.filter(pk=eve.pk)).exists()


def test_a_kept_membership_is_in_no_group(
    eve: Member, research: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memberships, "may_come_back", lambda member: True)
    assert not memberships.remove(eve)
    assert seen(eve) == set()
    assert not research.members.exists()


def test_a_project_that_a_group_gives_is_not_taken_from_one_member(
    eve: Member, research: Group, shop: Project
) -> None:
    memberships.add_project(eve, shop)
    with pytest.raises(ValidationError, match="by the group Research"):
        memberships.take_project(eve, shop)
    groups.take(research, projects=[shop])
    memberships.take_project(eve, shop)
    assert seen(eve) == {"default"}


def test_the_live_feed_has_what_the_groups_give_now(eve: Member, research: Group, shop: Project) -> None:
    people = [eve.user_id]
    for left in (2, 1):
        projects = access.limited_projects_of(people)[eve.user_id]
        assert len(live.Sight((), projects).of_organization(eve.organization_id).projects) == left
        groups.take(research, projects=[shop])
    with CaptureQueriesContext(connection) as asked:
        access.limited_projects_of(people)
    assert len(asked) == 1


def test_a_group_has_bounds(
    acme: Organization, eve: Member, research: Group, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Member.objects.get(user=bob.user)
    for name, act, text in (
        ("MAX_GROUPS", lambda: groups.create(acme.pk, "Ops"), "at most 1 groups"),
        (
            "MAX_MEMBERS",
            lambda: groups.add(research, [member]),
            "at most 1 members",
        ),
        ("MAX_PROJECTS", lambda: groups.add(research, projects=[bob.project]), "at most 1 projects"),
    ):
        monkeypatch.setattr(groups, name, 1)
        with pytest.raises(ValidationError, match=text):
            act()
    assert (research.members.count(), research.projects.count(), Group.objects.count()) == (1, 2, 1)


def test_a_name_is_of_one_group_of_an_organization(
    acme: Organization, research: Group, charlie: Person
) -> None:
    with pytest.raises(ValidationError, match="has this name already"):
        groups.create(acme.pk, "Research")
    groups.create(charlie.project.organization_id, "Research")
    for number in (10, 2):
        groups.create(acme.pk, f"team {number}")
    assert [row.name for row in acme.groups.all()] == ["Research", "team 2", "team 10"]
    with pytest.raises(ValidationError, match="has this name already"):
        groups.rename(acme.groups.get(name="team 2"), "team 10")


def test_an_older_form_of_a_group_is_refused(
    eve: Member, research: Group, shop: Project, alice: Person
) -> None:
    known = groups.state(research)
    groups.take(research, projects=[shop])
    with pytest.raises(ValidationError, match="changed or removed just now"):
        groups.change(research, "Research", [eve], [alice.project, shop], known)
    assert seen(eve) == {"default"}
    groups.change(research, "Labs", [], [alice.project], groups.state(research))
    assert (research.name, research.members.count(), seen(eve)) == ("Labs", 0, set())
    groups.remove(research)
    research.pk = Group(pk=999_999_999).pk
    with pytest.raises(ValidationError, match="changed or removed just now"):
        groups.add(research, members=[eve])


def test_each_change_is_in_the_audit_log_with_names(
    acme: Organization, eve: Member, alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorder.acting(lambda: Actor(alice.user.pk, "alice")):
        group = groups.create(acme.pk, "Research", [eve], [alice.project])
        groups.rename(group, "Labs")
        groups.set_groups(eve, [])
        groups.remove(group)
    entries = [(row.action, row.object_name, row.changes) for row in AuditEntry.objects.order_by("pk")]
    assert entries == [
        ("created", "Acme / Research", {"organization": [None, "Acme"], "name": [None, "Research"]}),
        ("changed", "Acme / Research", {"members": [[], ["eve (viewer) in Acme"]]}),
        ("changed", "Acme / Research", {"projects": [[], ["Acme / default"]]}),
        ("changed", "Acme / Labs", {"name": ["Research", "Labs"]}),
        ("changed", "Acme / Labs", {"members": [["eve (viewer) in Acme"], []]}),
        ("deleted", "Acme / Labs", {"organization": ["Acme", None], "name": ["Labs", None]}),
    ]
    assert {row.organization_id for row in AuditEntry.objects.all()} == {acme.pk}


def test_an_entry_about_very_many_names_has_those_that_changed(
    acme: Organization, eve: Member, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_MAX_NAMES", 1)
    group = groups.create(acme.pk, "Research", [eve])
    with recorder.acting(lambda: Actor(None, "alice")):
        groups.add(group, [Member.objects.get(user=bob.user)])
    (entry,) = AuditEntry.objects.all()
    assert entry.changes == {"members": [["and 1 more"], ["bob (member) in Acme", "and 1 more"]]}
