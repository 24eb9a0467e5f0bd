"""Roles that organizations make: their members get what these permit, on every page, and nothing else."""

import re
from collections.abc import Collection
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import resolve, reverse
from django.utils import timezone

from accounts import access, groups, memberships, own_roles, roles
from accounts.audit.models import AuditEntry
from accounts.models import Member, Organization, OwnRole, Role
from chatapi.models import ServedModel
from chatapi.notifications import dispatch
from tests.admin_pages import client_of, text
from tests.cast import Person
from tests.chatapi.console_pages import as_role, url
from tests.chatapi.test_console_access import TABLE, House, house, outcome
from usage.books import credit
from usage.books.credit import Note
from usage.models import Event

__all__ = ["house"]
FINANCE, AUDITOR = ["usage", "statements", "credit"], ["audit"]
ROLES: dict[str, Collection[str]] = {
    "nothing": [],
    "finance": FINANCE,
    "auditor": AUDITOR,
    "alerting": ["usage", "stop", "budgets", "set_budgets", "events"],
    "keys": ["usage", "budgets", "keys", "set_keys", "projects"],
    "webhooks": ["events", "webhooks", "set_webhooks", "settings", "members"],
    "everything": own_roles.CHOICES,
}
# Forms on a page that is also read with less.
SENT = {
    "budget": "usage.change_budgetlimit",
    "credit": "payment.add_payment",
    "settings": "accounts.change_organization",
    "webhook": "chatapi.change_webhookendpoint",
}
# Files, and the URL that a script fills.
_NO_PAGE = re.compile(r"\.\w+$|/ID$")
READ = "accounts.view_member"
WRONG = {"low_credit": "-1"}


def with_role(organization: Organization, choices: Collection[str], name: str = "eve") -> Client:
    """Return a client of a new member with a new role of these choices."""
    row = own_roles.create(organization.pk, f"Role of {name}", "", own_roles.with_choices(choices))
    user = User.objects.create_user(name, email=f"{name}@example.com", last_login=timezone.now())
    member = Member(organization=organization, user=user)
    memberships.set_role(member, row)
    memberships.join(member)
    return client_of(user)


def role_of(client: Client) -> OwnRole:
    return OwnRole.objects.get(members__user=client.session["_auth_user_id"])


def test_every_permission_of_the_four_is_a_choice_or_is_never_one() -> None:
    known = own_roles.ALLOWED | own_roles.NEVER
    assert known == roles.PERMISSIONS[Role.OWNER]
    assert not own_roles.ALLOWED & own_roles.NEVER
    assert sorted(name for names in own_roles.GROUPS.values() for name in names) == sorted(own_roles.CHOICES)


@pytest.mark.parametrize("name", own_roles.CHOICES)
def test_a_role_has_its_permissions_and_no_other(acme: Organization, name: str) -> None:
    permitted = own_roles.CHOICES[name].permissions
    permitted |= {*own_roles.missing(permitted)}
    client = with_role(acme, own_roles.chosen(permitted))
    assert role_of(client).permissions == sorted(permitted)
    person = User.objects.get(username="eve")
    for permission in roles.PERMISSIONS[Role.OWNER]:
        assert access.may_in(person, permission, acme.pk) == (permission in permitted), permission
        assert not person.has_perm(permission)
        assert not access.where_may(person, permission, Organization.objects.all())
    assert not access.may_make_admin_keys(person, acme.pk)
    assert not access.seen_by(person, Organization.objects.all())


@pytest.mark.parametrize("name", ["auditor", "alerting", "keys", "webhooks"])
def test_a_role_opens_the_pages_of_its_permissions_only(house: House, name: str) -> None:
    permitted, client = own_roles.with_choices(ROLES[name]), with_role(house.acme, ROLES[name])
    sent, wrong = {"role": "viewer", "project": house.alice.project.pk}, []
    for page, leasts in TABLE.items():
        path = house.path(page)
        needed: Any = getattr(resolve(path).func, "permission")  # noqa: B009  of the decorator
        for method, least in zip(("get", "post"), leasts, strict=True):
            asked = SENT.get(page, needed) if method == "post" else needed
            may = asked in permitted and (page not in ("new_alert", "remove_alert") or READ in permitted)
            with transaction.atomic():
                found = outcome(getattr(client, method)(path, sent if method == "post" else {}))
                transaction.set_rollback(True)
            if least is not None and found != ("allowed" if may else "refused"):
                wrong.append(f"{method} {page}: {found}")
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize("name", ROLES)
def test_no_link_of_its_pages_leads_to_a_closed_one(house: House, name: str) -> None:
    client = with_role(house.acme, ROLES[name])
    start = reverse("console:home_of", args=[house.acme.pk])
    # By the path of each page, the one that has a link to it.
    waiting, known = [start, f"{start}search?q=default"], dict[str, str]()
    while waiting:
        path = waiting.pop()
        answer = client.get(path, follow=True)
        assert answer.status_code == 200, f"{known.get(path)} has a link to {path}"
        for found in re.findall(rf'<a [^>]*href="({start}[^"#?]*)', answer.content.decode()):
            if found not in known and not _NO_PAGE.search(found):
                known[found] = path
                waiting.append(found)
    assert len(known) > 3


