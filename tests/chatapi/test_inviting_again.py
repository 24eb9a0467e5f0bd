"""Invitations for addresses that have an account: their owner signs in to it and accepts."""

import re
from itertools import zip_longest
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from django.contrib.auth.models import User
from django.core.mail import EmailMessage
from django.db import transaction
from django.test import Client
from django.urls import reverse

from accounts import acceptance, groups, invitees, memberships
from accounts.audit.models import AuditEntry
from accounts.models import Member, Organization, Project, Role
from chatapi.console.password_pages import Invitation
from tests.admin_pages import client_of
from tests.cast import Person
from tests.chatapi.management import HERE, said
from tests.chatapi.signing_in import (
    ANOTHER,
    PASSWORD,
    choose,
    confirmed,
    link_in,
    sign_in,
    who,
    with_password,
)

pytestmark = pytest.mark.usefixtures("db", "counting")
ADDRESS = "charlie@umbrella.example"
STRANGER = "vanessa@umbrella.example"
LINK = r"(?:http://testserver)?(/console/invitation/[^\"<]+)"


def invite(alice: Person, email: str = ADDRESS, role: str = "viewer", **sent: Any) -> str:
    """Invite the address on Acme's page; return the copied link."""
    form = {"email": email, "role": role, "sees": "all", **sent}
    path = f"/console/{alice.project.organization_id}/members/invite"
    shown = client_of(alice.user).post(path, form, follow=True).content.decode()
    (link,) = re.findall(LINK, shown)
    return str(link)


def opened(client: Client, link: str) -> tuple[str, str]:
    """Open a link; return the path of its page, and the page."""
    answer = client.get(link, follow=True)
    return answer.request["PATH_INFO"], answer.content.decode()


def join(client: Client, link: str) -> Any:
    """Press "Join" on the page of the link."""
    return client.post(opened(client, link)[0], {"join": "yes"}, follow=True)


def places(person: Person) -> dict[str, str]:
    rows = Member.objects.filter(user=person.user)
    return dict(rows.values_list("organization__name", "role"))


@pytest.fixture
def outsider(charlie: Person) -> Person:
    """Return Charlie of Umbrella, with a password and a confirmed address."""
    confirmed(charlie, ADDRESS)
    return charlie


def test_an_invitation_that_was_withdrawn_just_now_leaves_its_address_free(db: None) -> None:
    invited = User.objects.create_user(STRANGER, STRANGER)
    User.objects.all().delete()
    assert acceptance.set_aside(invited)
    assert not User.objects.exists()


@pytest.mark.usefixtures("mailing")
def test_a_person_of_another_organization_signs_in_and_joins(
    mailoutbox: list[EmailMessage], alice: Person, outsider: Person, acme: Organization
) -> None:
    before = places(outsider)
    invite(alice)
    assert places(outsider) == before, "nothing is given before it is accepted"
    (mail,) = mailoutbox
    assert "sign in to it to join" in str(mail.body)
    visitor = Client()
    page, shown = opened(visitor, link_in(mail))
    assert "alice invited you to Acme as viewer" in shown
    assert f"/console/sign-in?next={page}" in shown
    sign_in(visitor, ADDRESS, next=page)
    assert who(visitor) == "charlie"
    shown = visitor.get(page).content.decode()
    assert "You are signed in as <strong>charlie</strong>" in shown
    assert "New password" not in shown
    joined = visitor.post(page, {"join": "yes"}, follow=True).content.decode()
    assert "You are now viewer of Acme." in joined
    assert places(outsider) == before | {"Acme": "viewer"}
    assert not User.objects.filter(email=ADDRESS).exclude(pk=outsider.user.pk).exists()
    assert "This link does not work" in opened(Client(), link_in(mail))[1]
    entry = AuditEntry.objects.get(action="changed", object_type="accounts.member")
    assert (entry.actor, entry.organization_id) == ("charlie", acme.pk)
    assert entry.changes == {"user": [ADDRESS, "charlie"]}


def test_a_removed_person_is_invited_again(alice: Person, acme: Organization) -> None:
    """Without a mail server no address is confirmed: the link and the account with the address are enough."""
    choose(Client(), invite(alice, "erin@acme.example"))
    erin = User.objects.get(username="erin@acme.example")
    memberships.remove(Member.objects.get(user=erin))
    visitor, password = Client(), ANOTHER["new_password1"]
    assert sign_in(visitor, erin.username, password).status_code == 200, "no organization"
    link = invite(alice, "erin@acme.example", role="member")
    page, _ = opened(visitor, link)
    assert sign_in(visitor, erin.username, password, next=page).headers["location"] == page
    home = visitor.get("/console/", follow=True).content.decode()
    assert "Open the link of your invitation again" in home
    assert "You are now member of Acme." in join(visitor, link).content.decode()
    assert Member.objects.get(user=erin, organization=acme).role == "member"


