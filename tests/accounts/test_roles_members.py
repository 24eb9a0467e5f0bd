"""Members: invitations by each role and to each role; the link with which a new person chooses a password;
the owner that remains.
"""

import re
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts import acceptance, memberships
from accounts.models import Member, Organization, Role
from tests.admin_pages import client_of, page
from tests.cast import Person, join

ADD = "/admin/accounts/member/add/"
LINK = r'value="http://testserver(/console/invitation/[^"\s]+)"'
PASSPHRASE = {"new_password1": "correct horse battery", "new_password2": "correct horse battery"}


@pytest.fixture
def admin(acme: Organization) -> Person:
    """Return Dora, an admin of Acme."""
    return join("dora", Role.ADMIN, acme, "default")


def invitation(
    organization: Organization, name: str, role: str = Role.MEMBER, email: str = ""
) -> dict[str, Any]:
    """Return the data of the invitation form."""
    return {"organization": organization.pk, "name": name, "email": email, "role": role}


def place(organization: Organization, name: str) -> str | None:
    """Return the person's role in the organization."""
    return (
        Member.objects.filter(organization=organization, user__username=name)
        .values_list("role", flat=True)
        .first()
    )


def link_in(client: Client, organization: Organization, name: str) -> str:
    """Return the link that the page after an invitation shows."""
    answer = client.post(ADD, invitation(organization, name, email=f"{name}@example.com"), follow=True)
    assert "no-store" in answer.headers["cache-control"]
    assert 'data-copies="link">Copy</button>' in answer.content.decode()
    (found,) = re.findall(LINK, answer.content.decode())
    return str(found)


# ---- inviting


def test_someone_new_chooses_a_password_once_and_is_in(acme: Organization, alice: Person) -> None:
    link = link_in(client_of(alice.user), acme, "erin")
    visitor = Client()
    form = visitor.get(link, follow=True)
    shown = re.sub(r"\s+", " ", form.content.decode())
    assert "alice invited you to Acme as member. Your user name is <strong>erin</strong>" in shown
    assert link not in form.content.decode()
    done = visitor.post(form.redirect_chain[-1][0], PASSPHRASE, follow=True)
    assert done.redirect_chain[-1][0] == f"/console/{acme.pk}/start"
    assert done.context["request"].user.get_username() == "erin"
    erin = User.objects.get(username="erin")
    assert erin.check_password(PASSPHRASE["new_password1"])
    assert (erin.is_staff, erin.is_superuser, erin.email, place(acme, "erin")) == (
        False,
        False,
        "erin@example.com",
        "member",
    )
    assert "This link does not work" in Client().get(link, follow=True).content.decode()


def test_the_name_of_an_invited_person_is_free_after_their_removal(acme: Organization, alice: Person) -> None:
    client = client_of(alice.user)
    for _ in range(2):
        link_in(client, acme, "erin")
        client.post(page(Member.objects.get(user__username="erin"), "delete"), {"post": "yes"})
        assert not User.objects.filter(username="erin").exists()


def test_a_link_of_the_release_before_leads_to_the_same_page(acme: Organization, alice: Person) -> None:
    link = link_in(client_of(alice.user), acme, "erin")
    form = Client().get(link.replace("/console/", "/admin/"), follow=True)
    assert "Your user name is" in form.content.decode()


def test_a_weak_password_is_not_taken(acme: Organization, alice: Person) -> None:
    visitor = Client()
    form = visitor.get(link_in(client_of(alice.user), acme, "erin"), follow=True)
    visitor.post(form.redirect_chain[-1][0], {"new_password1": "password", "new_password2": "password"})
    assert not User.objects.get(username="erin").has_usable_password()


@pytest.mark.parametrize(
    "link",
    [
        "/console/invitation/MQ/d5q1w2-00000000000000000000000000000000/",
        "/console/invitation/x/set-password/",
    ],
)
def test_a_made_up_link_opens_nothing(alice: Person, link: str) -> None:
    answer = Client().get(link)
    assert "This link does not work" in answer.content.decode()
    assert Client().post(link, PASSPHRASE).status_code == 200
    assert not alice.user.check_password(PASSPHRASE["new_password1"])