def test_finance_and_auditors_see_nothing_else_in_the_menu(house: House) -> None:
    always = {"Start", "Models", "Settings"}
    for choices, titles in (
        (FINANCE, {"Overview", "Usage", "Requests", "Live", "Statements", "Credit"}),
        (AUDITOR, {"Audit log"}),
    ):
        client = with_role(house.acme, choices, choices[0])
        menu = client.get(reverse("console:settings", args=[house.acme.pk])).context["nav"]
        assert {link.text for link in menu} == always | titles


@pytest.mark.parametrize(
    ("name", "steps"), [("finance", ["project"]), ("keys", ["project", "key", "request", "budget"])]
)
def test_start_has_the_steps_whose_objects_the_role_reads(
    acme: Organization, small: ServedModel, name: str, steps: list[str]
) -> None:
    page = with_role(acme, ROLES[name]).get(reverse("console:start", args=[acme.pk])).content.decode()
    assert re.findall(r'id="step-(\w+)"', page) == steps
    assert ("curl" in page) == ("request" in steps)


def test_a_changed_role_holds_from_the_next_request_on(acme: Organization, alice: Person) -> None:
    client, path = with_role(acme, FINANCE), url(alice, "statements")
    assert client.get(path).status_code == 200
    row = role_of(client)
    own_roles.change(row, row.name, "", own_roles.with_choices(AUDITOR))
    assert client.get(path).status_code == 403
    assert client.get(url(alice, "audit")).status_code == 200
    memberships.change_role(Member.objects.get(own_role=row), Role.VIEWER)
    assert client.get(path).status_code == 200
    assert client.get(url(alice, "audit")).status_code == 403


def test_the_admin_is_closed_and_other_organizations_are_unknown(house: House) -> None:
    client = with_role(house.acme, own_roles.CHOICES)
    assert client.get("/admin/").status_code == 302
    for path in (reverse("admin:audit"), reverse("admin:live"), reverse("admin:accounts_apikey_changelist")):
        assert client.get(path).status_code in (302, 403)
    theirs = house.charlie.project.organization_id
    assert client.get(f"/console/{theirs}/overview").status_code == 404
    # As a viewer there, the person sees nothing of the role's organization in the admin.
    person = User.objects.get(username="eve")
    Member.objects.create(organization_id=theirs, user=person, role=Role.VIEWER)
    other = client_of(person)
    assert "alice" not in text(other.get(reverse("admin:accounts_apikey_changelist")))
    assert not person.has_perm("audit.view_auditentry")
    assert other.get(f"/console/{theirs}/audit").status_code == 403
    assert other.get(f"/console/{house.acme.pk}/audit").status_code == 200


def test_a_group_gives_nothing_to_an_own_role(house: House) -> None:
    client = with_role(house.acme, AUDITOR)
    member = Member.objects.get(own_role=role_of(client))
    groups.add(house.group, [member])
    assert client.get(house.path("key")).status_code == 403
    assert not access.limited_projects_of([member.user_id])


def test_an_older_process_shows_a_member_with_an_own_role_nothing(acme: Organization) -> None:
    """It reads the columns that it knows: a viewer who is limited to no project."""
    client = with_role(acme, own_roles.CHOICES)
    row = Member.objects.get(own_role=role_of(client))
    assert (row.role, row.is_limited, [*row.projects.all()]) == (Role.VIEWER, True, [])
    with pytest.raises(IntegrityError), transaction.atomic():
        Member.objects.filter(pk=row.pk).update(is_limited=False)


