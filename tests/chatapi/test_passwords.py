"""Forgotten passwords, and changes of one's own address and password: by mail, or without any."""

import asyncio
import re
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from allauth.usersessions.models import UserSession
from django.contrib.auth.forms import SetPasswordForm
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.mail import EmailMessage
from django.db import connection
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from accounts import acceptance
from accounts.audit.models import AuditEntry
from accounts.models import Member, Organization, Role
from accounts.sign_in import attempts, sessions
from accounts.sign_in.models import EmailDomain, IdentityProvider
from chatapi.worker.reaper import housekeeping
from tests.admin_pages import client_of
from tests.cast import Person, join
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
from usage.database.clock import database_now
from usage.database.group_commit import GroupCommit

FORGOTTEN = "/console/password/forgotten"
pytestmark = pytest.mark.usefixtures("db", "counting")


# ---- by mail


@pytest.mark.usefixtures("mailing")
def test_a_mailed_link_sets_another_password_once(mailoutbox: list[EmailMessage], alice: Person) -> None:
    with_password(alice.user, email="alice@acme.example")
    Client().post(FORGOTTEN, {"email": "Alice@Acme.example"})
    (mail,) = mailoutbox
    assert "Choose it for the user name alice here:" in str(mail.body)
    visitor, link = Client(), link_in(mail)
    choose(visitor, link)
    assert who(visitor) == ""
    assert sign_in(visitor, "alice@acme.example", ANOTHER["new_password1"]).status_code == 302
    assert EmailAddress.objects.get(user=alice.user).verified
    assert "This link does not work" in Client().get(link, follow=True).content.decode()


@pytest.mark.usefixtures("mailing")
@pytest.mark.parametrize(
    ("password", "status"), [(ANOTHER["new_password1"], 302), ("quite another one", 404)]
)
@pytest.mark.parametrize("is_invited", [False, True])
def test_a_second_press_before_the_first_one_is_saved_leads_to_the_same_page(
    mailoutbox: list[EmailMessage], alice: Person, acme: Organization, monkeypatch: pytest.MonkeyPatch,
    *, is_invited: bool, password: str, status: int,
) -> None:  # fmt: skip
    with_password(alice.user, email="alice@acme.example")
    if is_invited:
        invitation = {"email": "erin@acme.example", "role": "viewer", "sees": "all"}
        client_of(alice.user).post(f"/console/{acme.pk}/members/invite", invitation)
    else:
        Client().post(FORGOTTEN, {"email": "alice@acme.example"})
    first, second, save, answers = Client(), Client(), SetPasswordForm.save, list[Any]()
    path = first.get(link_in(mailoutbox[0]), follow=True).redirect_chain[-1][0]
    second.cookies.update(first.cookies)

    def save_after_another(form: Any, commit: bool = True) -> Any:
        if not answers:
            answers.append(None)
            answers[0] = first.post(path, ANOTHER)
        return save(form, commit)

    monkeypatch.setattr(SetPasswordForm, "save", save_after_another)
    answers.append(second.post(path, {"new_password1": password, "new_password2": password}))
    assert [each.status_code for each in answers] == [302, status]
    if status == 302:
        assert answers[0].headers["location"] == answers[1].headers["location"]
        assert who(first) == who(second) == ("erin@acme.example" if is_invited else "")


@pytest.mark.usefixtures("mailing")
def test_a_stranger_does_not_learn_whose_addresses_are_known(
    mailoutbox: list[EmailMessage], alice: Person
) -> None:
    with_password(alice.user, email="alice@acme.example")
    pages = [
        Client().post(FORGOTTEN, {"email": address}).content.decode().replace(address, "?")
        for address in ("alice@acme.example", "nobody@acme.example")
    ]
    assert pages[0] == pages[1]
    assert [mail.subject for mail in mailoutbox] == [
        "Choose another password for testserver",
        "No account at testserver has your address",
    ]


@pytest.mark.usefixtures("mailing")
def test_a_confirmed_address_is_its_owners_alone(
    mailoutbox: list[EmailMessage], alice: Person, charlie: Person
) -> None:
    confirmed(alice, "alice@acme.example")
    with_password(charlie.user, email="alice@acme.example")
    Client().post(FORGOTTEN, {"email": "alice@acme.example"})
    assert re.findall(r"user name (\S+) here", str(mailoutbox[0].body)) == ["alice"]
    assert sign_in(Client(), "alice@acme.example").status_code == 302