@pytest.mark.parametrize("sender", [pytest.param("9" * 5_000, id="endless"), "9" * 19, "٣", "²", "-1", ""])
def test_a_made_up_link_names_no_sender(alice: Person, sender: str) -> None:
    link = (
        f"/console/invitation/{urlsafe_base64_encode(force_bytes(alice.user.pk))}/{sender}.d5q1w2-{'0' * 32}/"
    )
    assert "This link does not work" in Client().get(link).content.decode()


def test_a_link_ends_when_its_person_joins_another_organization(
    acme: Organization, alice: Person, charlie: Person, root: Client
) -> None:
    """The sender could otherwise sign in to the other organization as that person."""
    link = link_in(client_of(alice.user), acme, "erin")
    root.post(ADD, invitation(charlie.project.organization, "erin", Role.OWNER))
    assert "This link does not work" in Client().get(link, follow=True).content.decode()
    member = Member.objects.get(organization=acme, user__username="erin")
    path = reverse("admin:accounts_member_invitation", args=[member.pk])
    assert (client_of(alice.user).get(path).status_code, root.get(path).status_code) == (403, 200)


@pytest.mark.parametrize("rise", ["owner", "staff", "superuser"])
def test_a_link_ends_when_its_person_becomes_more_than_its_sender_could_invite(
    acme: Organization, alice: Person, root: Client, rise: str
) -> None:
    sender = client_of(join("dora", Role.ADMIN, acme, "default").user)
    link, erin = link_in(sender, acme, "erin"), Member.objects.get(user__username="erin")
    if rise == "owner":
        assert client_of(alice.user).post(page(erin), {"role": "owner"}).status_code == 302
    else:
        User.objects.filter(pk=erin.user_id).update(**{f"is_{rise}": True})
    assert "This link does not work" in Client().get(link, follow=True).content.decode()
    path = reverse("admin:accounts_member_invitation", args=[erin.pk])
    assert (sender.get(path).status_code, root.get(path).status_code) == (403, 200)


@pytest.mark.parametrize("end", ["removed", "viewer", "inactive"])
def test_a_link_ends_when_its_sender_may_not_invite_any_more(
    acme: Organization, alice: Person, end: str
) -> None:
    dora = join("dora", Role.ADMIN, acme, "default").user
    link = link_in(client_of(dora), acme, "erin")
    if end == "removed":
        Member.objects.filter(user=dora).delete()
    elif end == "viewer":
        Member.objects.filter(user=dora).update(role=Role.VIEWER)
    else:
        User.objects.filter(pk=dora.pk).update(is_active=False)
    assert "This link does not work" in Client().get(link, follow=True).content.decode()
    member = Member.objects.get(user__username="erin")
    shown = (
        client_of(alice.user)
        .get(reverse("admin:accounts_member_invitation", args=[member.pk]))
        .content.decode()
    )
    (owners,) = re.findall(LINK, shown)
    assert "This link does not work" not in Client().get(owners, follow=True).content.decode()


def test_a_link_names_its_sender_for_good(acme: Organization, alice: Person, bob: Person) -> None:
    link = link_in(client_of(alice.user), acme, "erin")
    assert f"/{alice.user.pk}." in link
    for sender in (bob.user.pk, "", "x", "9" * 30, "٣"):
        forged = link.replace(f"/{alice.user.pk}.", f"/{sender}.")
        assert "This link does not work" in Client().get(forged, follow=True).content.decode()


def test_nobody_gets_a_link_to_someone_above_them_elsewhere(
    acme: Organization, admin: Person, charlie: Person, root: Client
) -> None:
    """The link would let its holder sign in as an owner of the other organization."""
    link = link_in(client_of(admin.user), acme, "erin")
    Member.objects.create(organization=charlie.project.organization, user=admin.user, role=Role.ADMIN)
    root.post(ADD, invitation(charlie.project.organization, "erin", Role.OWNER))
    member = Member.objects.get(organization=acme, user__username="erin")
    assert (
        client_of(admin.user).get(reverse("admin:accounts_member_invitation", args=[member.pk])).status_code
        == 403
    )
    assert "This link does not work" in Client().get(link, follow=True).content.decode()