def test_the_last_owner_gets_no_own_role(acme: Organization, alice: Person, bob: Person) -> None:
    owner = as_role(alice, Role.OWNER)
    row = own_roles.create(acme.pk, "Finance", "", own_roles.with_choices(FINANCE))
    member = Member.objects.get(user=alice.user)
    path = url(alice, f"members/{member.pk}/role")
    refused = owner.post(path, {"role": f"own-{row.pk}"}, follow=True)
    assert "only owner: make someone else an owner first" in text(refused)
    as_role(bob, Role.OWNER)
    owner.post(path, {"role": f"own-{row.pk}"})
    member.refresh_from_db()
    assert member.own_role == row
    assert not memberships.is_last_owner(member)


def test_an_admin_neither_gives_nor_takes_an_auditor(acme: Organization, alice: Person, bob: Person) -> None:
    """The audit log is the owners'."""
    client = with_role(acme, AUDITOR)
    row, member = role_of(client), Member.objects.get(own_role=role_of(client))
    admin = as_role(bob, Role.ADMIN)
    other = Member.objects.get(user=alice.user)
    Member.objects.filter(pk=other.pk).update(role=Role.VIEWER)
    assert admin.post(url(alice, f"members/{other.pk}/role"), {"role": f"own-{row.pk}"}).status_code == 403
    for act in ("role", "remove"):
        sent = {"role": "viewer"}
        assert admin.post(url(alice, f"members/{member.pk}/{act}"), sent).status_code == 403
    assert admin.get(url(alice, f"members/roles/{row.pk}")).status_code == 403
    assert admin.post(url(alice, f"members/roles/{row.pk}/remove")).status_code == 403
    offered = admin.get(url(alice, "members/roles/new")).context["form"].fields
    assert "audit" not in offered
    assert "usage" in offered
    made = admin.post(url(alice, "members/roles/new"), {"name": "Sly", "audit": "on"})
    assert made.status_code == 302
    assert OwnRole.objects.get(name="Sly").permissions == sorted(own_roles.BASE)


def test_mail_goes_to_those_whose_role_reads_events(house: House) -> None:
    reader, other = (
        User.objects.get(pk=with_role(house.acme, choices, name).session["_auth_user_id"])
        for name, choices in (("reader", ["events"]), ("other", FINANCE))
    )
    event = Event.objects.filter(organization=house.acme).first()
    assert event is not None
    assert reader not in dispatch._people(event)
    for person in (reader, other):
        dispatch.prefer(person, house.acme, {event.kind: True})
    assert [person in dispatch._people(event) for person in (reader, other)] == [True, False]
    assert [person in dispatch.mailable(house.acme.pk) for person in (reader, other)] == [True, False]
    shown = client_of(reader).get(reverse("console:notifications", args=[house.acme.pk]))
    assert shown.context["mail"].initial["kinds"] == [event.kind]


@pytest.mark.parametrize(
    ("name", "permissions", "message"),
    [
        ("Reader", own_roles.BASE, "is the name of a role of all organizations"),
        ("finance", own_roles.BASE, "A role of the organization has this name already"),
        ("a/b", own_roles.BASE, "Use 1 to 100 ASCII letters"),
        ("Other", {*own_roles.BASE, "accounts.administer_keys"}, "'accounts.administer_keys' is not one of"),
        ("Other", {"usage.view_statement"}, "these need accounts.view_organization, accounts.view_project, "),
    ],
)
def test_a_wrong_role_is_refused(
    acme: Organization, name: str, permissions: Collection[str], message: str
) -> None:
    own_roles.create(acme.pk, "Finance", "", own_roles.BASE)
    with pytest.raises(ValidationError, match=message):
        own_roles.create(acme.pk, name, "", permissions)
    assert OwnRole.objects.count() == 1


def test_an_organization_has_a_bounded_number_of_roles(acme: Organization) -> None:
    for number in range(own_roles.MAX_ROLES):
        own_roles.create(acme.pk, f"Role {number}", "", own_roles.BASE)
    with pytest.raises(ValidationError, match="at most 20 roles"):
        own_roles.create(acme.pk, "More", "", own_roles.BASE)