def test_the_management_api_invites_a_person_who_has_an_account(boss: Person, outsider: Person) -> None:
    made = said(boss, "POST", f"{HERE}/invites", {"email": ADDRESS, "role": "reader"})
    other = said(boss, "POST", f"{HERE}/invites", {"email": STRANGER, "role": "reader"})
    same = ("object", "role", "status", "projects", "mailed")
    assert [made[name] for name in same] == [other[name] for name in same]
    assert made["email"] == ADDRESS
    assert {*made} == {*other}
    visitor = Client()
    sign_in(visitor, ADDRESS)
    join(visitor, made["url"])
    assert places(outsider)["Acme"] == "viewer"
    assert said(boss, "GET", f"{HERE}/invites/{made['id']}")["status"] == "accepted"
    pending = [each["id"] for each in said(boss, "GET", f"{HERE}/invites")["data"]]
    assert other["id"] in pending
    assert made["id"] not in pending


def test_an_invitation_in_the_admin_is_accepted_alike(
    alice: Person, outsider: Person, acme: Organization
) -> None:
    form = {"organization": acme.pk, "name": ADDRESS, "email": ADDRESS, "role": "member"}
    shown = client_of(alice.user).post("/admin/accounts/member/add/", form, follow=True).content.decode()
    (link,) = re.findall(LINK, shown)
    visitor = Client()
    sign_in(visitor, ADDRESS)
    join(visitor, link)
    assert places(outsider)["Acme"] == "member"


def test_the_limit_to_projects_is_part_of_the_invitation(
    alice: Person, outsider: Person, acme: Organization
) -> None:
    shop = Project.objects.create(organization=acme, name="shop")
    visitor = Client()
    sign_in(visitor, ADDRESS)
    joined = join(visitor, invite(alice, sees="only", projects=[str(shop.pk)]))
    assert "You are now viewer of the project shop of Acme." in joined.content.decode()
    member = Member.objects.get(user=outsider.user, organization=acme)
    assert (member.is_limited, [*member.projects.all()]) == (True, [shop])


# ---- the link alone opens nothing


def test_the_link_alone_neither_signs_in_nor_changes_a_password(
    alice: Person, outsider: Person, acme: Organization
) -> None:
    link, before = invite(alice), places(outsider)
    visitor = Client()
    page, _ = opened(visitor, link)
    refused = visitor.post(page, ANOTHER)
    assert "has an account or another invitation already" in refused.content.decode()
    visitor.post(page, {"join": "yes"})
    assert who(visitor) == ""
    outsider.user.refresh_from_db()
    assert outsider.user.check_password(PASSWORD)
    assert places(outsider) == before
    assert not User.objects.filter(password__startswith="pbkdf2", email=ADDRESS).exclude(username="charlie")


def test_somebody_else_who_is_signed_in_joins_nothing(alice: Person, bob: Person, outsider: Person) -> None:
    link = invite(alice)
    client = client_of(bob.user)
    page, shown = opened(client, link)
    assert f"You are signed in as bob, and this invitation is for {ADDRESS}." in shown
    assert ">Join<" not in shown
    client.post(page, {"join": "yes"})
    assert "Acme" not in places(outsider)
    assert Member.objects.filter(user__email=ADDRESS, organization__name="Acme").count() == 1


@pytest.mark.usefixtures("mailing")
def test_an_account_with_an_unconfirmed_address_confirms_it_first(
    alice: Person, charlie: Person, mailoutbox: list[EmailMessage]
) -> None:
    """Somebody else may have written the address into their account."""
    User.objects.filter(pk=charlie.user.pk).update(email=ADDRESS)
    link, client = invite(alice), client_of(User.objects.get(pk=charlie.user.pk))
    assert f"Confirm the address {ADDRESS}" in join(client, link).content.decode()
    assert "Acme" not in places(charlie)
    # The mail shows whose the address is.
    join(client, link_in(mailoutbox[0]))
    assert places(charlie)["Acme"] == "viewer"
    assert EmailAddress.objects.get(user=charlie.user).verified


def test_an_account_that_only_claims_a_confirmed_address_joins_nothing(
    alice: Person, bob: Person, outsider: Person, acme: Organization
) -> None:
    mallory = User.objects.create(username="mallory", email=ADDRESS)
    Member.objects.create(organization=outsider.project.organization, user=mallory, role=Role.VIEWER)
    shown = join(client_of(mallory), invite(alice)).content.decode()
    assert f"this invitation is for {ADDRESS}" in shown
    assert not Member.objects.filter(user=mallory, organization=acme).exists()