@pytest.mark.usefixtures("mailing")
def test_an_address_that_an_operator_has_changed_opens_nothing(
    mailoutbox: list[EmailMessage], alice: Person, charlie: Person, root: Client
) -> None:
    confirmed(alice, "alice@acme.example")
    User.objects.filter(pk=alice.user.pk).update(email="alice@new.example")
    Client().post(FORGOTTEN, {"email": "alice@acme.example"})
    assert mailoutbox[0].subject == "No account at testserver has your address"
    client = Client()
    sign_in(client, "alice@acme.example")
    assert who(client) == ""
    with_password(charlie.user, email="alice@acme.example")
    Client().post(FORGOTTEN, {"email": "alice@acme.example"})
    choose(Client(), link_in(mailoutbox[1]))
    assert EmailAddress.objects.get(email="alice@acme.example").user == charlie.user


def _by_upper(one: str, other: str) -> int:
    return (one.upper() > other.upper()) - (one.upper() < other.upper())


@pytest.fixture
def one_letter_in_any_case(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare as PostgreSQL does with a locale: the dotless i is an I, and the long s is an S."""
    if connection.vendor == "sqlite":
        database: Any = connection
        database.ensure_connection()
        database.connection.create_collation("by_upper", _by_upper)
        monkeypatch.setitem(database.operators, "iexact", "= %s COLLATE by_upper")


@pytest.mark.usefixtures("mailing", "one_letter_in_any_case")
@pytest.mark.parametrize("typed", ["alice@gma\u0131l.example", "a\u017fh@acme.example"])
def test_an_address_that_only_looks_alike_gets_no_link(
    mailoutbox: list[EmailMessage], alice: Person, typed: str
) -> None:
    with_password(alice.user, email=typed.replace("\u0131", "i").replace("\u017f", "s"))
    Client().post(FORGOTTEN, {"email": typed})
    (mail,) = mailoutbox
    assert mail.subject == "No account at testserver has your address"


@pytest.mark.usefixtures("one_letter_in_any_case")
def test_an_invitation_of_an_address_that_only_looks_alike_is_not_ones_own(
    alice: Person, bob: Person, acme: Organization
) -> None:
    confirmed(bob, "liam@elsewhere.example")
    form = {"email": "l\u0131am@elsewhere.example", "role": "owner", "sees": "all"}
    Member.objects.filter(user=bob.user).delete()
    client_of(alice.user).post(f"/console/{acme.pk}/members/invite", form)
    assert Member.objects.filter(organization=acme, user__email=form["email"]).count() == 1
    assert not acceptance.open_for(bob.user).exists()


@pytest.mark.usefixtures("mailing")
def test_the_visitor_does_not_choose_the_host_of_a_mailed_link(
    mailoutbox: list[EmailMessage], alice: Person, settings: Settings
) -> None:
    with_password(alice.user, email="alice@acme.example")
    settings.ALLOWED_HOSTS, settings.PUBLIC_URL = ["*"], "https://chat.example.com"
    for path in (FORGOTTEN, "/console/sign-up"):
        settings.SIGN_UP = "open"
        Client(headers={"host": "evil.example"}).post(path, {"email": "alice@acme.example"})
        assert "https://chat.example.com/console/" in str(mailoutbox[-1].body)
        assert "evil.example" not in str(mailoutbox[-1].body)


@pytest.mark.usefixtures("mailing")
def test_mail_from_one_address_of_the_network_is_bounded(mailoutbox: list[EmailMessage]) -> None:
    answers = [
        Client().post(FORGOTTEN, {"email": f"{number}@acme.example"})
        for number in range(attempts.MAX_MAILS_PER_NETWORK + 1)
    ]
    assert [answer.status_code for answer in answers] == [200] * attempts.MAX_MAILS_PER_NETWORK + [429]
    assert "Too many attempts. Try again in 10 min." in answers[-1].content.decode()
    assert len(mailoutbox) == attempts.MAX_MAILS_PER_NETWORK


# ---- without mail


def test_without_mail_no_public_page_gives_a_link(alice: Person, mailoutbox: list[EmailMessage]) -> None:
    with_password(alice.user, email="alice@acme.example")
    for answer in (Client().get(FORGOTTEN), Client().post(FORGOTTEN, {"email": "alice@acme.example"})):
        shown = answer.content.decode()
        assert "This service sends no mail" in shown
        assert "/console/password/M" not in shown
    assert mailoutbox == []


def test_without_mail_an_owner_gives_a_member_a_link(alice: Person, bob: Person, acme: Organization) -> None:
    with_password(bob.user)
    member = Member.objects.get(user=bob.user)
    second = Organization.objects.create(name="Second")
    for person, role in ((alice.user, Role.OWNER), (bob.user, Role.VIEWER)):
        Member.objects.create(organization=second, user=person, role=role)
    shown = client_of(alice.user).post(f"/console/{acme.pk}/members/{member.pk}/new-password")
    (link,) = re.findall(r"http://testserver(/console/invitation/[^\"]+)", shown.content.decode())
    visitor = Client()
    choose(visitor, link)
    assert who(visitor) == "bob"
    assert User.objects.get(pk=bob.user.pk).check_password(ANOTHER["new_password1"])
    made = AuditEntry.objects.filter(actor="alice", action="made a link for a new password")
    assert {each.organization_id for each in made} == {acme.pk, second.pk}, "other owners see it"


@pytest.mark.parametrize("case", ["elsewhere", "operator"])
def test_a_link_to_somebody_elsewhere_is_the_operators(
    alice: Person, bob: Person, charlie: Person, acme: Organization, case: str
) -> None:
    with_password(bob.user)
    if case == "elsewhere":
        Member.objects.create(organization=charlie.project.organization, user=bob.user, role=Role.VIEWER)
    else:
        User.objects.filter(pk=bob.user.pk).update(is_staff=True)
    member = Member.objects.get(user=bob.user, organization=acme)
    page = f"/console/{acme.pk}/members/{member.pk}/new-password"
    shown = client_of(alice.user).post(page, follow=True).content.decode()
    assert "Only an operator can make a link for this person" in shown
    assert "/console/invitation/" not in shown


@pytest.mark.parametrize("case", ["lone owner", "elsewhere", "operator"])
def test_an_operator_gives_anybody_a_link_in_the_admin(
    alice: Person, charlie: Person, acme: Organization, root: Client, case: str
) -> None:
    with_password(alice.user)
    places: set[int | None] = {acme.pk}
    if case == "elsewhere":
        umbrella = charlie.project.organization
        Member.objects.create(organization=umbrella, user=alice.user, role=Role.VIEWER)
        places.add(umbrella.pk)
    elif case == "operator":
        Member.objects.filter(user=alice.user).delete()
        User.objects.filter(pk=alice.user.pk).update(is_staff=True)
        places = {None}
    page = f"/admin/auth/user/{alice.user.pk}/new-password/"
    assert page in root.get(f"/admin/auth/user/{alice.user.pk}/change/").content.decode()
    assert "/console/invitation/" not in root.get(page).content.decode()
    shown = root.post(page)
    assert "no-store" in shown.headers["cache-control"]
    (link,) = re.findall(r"http://testserver(/console/invitation/[^\"]+)", shown.content.decode())
    made = AuditEntry.objects.filter(actor="root", action="made a link for a new password")
    assert {each.organization_id for each in made} == places, "owners see it"
    visitor = Client()
    choose(visitor, link)
    assert who(visitor) == "alice"
    assert "This link does not work" in Client().get(link, follow=True).content.decode()


@pytest.mark.parametrize("case", ["sends mail", "own", "inactive", "invited"])
def test_an_operator_gets_no_link_where_none_is_needed(
    alice: Person, root: Client, settings: Settings, case: str
) -> None:
    person = with_password(alice.user)
    if case == "sends mail":
        settings.SENDS_EMAIL = True
    elif case == "own":
        person = User.objects.get(username="root")
    elif case == "inactive":
        User.objects.filter(pk=person.pk).update(is_active=False)
    else:
        User.objects.filter(pk=person.pk).update(password="!", last_login=None)
    page = f"/admin/auth/user/{person.pk}"
    assert f"{page}/new-password" not in root.get(f"{page}/change/").content.decode()
    shown = root.post(f"{page}/new-password/", follow=True).content.decode()
    assert "There is no link for" in shown
    assert "/console/invitation/" not in shown


@pytest.mark.parametrize("case", ["sends mail", "admin asks", "own"])
def test_an_owner_gets_no_link_to_what_is_not_theirs(
    alice: Person, bob: Person, acme: Organization, settings: Settings, case: str
) -> None:
    with_password(bob.user)
    asks, about = alice.user, bob.user
    if case == "sends mail":
        settings.SENDS_EMAIL = True
    elif case == "admin asks":
        asks = join("dora", Role.ADMIN, acme, "default").user
    else:
        about = with_password(alice.user)
    member = Member.objects.get(user=about, organization=acme)
    answer = client_of(asks).post(f"/console/{acme.pk}/members/{member.pk}/new-password")
    assert answer.status_code == 403


# ---- asked for by an owner


@pytest.mark.usefixtures("mailing")
def test_an_owner_has_a_link_mailed_to_a_member_and_never_sees_it(
    mailoutbox: list[EmailMessage],
    alice: Person,
    bob: Person,
    charlie: Person,
    acme: Organization,
) -> None:
    """Bob belongs to another organization, too: the mail reaches nobody but Bob."""
    confirmed(bob, "bob@acme.example")
    Member.objects.create(organization=charlie.project.organization, user=bob.user, role=Role.OWNER)
    member = Member.objects.get(user=bob.user, organization=acme)
    client, page = client_of(alice.user), f"/console/{acme.pk}/members/{member.pk}/new-password"
    shown = client.post(page, follow=True).content.decode()
    assert "A link for another password was mailed to bob@acme.example." in shown
    (mail,) = mailoutbox
    assert (mail.to, "alice, an owner of Acme, asked" in str(mail.body)) == (["bob@acme.example"], True)
    link = link_in(mail)
    assert link not in shown
    choose(Client(), link)
    assert User.objects.get(pk=bob.user.pk).check_password(ANOTHER["new_password1"])
    made = AuditEntry.objects.get(action="mailed a link for a new password")
    assert (made.actor, made.organization_id) == ("alice", acme.pk)
    for _ in range(attempts.MAX_MAILS_PER_ADDRESS):
        shown = client.post(page, follow=True).content.decode()
    assert "Too many attempts" in shown


@pytest.mark.usefixtures("mailing")
@pytest.mark.parametrize("case", ["unconfirmed", "somebody else's", "provider", "invited"])
def test_an_owner_has_no_link_mailed_that_does_not_help(
    mailoutbox: list[EmailMessage],
    alice: Person,
    bob: Person,
    charlie: Person,
    acme: Organization,
    case: str,
) -> None:
    with_password(bob.user, email="bob@acme.example")
    if case == "somebody else's":
        confirmed(charlie, "bob@acme.example")
    elif case == "provider":
        EmailAddress.objects.create(user=bob.user, email="bob@acme.example", verified=True)
        EmailDomain.objects.create(organization=acme, domain="acme.example", approved_at=timezone.now())
        IdentityProvider.objects.create(organization=acme, issuer="https://a.example", is_required=True)
    elif case == "invited":
        User.objects.filter(pk=bob.user.pk).update(password="!", last_login=None)
    member = Member.objects.get(user=bob.user, organization=acme)
    client = client_of(alice.user)
    shown = client.post(f"/console/{acme.pk}/members/{member.pk}/new-password", follow=True)
    assert ("no confirmed address" in shown.content.decode()) is (case in ("unconfirmed", "somebody else's"))
    assert ("without a password" in shown.content.decode()) is (case == "provider")
    assert (shown.status_code == 403) is (case == "invited")
    assert mailoutbox == []


@pytest.mark.usefixtures("mailing")
def test_an_owner_does_not_learn_a_members_other_organization(
    alice: Person, bob: Person, charlie: Person, acme: Organization
) -> None:
    """Bob is a guest at Acme, and has to sign in at the provider of Charlie's organization."""
    confirmed(bob, "bob@elsewhere.example")
    other = charlie.project.organization
    Member.objects.create(organization=other, user=bob.user, role=Role.VIEWER)
    EmailDomain.objects.create(organization=other, domain="elsewhere.example", approved_at=timezone.now())
    IdentityProvider.objects.create(organization=other, issuer="https://a.example", is_required=True)
    member = Member.objects.get(user=bob.user, organization=acme)
    page = f"/console/{acme.pk}/members/{member.pk}/new-password"
    shown = client_of(alice.user).post(page, follow=True).content.decode()
    assert "without a password" in shown
    assert other.name not in shown


# ---- one's own


@pytest.mark.usefixtures("mailing")
def test_another_address_is_confirmed_by_its_own_mail(mailoutbox: list[EmailMessage], alice: Person) -> None:
    confirmed(alice, "alice@acme.example")
    client = Client()
    sign_in(client, "alice")
    asked = client.get("/console/account/address", follow=True)
    assert asked.redirect_chain[-1][0].startswith("/console/account/again/password")
    client.post("/console/account/again/password", {"password": PASSWORD})
    client.post("/console/account/address", {"email": "alice@home.example"})
    link = link_in(mailoutbox[0])
    assert "alice@home.example becomes the confirmed address of alice" in client.get(link).content.decode()
    alice.user.refresh_from_db()
    assert alice.user.email == "alice@acme.example"
    client.post(link)
    alice.user.refresh_from_db()
    assert alice.user.email == "alice@home.example"
    assert list(EmailAddress.objects.values_list("email", "verified")) == [("alice@home.example", True)]
    assert AuditEntry.objects.get(action="confirmed an address").address == "127.0.0.1"
    assert client.post(link).headers["location"] == "/console/account"
    assert AuditEntry.objects.filter(action="confirmed an address").count() == 1


@pytest.mark.usefixtures("mailing")
@pytest.mark.parametrize("typed", ["desk@acme.example", "Desk@Acme.example"])
def test_an_address_that_was_given_up_is_free_for_its_next_owner(
    mailoutbox: list[EmailMessage], boss: Person, settings: Settings, typed: str
) -> None:
    settings.SIGN_UP, settings.PUBLIC_URL = "open", "http://testserver"
    said(boss, "POST", f"{HERE}/invites", {"email": typed, "role": "reader"})
    client, password = Client(), ANOTHER["new_password1"]
    choose(client, link_in(mailoutbox.pop()))
    client.post("/console/account/again/password", {"password": password})
    client.post("/console/account/address", {"email": "dora@acme.example"})
    client.post(link_in(mailoutbox.pop()))
    assert who(client) == "dora@acme.example"
    Client().post("/console/sign-up", {"email": "desk@acme.example"})
    assert mailoutbox[0].subject == "Confirm your address for testserver"
    Client().post(link_in(mailoutbox[0]), {"password": password, "name": "Desk"})
    for name in ("dora@acme.example", "desk@acme.example"):
        visitor = Client()
        sign_in(visitor, name, password)
        assert who(visitor) == name


@pytest.mark.usefixtures("mailing")
def test_nobody_confirms_an_address_for_a_strangers_account(
    mailoutbox: list[EmailMessage], alice: Person, bob: Person
) -> None:
    client = Client()
    sign_in(client, with_password(alice.user).username)
    client.post("/console/account/again/password", {"password": PASSWORD})
    client.post("/console/account/address", {"email": "victim@acme.example"})
    link = link_in(mailoutbox[0])
    assert (
        Client().post(link).headers["location"].startswith("/console/sign-in?next=/console/account/address/")
    )
    assert client_of(bob.user).post(link).status_code == 404
    assert not EmailAddress.objects.exists()


@pytest.mark.usefixtures("mailing")
def test_a_link_leads_nobody_around_the_provider_that_is_required_since(
    mailoutbox: list[EmailMessage], alice: Person, acme: Organization
) -> None:
    client = Client()
    sign_in(client, confirmed(alice, "alice@acme.example").username)
    client.post("/console/account/again/password", {"password": PASSWORD})
    client.post("/console/account/address", {"email": "alice@home.example"})
    EmailDomain.objects.create(organization=acme, domain="acme.example", approved_at=timezone.now())
    IdentityProvider.objects.create(organization=acme, issuer="https://localhost", is_required=True)
    shown = client.post(link_in(mailoutbox[0]), follow=True).content.decode()
    assert "Your address can&#x27;t be changed here." in shown
    alice.user.refresh_from_db()
    assert alice.user.email == "alice@acme.example"


@pytest.mark.usefixtures("mailing")
@pytest.mark.parametrize("path", ["codes-app", "passkeys/new"])
def test_a_second_factor_needs_a_confirmed_address(alice: Person, path: str) -> None:
    client = Client()
    sign_in(client, with_password(alice.user, email="victim@acme.example").username)
    client.post("/console/account/again/password", {"password": PASSWORD})
    refused = client.get(f"/console/account/{path}", follow=True)
    assert "Confirm your address first" in refused.content.decode()
    confirmed(alice, "victim@acme.example")
    sign_in(client, "alice")
    client.post("/console/account/again/password", {"password": PASSWORD})
    assert client.get(f"/console/account/{path}").status_code == 200


@pytest.mark.usefixtures("mailing")
def test_somebody_elses_address_is_not_taken(
    mailoutbox: list[EmailMessage], alice: Person, bob: Person
) -> None:
    confirmed(bob, "bob@acme.example")
    client = Client()
    sign_in(client, with_password(alice.user).username)
    client.post("/console/account/again/password", {"password": PASSWORD})
    client.post("/console/account/address", {"email": "bob@acme.example"})
    assert mailoutbox[0].subject == "You have an account at testserver already"


def test_a_password_is_changed_with_the_one_before_and_ends_other_sessions(alice: Person) -> None:
    with_password(alice.user)
    here, elsewhere = Client(), Client()
    for client in (here, elsewhere):
        sign_in(client, "alice")
    new = {"password1": ANOTHER["new_password1"], "password2": ANOTHER["new_password2"]}
    here.post("/console/account/password", {"oldpassword": "wrong", **new})
    assert elsewhere.get("/console/account").status_code == 200
    here.post("/console/account/password", {"oldpassword": PASSWORD, **new})
    assert here.get("/console/account").status_code == 200
    assert elsewhere.get("/console/account").status_code == 302


def test_other_sessions_are_listed_and_ended(alice: Person) -> None:
    with_password(alice.user)
    here, elsewhere = Client(HTTP_USER_AGENT="here"), Client(HTTP_USER_AGENT="elsewhere")
    for client in (here, elsewhere):
        sign_in(client, "alice")
    assert '<span class="line faint wrap" title="elsewhere">elsewhere</span>' in (
        here.get("/console/account").content.decode()
    )
    here.post("/console/account/sessions/end")
    assert elsewhere.get("/console/account").status_code == 302
    assert here.get("/console/account").status_code == 200


def test_a_new_session_ends_the_oldest_beyond_the_most(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    for person in (alice, bob):
        with_password(person.user)
    clients = [Client() for _ in range(4)]
    for client, name in zip(clients, ("bob", "alice", "alice", "alice"), strict=True):
        sign_in(client, name)
    assert [who(client) for client in clients] == ["bob", "", "alice", "alice"]
    assert UserSession.objects.count() == Session.objects.count() == 3
    # Again in the oldest session, which Django keeps for the same person.
    assert sign_in(clients[2], "alice").status_code == 302
    assert [who(client) for client in clients] == ["bob", "", "alice", "alice"]


@pytest.mark.usefixtures("transactional_db")
def test_the_housekeeping_deletes_expired_sessions(alice: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget_old() -> None:
        commits = GroupCommit()
        await housekeeping._forget_old(commits)
        await commits.close()

    monkeypatch.setattr(sessions, "DELETED_AT_ONCE", 1)
    with_password(alice.user)
    for client in (here := Client(), Client(), Client()):
        sign_in(client, "alice")
    Session.objects.exclude(pk=here.session.session_key).update(expire_date=database_now())
    asyncio.run(forget_old())
    assert who(here) == "alice"
    assert UserSession.objects.count() == Session.objects.count() == 1


def test_its_fields_have_labels_like_those_of_other_forms(alice: Person) -> None:
    with_password(alice.user)
    client = Client()
    sign_in(client, "alice")
    page = client.get("/console/account/password").content.decode()
    assert re.findall(r"<label[^>]*>([^<]*?)\s*</label>", page) == [
        "Current password", "New password", "New password again"
    ]  # fmt: skip
    assert "placeholder" not in page