def test_a_role_is_made_given_changed_and_removed(acme: Organization, alice: Person, bob: Person) -> None:
    owner, path = as_role(alice, Role.OWNER), url(alice, "members/roles")
    assert "No roles of your own yet." in text(owner.get(path))
    sent = {"name": "Finance", "description": "Accounting", "usage": "on", "statements": "on"}
    assert "The role Finance is made." in text(owner.post(f"{path}/new", sent, follow=True))
    row = OwnRole.objects.get()
    member = Member.objects.get(user=bob.user)
    given = owner.post(url(alice, f"members/{member.pk}/role"), {"role": f"own-{row.pk}"}, follow=True)
    assert "bob now has the role Finance." in text(given)
    initial = owner.get(f"{path}/{row.pk}").context["form"].initial
    assert initial.keys() >= {"usage", "statements"}
    older = {key: value for key, value in initial.items() if value} | {"name": "Accounts"}
    assert "The role Accounts is changed." in text(owner.post(f"{path}/{row.pk}", older, follow=True))
    assert "This role was changed or removed just now." in text(owner.post(f"{path}/{row.pk}", older), 400)
    kept = owner.post(f"{path}/{row.pk}/remove", follow=True)
    assert "1 member has this role: give another one first." in text(kept)
    memberships.change_role(Member.objects.get(pk=member.pk), Role.MEMBER)
    assert "The role Accounts is removed." in text(owner.post(f"{path}/{row.pk}/remove", follow=True))
    entries = AuditEntry.objects.filter(object_type="accounts.ownrole").order_by("pk")
    assert [(entry.action, entry.actor) for entry in entries] == [
        (action, "alice") for action in ("created", "changed", "deleted")
    ]
    change = AuditEntry.objects.filter(object_type="accounts.member").earliest("pk")
    assert change.changes["own_role"] == [None, "Acme / Finance"]


def test_a_choice_names_the_one_that_it_needs(acme: Organization, alice: Person) -> None:
    owner = as_role(alice, Role.OWNER)
    answer = owner.post(url(alice, "members/roles/new"), {"name": "Stopping", "stop": "on"})
    assert "This needs “Read spend, usage and requests, also while they run”, too." in text(answer, 400)


def test_a_wrong_name_is_an_error_of_its_field(acme: Organization, alice: Person) -> None:
    answer = as_role(alice, Role.OWNER).post(url(alice, "members/roles/new"), {"name": "Owner"})
    assert answer.context["form"].errors == {"name": ["“Owner” is the name of a role of all organizations."]}
    assert "The role is not saved: see the errors in red below." in text(answer, 400)


def test_low_credit_shows_no_notifications_to_a_role_without_them(house: House) -> None:
    """The page shows a refused amount among the notifications."""
    credit.grant(house.acme, 10**10, Note("a test", "alice"))
    path = reverse("console:low_credit", args=[house.acme.pk])
    choices = ["usage", "budgets", "set_budgets"]
    assert with_role(house.acme, [*choices, "events"], "reader").post(path, WRONG).status_code == 400
    assert with_role(house.acme, choices, "setter").post(path, WRONG).status_code == 403


def test_a_name_is_not_another_one_with_a_space(acme: Organization) -> None:
    own_roles.create(acme.pk, "Finance", "", own_roles.BASE)
    for name in ("owner ", "Finance "):
        with pytest.raises(ValidationError, match="name"):
            own_roles.create(acme.pk, name, "", own_roles.BASE)


def test_an_operator_changes_no_role_that_permits_more(acme: Organization) -> None:
    """A form without the other choices would take them away."""
    row = own_roles.create(acme.pk, "Finance", "", own_roles.with_choices(FINANCE))
    known = own_roles.create(acme.pk, "Reader of members", "", own_roles.with_choices(["members"]))
    clerk = User.objects.create_user("clerk", is_staff=True)
    clerk.user_permissions.set(Permission.objects.filter(codename__in=["view_member", "change_member"]))
    client, path = client_of(clerk), reverse("console:own_roles", args=[acme.pk])
    assert client.post(f"{path}/{row.pk}", {"name": "Accounts"}).status_code == 403
    assert client.post(f"{path}/{row.pk}/remove").status_code == 403
    row.refresh_from_db()
    assert row.permissions == sorted(own_roles.with_choices(FINANCE))
    assert client.post(f"{path}/{known.pk}", {"name": "Members", "members": "on"}).status_code == 302
    listed = client.get(path).content.decode()
    assert f"{path}/{known.pk}" in listed
    assert f"{path}/{row.pk}" not in listed