def test_no_operator_becomes_a_member_by_a_link(alice: Person, root: Client, acme: Organization) -> None:
    person = User.objects.get(pk=root.session["_auth_user_id"])
    User.objects.filter(pk=person.pk).update(email=ADDRESS)
    shown = join(root, invite(alice)).content.decode()
    assert "Only an operator makes an operator" in shown
    assert not Member.objects.filter(user=person).exists()


def test_a_withdrawn_invitation_is_no_way_in(alice: Person, outsider: Person) -> None:
    link, visitor = invite(alice), Client()
    sign_in(visitor, ADDRESS)
    page, _ = opened(visitor, link)
    acceptance.withdraw(Member.objects.get(user__email=ADDRESS, organization__name="Acme"))
    assert "This link does not work" in visitor.post(page, {"join": "yes"}).content.decode()
    assert "Acme" not in places(outsider)
    assert User.objects.filter(pk=outsider.user.pk).exists()


def test_a_member_keeps_their_role_when_they_accept_another(
    alice: Person, outsider: Person, acme: Organization
) -> None:
    link, visitor = invite(alice, role="owner"), Client()
    Member.objects.create(organization=acme, user=outsider.user, role=Role.VIEWER)
    sign_in(visitor, ADDRESS)
    assert "You are now viewer of Acme." in join(visitor, link).content.decode()
    assert places(outsider)["Acme"] == "viewer"
    assert Member.objects.filter(organization=acme).count() == 2


def test_the_invitation_of_an_only_owner_is_not_lost_to_a_lower_role(
    alice: Person, outsider: Person, acme: Organization
) -> None:
    """An organization keeps an owner, be it one who has not accepted yet."""
    link, visitor = invite(alice, role="owner"), Client()
    Member.objects.create(organization=acme, user=outsider.user, role=Role.VIEWER)
    Member.objects.filter(user=alice.user).update(role=Role.ADMIN)
    sign_in(visitor, ADDRESS)
    # An admin's link does not invite an owner, an operator's does.
    User.objects.filter(pk=alice.user.pk).update(is_superuser=True)
    refused = join(visitor, link).content.decode()
    assert "This is the organization&#x27;s only owner" in refused
    assert Member.objects.get(organization=acme, role=Role.OWNER).user.email == ADDRESS
    assert places(outsider)["Acme"] == "viewer"


# ---- nobody learns which addresses have accounts


def alike(page: str, address: str) -> str:
    """Return the page without what differs between two invitations of new people."""
    name = address.partition("@")[0]
    for changing in (
        name,
        r"just now|\d+ s ago",
        r"/invitation/[^\"<]+",
        r"csrf\w*\" value=\"\w+",
        r"nonce=\"[^\"]+",
        r"\d+",
    ):
        page = re.sub(changing, "-", page)
    return page


def all_that_is_seen(client: Client, acme: Organization, address: str) -> list[str]:
    """Invite the address twice and withdraw it; return all pages that an owner and a visitor see of it."""
    form = {"email": address, "role": "viewer", "sees": "all"}
    start = transaction.savepoint()
    answers = [client.post(f"/console/{acme.pk}/members/invite", form, follow=True) for _ in range(2)]
    (link,) = re.findall(LINK, answers[0].content.decode())
    member = Member.objects.get(user__email=address, organization=acme)
    groups.create(acme.pk, "Team", [member])
    searches = (address, "invitation", " ", "(invitation)", "0", "umbrella")
    paths = [
        *(f"/console/{acme.pk}/members?q={text}" for text in searches),
        *(f"/console/{acme.pk}/search?q={text}" for text in searches),
        *(f"/admin/accounts/member/?q={text}" for text in searches),
        f"/console/{acme.pk}/members/{member.pk}/place",
        f"/console/{acme.pk}/members/groups",
        f"/console/{acme.pk}/members/groups/new",
        f"/console/{acme.pk}/budgets/alerts/new",
        f"/console/{acme.pk}/audit",
        "/admin/accounts/member/add/",
        f"/admin/accounts/organization/{acme.pk}/change/",
        f"/admin/accounts/member/{member.pk}/change/",
        f"/admin/accounts/member/{member.pk}/delete/",
        reverse("admin:accounts_member_invitation", args=[member.pk]),
        "/admin/audit/",
    ]
    answers += [client.get(path) for path in paths]
    answers += [visitor.get(link, follow=True) for visitor in (Client(), client)]
    answers.append(client.post(f"/console/{acme.pk}/members/{member.pk}/remove", follow=True))
    answers.append(client.get(f"/console/{acme.pk}/audit"))
    assert {answer.status_code for answer in answers} == {200}
    transaction.savepoint_rollback(start)
    return [answer.content.decode() for answer in answers]