def test_staff_gets_no_link_to_a_superuser(acme: Organization, root: Client) -> None:
    clerk, boss = User.objects.create_user("clerk", is_staff=True), User.objects.create_superuser("boss")
    clerk.user_permissions.set(
        Permission.objects.filter(codename__in=["add_member", "change_member", "view_member"])
    )
    client_of(clerk).post(ADD, invitation(acme, "boss"))
    path = reverse("admin:accounts_member_invitation", args=[Member.objects.get(user=boss).pk])
    assert (client_of(clerk).get(path).status_code, root.get(path).status_code) == (403, 200)


def test_a_person_with_a_password_gets_no_link(acme: Organization, alice: Person, bob: Person) -> None:
    bob.user.set_password("correct horse battery")
    bob.user.save()
    path = reverse("admin:accounts_member_invitation", args=[Member.objects.get(user=bob.user).pk])
    assert client_of(alice.user).get(path).status_code == 403


def test_a_colleague_is_added_by_name_and_a_stranger_is_not(
    acme: Organization, alice: Person, bob: Person, charlie: Person
) -> None:
    second = Organization.objects.create(name="Acme Labs")
    Member.objects.create(organization=second, user=alice.user, role=Role.OWNER)
    client = client_of(alice.user)
    client.post(ADD, invitation(second, "bob"))
    assert place(second, "bob") == "member"
    answer = client.post(ADD, invitation(second, "charlie")).content.decode()
    assert "This name is taken" in answer
    assert place(second, "charlie") is None
    assert 'value="charlie"' not in client.get(ADD).content.decode()
    assert 'value="bob"' in client.get(ADD).content.decode()


def test_an_operator_adds_anyone(acme: Organization, charlie: Person, root: Client) -> None:
    root.post(ADD, invitation(acme, "charlie", Role.OWNER))
    assert place(acme, "charlie") == "owner"


def test_nobody_is_a_member_twice(acme: Organization, alice: Person, bob: Person) -> None:
    answer = client_of(alice.user).post(ADD, invitation(acme, "bob")).content.decode()
    assert "bob is already a member of Acme" in answer


@pytest.mark.parametrize("name", ["", "a b/c", "<script>", "x" * 151])
def test_a_name_that_is_none_makes_nobody(acme: Organization, alice: Person, name: str) -> None:
    before = User.objects.count()
    assert client_of(alice.user).post(ADD, invitation(acme, name)).status_code == 200
    assert User.objects.count() == before


# ---- roles


def test_nobody_gives_a_role_above_their_own(
    acme: Organization, alice: Person, bob: Person, admin: Person
) -> None:
    client, member = client_of(admin.user), Member.objects.get(user=bob.user)
    assert client.post(ADD, invitation(acme, "erin", Role.OWNER)).status_code == 200
    assert client.post(page(member), {"role": "owner"}).status_code == 200
    assert client.post(page(Member.objects.get(user=admin.user)), {"role": "owner"}).status_code == 200
    assert (place(acme, "erin"), place(acme, "bob"), place(acme, "dora")) == (None, "member", "admin")
    assert client.post(page(member), {"role": "admin"}).status_code == 302
    assert place(acme, "bob") == "admin"


def test_a_role_elsewhere_gives_none_here(acme: Organization, charlie: Person, bob: Person) -> None:
    """Charlie owns Umbrella and is a viewer of Acme."""
    Member.objects.create(organization=acme, user=charlie.user, role=Role.VIEWER)
    client = client_of(charlie.user)
    assert client.post(ADD, invitation(acme, "erin")).status_code == 200
    assert client.post(page(Member.objects.get(user=bob.user)), {"role": "viewer"}).status_code == 403
    assert (place(acme, "erin"), place(acme, "bob")) == (None, "member")


def test_an_admin_neither_changes_nor_removes_an_owner(
    acme: Organization, alice: Person, admin: Person
) -> None:
    join("olga", Role.OWNER, acme, "default")
    client, owner = client_of(admin.user), Member.objects.get(user=alice.user)
    assert client.get(page(owner)).status_code == 200
    assert client.post(page(owner), {"role": "viewer"}).status_code == 403
    assert client.post(page(owner, "delete"), {"post": "yes"}).status_code == 403
    client.post(
        "/admin/accounts/member/",
        {"action": "delete_selected", "_selected_action": [owner.pk], "post": "yes"},
    )
    assert place(acme, "alice") == "owner"