def test_the_choice_of_settings_names_all_that_its_form_changes(house: House) -> None:
    """Who may forbid storing responses may allow it again, too."""
    client, path = with_role(house.acme, ["settings"]), reverse("console:settings", args=[house.acme.pk])
    form = client.get(path).context["form"]
    assert [*form.fields] == ["name", "time_zone", "default_dialect", "forbids_stored_responses"]
    sent = form.initial | {"default_dialect": "", "forbids_stored_responses": "on"}
    assert client.post(path, sent).status_code == 302
    house.acme.refresh_from_db()
    assert house.acme.forbids_stored_responses
    words = own_roles.words(role_of(client).permissions)
    assert "name, time zone, dialect, and whether responses may be stored" in words


def test_owners_who_take_a_role_without_members_get_home(
    acme: Organization, alice: Person, bob: Person
) -> None:
    owner = as_role(alice, Role.OWNER)
    as_role(bob, Role.OWNER)
    row = own_roles.create(acme.pk, "Auditor", "", own_roles.with_choices(AUDITOR))
    member = Member.objects.get(user=alice.user)
    sent = {"role": f"own-{row.pk}"}
    answer = owner.post(url(alice, f"members/{member.pk}/role"), sent, follow=True)
    assert "alice now has the role Auditor." in text(answer)


def test_people_are_invited_with_an_own_role(acme: Organization, alice: Person) -> None:
    owner = as_role(alice, Role.OWNER)
    row = own_roles.create(acme.pk, "Finance", "Accounting", own_roles.with_choices(FINANCE))
    page = owner.get(url(alice, "members/invite"))
    assert (f"own-{row.pk}", "Finance: Accounting") in page.context["form"].fields["role"].choices
    sent = {"email": "fay@example.com", "role": f"own-{row.pk}", "sees": "all"}
    shown = text(owner.post(url(alice, "members/invite"), sent, follow=True))
    assert "invited to Acme as Finance" in shown
    only = {**sent, "email": "gus@example.com", "sees": "only", "projects": [alice.project.pk]}
    limited = owner.post(url(alice, "members/invite"), only)
    assert "Only a viewer or a member can be limited to projects." in text(limited)


def test_a_limited_member_keeps_their_limit(acme: Organization, alice: Person, bob: Person) -> None:
    owner, member = as_role(alice, Role.OWNER), Member.objects.get(user=bob.user)
    row = own_roles.create(acme.pk, "Finance", "", own_roles.with_choices(FINANCE))
    memberships.change_place(member, Role.MEMBER, [bob.project])
    refused = owner.post(url(alice, f"members/{member.pk}/role"), {"role": f"own-{row.pk}"}, follow=True)
    assert memberships.LIMITED in text(refused)
    place = url(alice, f"members/{member.pk}/place")
    sent = dict(owner.get(place).context["form"].initial) | {"role": f"own-{row.pk}", "sees": "all"}
    assert "bob now has the role Finance in Acme." in text(owner.post(place, sent, follow=True))
    member.refresh_from_db()
    assert (member.own_role, [*member.projects.all()]) == (row, [])
    assert memberships.place(member) == f"own-{row.pk} all"


def test_a_role_of_another_organization_is_given_to_nobody(house: House) -> None:
    member = Member.objects.get(user=house.active.user)
    with pytest.raises(ValidationError, match="no such role"):
        memberships.change_role(member, house.their_role)
    owner = as_role(house.alice, Role.OWNER)
    path = url(house.alice, f"members/{member.pk}/role")
    assert owner.post(path, {"role": f"own-{house.their_role.pk}"}).status_code == 403


def test_the_admin_shows_an_own_role_and_does_not_change_it(house: House) -> None:
    client = with_role(house.acme, FINANCE)
    row = Member.objects.get(own_role=role_of(client))
    operator = client_of(User.objects.create_superuser("operator"))
    listed = text(operator.get(reverse("admin:accounts_member_changelist")))
    assert "Role of eve" in listed
    path = reverse("admin:accounts_member_change", args=[row.pk])
    assert "Role of eve" in text(operator.get(path))
    assert operator.post(path, {"role": "viewer"}).status_code == 403
    of_organization = text(operator.get(reverse("admin:accounts_organization_change", args=[house.acme.pk])))
    assert "; read statements and discounts" in of_organization