def test_all_that_an_owner_sees_is_alike_for_an_address_without_account(
    alice: Person, outsider: Person, acme: Organization
) -> None:
    known, unknown = (
        [alike(page, address) for page in all_that_is_seen(client_of(alice.user), acme, address)]
        for address in (ADDRESS, STRANGER)
    )
    differing = [
        (one, other)
        for page, other_page in zip(known, unknown, strict=True)
        for one, other in zip_longest(page.splitlines(), other_page.splitlines())
        if one != other
    ]
    assert differing == []


@pytest.mark.parametrize("address", [ADDRESS, STRANGER])
def test_two_invitations_by_one_person_have_different_links(
    alice: Person, outsider: Person, address: str
) -> None:
    """The same person in both links would be one without an account, and would join both organizations."""
    labs = Organization.objects.create(name="Acme Labs")
    Member.objects.create(organization=labs, user=alice.user, role=Role.OWNER)
    first = invite(alice, address)
    form = {"email": address, "role": "viewer", "sees": "all"}
    shown = client_of(alice.user).post(f"/console/{labs.pk}/members/invite", form, follow=True)
    (second,) = re.findall(LINK, shown.content.decode())
    assert first.split("/")[3] != second.split("/")[3]
    assert all("Otherwise choose" in opened(Client(), link)[1] for link in (first, second))