@pytest.mark.parametrize("role", [Role.MEMBER, Role.VIEWER])
def test_members_and_viewers_change_nobody(acme: Organization, alice: Person, role: Role) -> None:
    person = join("fay", role, acme, "default")
    client, own = client_of(person.user), Member.objects.get(user=person.user)
    assert client.post(ADD, invitation(acme, "erin")).status_code == 403
    assert client.post(page(own), {"role": "owner"}).status_code == 403
    assert client.post(page(own, "delete"), {"post": "yes"}).status_code == 403
    assert place(acme, "fay") == role


# ---- the last owner


def test_the_last_owner_stays(acme: Organization, alice: Person, root: Client) -> None:
    owner = Member.objects.get(user=alice.user)
    for client in (client_of(alice.user), root):
        assert "only owner" in client.post(page(owner), {"role": "admin"}).content.decode()
        assert client.post(page(owner, "delete"), {"post": "yes"}).status_code == 403
    assert place(acme, "alice") == "owner"


def test_an_owner_goes_when_another_is_there(acme: Organization, alice: Person) -> None:
    client_of(join("olga", Role.OWNER, acme, "default").user)
    client, owner = client_of(alice.user), Member.objects.get(user=alice.user)
    assert client.post(page(owner), {"role": "admin"}).status_code == 302
    assert place(acme, "alice") == "admin"
    assert client.post(page(owner, "delete"), {"post": "yes"}).status_code == 302
    assert place(acme, "alice") is None
    assert client.get("/admin/").status_code == 302


@pytest.mark.parametrize("state", ["invited", "inactive"])
def test_the_only_active_owner_stays_and_the_other_one_goes(
    acme: Organization, alice: Person, state: str
) -> None:
    olga, client = join("olga", Role.OWNER, acme, "default").user, client_of(alice.user)
    if state == "inactive":
        client_of(olga)
        User.objects.filter(pk=olga.pk).update(is_active=False)
    owner, other = (Member.objects.get(user=each) for each in (alice.user, olga))
    assert acceptance.state(other) == state
    assert "only owner" in client.post(page(owner), {"role": "admin"}).content.decode()
    for change in (memberships.remove, lambda member: memberships.change_role(member, Role.ADMIN)):
        with pytest.raises(ValidationError, match="only owner"):
            change(owner)
    assert client.post(page(other, "delete"), {"post": "yes"}).status_code == 302
    assert (place(acme, "alice"), place(acme, "olga")) == ("owner", None)


def test_of_two_invited_owners_one_is_withdrawn(acme: Organization, alice: Person) -> None:
    """An operator has made the organization, and nobody has come yet."""
    acceptance.withdraw(Member.objects.get(user=join("olga", Role.OWNER, acme, "default").user))
    assert place(acme, "alice") == "owner"


def test_of_two_owners_that_remove_each_other_one_stays(acme: Organization, alice: Person) -> None:
    """Both requests have passed the form; the rows decide at the time of the change."""
    other = Member.objects.get(user=join("olga", Role.OWNER, acme, "default").user)
    memberships.remove(Member.objects.get(user=alice.user))
    with pytest.raises(ValidationError, match="only owner"):
        memberships.change_role(other, Role.VIEWER)
    assert place(acme, "olga") == "owner"


def test_a_member_who_has_become_an_owner_since_they_were_read_stays(
    acme: Organization, alice: Person, bob: Person
) -> None:
    """The request that removes them was allowed for the role that they had."""
    read = Member.objects.get(user=bob.user)
    memberships.change_role(Member.objects.get(pk=read.pk), Role.OWNER)
    with pytest.raises(ValidationError, match="Look again"):
        memberships.remove(read)
    assert place(acme, "bob") == "owner"


def test_an_invitation_is_withdrawn_once(acme: Organization, alice: Person) -> None:
    link_in(client_of(alice.user), acme, "erin")
    one, other = (Member.objects.get(user__username="erin") for _ in range(2))
    acceptance.withdraw(one)
    with pytest.raises(ValidationError, match="Look again"):
        acceptance.withdraw(other)


def test_a_member_who_was_removed_since_they_were_read_gets_no_role(acme: Organization, bob: Person) -> None:
    read = Member.objects.get(user=bob.user)
    memberships.remove(Member.objects.get(pk=read.pk))
    with pytest.raises(ValidationError, match="Look again"):
        memberships.change_role(read, Role.VIEWER)
    assert place(acme, "bob") is None