@pytest.mark.parametrize("is_mailed", [False, True])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_open_invitations_are_accepted_in_either_order(
    alice: Person, charlie: Person, order: tuple[int, int], is_mailed: bool,
    mailoutbox: list[EmailMessage], request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    if is_mailed:
        request.getfixturevalue("mailing")
    links = [invite(alice, STRANGER), invite(charlie, STRANGER)]
    if is_mailed:
        links = [link_in(mail) for mail in mailoutbox]
    visitor = Client()
    if order == (1, 0) and not is_mailed:  # its sender could take the address from the other organization
        refused = visitor.post(opened(visitor, links[1])[0], ANOTHER).content.decode()
        assert "or accept that invitation, and then open this link again" in refused
        order = (0, 1)
    visitor.post(opened(visitor, links[order[0]])[0], ANOTHER)
    assert who(visitor) == STRANGER
    join(visitor, links[order[1]])
    mine = Member.objects.filter(user__username=STRANGER)
    assert {row.organization.name for row in mine} == {"Acme", "Umbrella"}


def invited_meanwhile(monkeypatch: pytest.MonkeyPatch, *, name: str, by: Organization) -> None:
    """Let this organization invite the person just after the next invitation has looked for the name."""
    look = invitees._new_person

    def looked(*args: Any) -> User:
        monkeypatch.setattr(invitees, "_new_person", look)
        found = look(*args)
        person = User.objects.create(username=name, email=STRANGER, password="!")
        Member.objects.create(organization=by, user=person, role=Role.VIEWER)
        return found

    monkeypatch.setattr(invitees, "_new_person", looked)


@pytest.mark.parametrize("place", ["console", "admin", "api"])
@pytest.mark.parametrize("by", ["Acme", "Umbrella"])
def test_two_invitations_of_an_address_at_once_are_as_one_after_the_other(
    boss: Person, charlie: Person, monkeypatch: pytest.MonkeyPatch, place: str, by: str
) -> None:
    acme, client = boss.project.organization, client_of(boss.user)
    invited_meanwhile(monkeypatch, name=STRANGER, by=Organization.objects.get(name=by))
    form: dict[str, Any] = {"email": STRANGER, "name": STRANGER, "role": "viewer", "sees": "all"}
    if place == "api":
        body = {"email": STRANGER, "role": "reader"}
        answer = str(said(boss, "POST", f"{HERE}/invites", body, 400 if by == "Acme" else 200))
    else:
        pages = {"console": f"/console/{acme.pk}/members/invite", "admin": "/admin/accounts/member/add/"}
        sent = client.post(pages[place], form | {"organization": acme.pk}, follow=True)
        assert sent.status_code == (400 if (place, by) == ("admin", "Acme") else 200)
        answer = sent.content.decode()
    assert ("is already a member" in answer) is (by == "Acme")
    # A refusal by the others takes the rows back that this test has made in their transaction.
    if place == "console" or by == "Umbrella":
        assert Member.objects.filter(organization=acme, user__email=STRANGER).count() == 1


def test_a_user_name_that_is_taken_meanwhile_is_taken(
    alice: Person, charlie: Person, acme: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    invited_meanwhile(monkeypatch, name="vanessa", by=charlie.project.organization)
    form = {"name": "vanessa", "role": "viewer", "sees": "all"}
    answer = client_of(alice.user).post(f"/console/{acme.pk}/members/invite", form)
    assert "This name is taken." in answer.content.decode()


def test_an_invitation_to_a_full_group_is_refused(
    alice: Person, acme: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MAX_MEMBERS", 1)
    team = groups.create(acme.pk, "Team", [Member.objects.get(user=alice.user)])
    form = {"email": STRANGER, "role": "viewer", "sees": "all", "groups": [str(team.pk)]}
    answer = client_of(alice.user).post(f"/console/{acme.pk}/members/invite", form)
    assert "A group has at most 1 members." in answer.content.decode()
    assert not User.objects.filter(email=STRANGER).exists()


def test_an_invitation_that_an_operator_has_stopped_is_no_way_in(alice: Person, outsider: Person) -> None:
    link, visitor = invite(alice), Client()
    sign_in(visitor, ADDRESS)
    page, _ = opened(visitor, link)
    User.objects.filter(email=ADDRESS).exclude(pk=outsider.user.pk).update(is_active=False)
    assert "This link does not work" in visitor.post(page, {"join": "yes"}).content.decode()
    assert "Acme" not in places(outsider)
    assert not acceptance.open_for(outsider.user).exists()


@pytest.mark.parametrize("act", ["withdraw", "accept"])
def test_a_password_is_too_late_for_an_invitation_that_ends_meanwhile(
    alice: Person, outsider: Person, acme: Organization, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, visitor = invite(alice), Client()
    page, _ = opened(visitor, link)
    User.objects.filter(pk=outsider.user.pk).update(email="", username="charlie2")
    EmailAddress.objects.all().delete()
    member = Member.objects.get(user__email=ADDRESS, organization=acme)
    form_valid = Invitation.form_valid

    def late(page: Invitation, form: Any) -> Any:
        if act == "withdraw":
            acceptance.withdraw(member)
        else:
            acceptance.accept(User.objects.get(pk=member.user_id), outsider.user)
        return form_valid(page, form)

    monkeypatch.setattr(Invitation, "form_valid", late)
    shown = visitor.post(page, ANOTHER)
    assert (shown.status_code, who(visitor)) == (404, "")
    assert "This link does not work" in shown.content.decode()


@pytest.mark.usefixtures("mailing")
def test_placeholders_take_nothing_from_the_addresss_owner(
    alice: Person, charlie: Person, mailoutbox: list[EmailMessage]
) -> None:
    """An unconfirmed address still signs in, gets a link for a password and is confirmed."""
    charlie.user.set_password(PASSWORD)
    charlie.user.email = ADDRESS
    charlie.user.save()
    invite(alice)
    visitor = Client()
    sign_in(visitor, ADDRESS)
    assert who(visitor) == "charlie"
    Client().post("/console/password/forgotten", {"email": ADDRESS})
    assert "user name charlie" in str(mailoutbox[-1].body)
    assert "invitation" not in str(mailoutbox[-1].body)
    choose(Client(), link_in(mailoutbox[-1]))
    assert EmailAddress.objects.get(email=ADDRESS).user == charlie.user


@pytest.mark.usefixtures("mailing")
def test_a_copied_link_makes_no_second_account_of_an_unconfirmed_address(
    alice: Person, charlie: Person, mailoutbox: list[EmailMessage]
) -> None:
    """Its sender could take the address from Charlie: he would neither sign in with it nor confirm it."""
    with_password(charlie.user, email=ADDRESS)
    copied, sender, visitor = invite(alice), Client(), Client()
    refused = sender.post(opened(sender, copied)[0], ANOTHER).content.decode()
    assert "has an account or another invitation already" in refused
    sign_in(visitor, ADDRESS)
    assert who(visitor) == "charlie"
    # The mail shows that the address is not Charlie's alone.
    choose(owner := Client(), link_in(mailoutbox[0]))
    assert who(owner) == ADDRESS


def test_an_invitation_outlives_the_account(alice: Person, outsider: Person, acme: Organization) -> None:
    link = invite(alice)
    User.objects.filter(pk=outsider.user.pk).delete()
    visitor = Client()
    choose(visitor, link)
    assert who(visitor) == ADDRESS
    assert Member.objects.get(organization=acme, user__username=ADDRESS).role == "viewer"
