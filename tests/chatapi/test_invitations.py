"""Invitations of the console: their mail, the names that they may have, and the pages of their links."""

import re
from unittest.mock import Mock

import pytest
from allauth.account.models import EmailAddress
from django.contrib.auth.models import User
from django.core.mail import EmailMessage
from django.test import Client
from pytest_django import Settings
from redis.exceptions import RedisError

from accounts import acceptance
from accounts.models import Member, Organization, Role
from accounts.sign_in import attempts
from tests.admin_pages import client_of
from tests.cast import Person
from tests.chatapi.signing_in import ANOTHER, choose, confirmed, link_in, who

pytestmark = pytest.mark.usefixtures("db", "counting")


@pytest.mark.usefixtures("mailing")
def test_an_invitation_is_mailed_and_confirms_the_address(
    mailoutbox: list[EmailMessage], alice: Person, acme: Organization
) -> None:
    User.objects.filter(pk=alice.user.pk).update(first_name="Alice", last_name="Adams")
    client = client_of(User.objects.get(pk=alice.user.pk))
    shown = client.post(
        f"/console/{acme.pk}/members/invite",
        {"email": "Erin@Acme.example", "role": "viewer", "sees": "all"},
        follow=True,
    )
    assert "The invitation was mailed to erin@acme.example" in shown.content.decode()
    (mail,) = mailoutbox
    assert "Alice Adams invites you to Acme as viewer." in str(mail.body)
    assert "Your user name at testserver is erin@acme.example." in str(mail.body)
    assert mail.extra_headers["Auto-Submitted"] == "auto-generated"
    (copied,) = re.findall(r"http://testserver(/console/invitation/[^\"]+)", shown.content.decode())
    assert copied != link_in(mail)
    visitor = Client()
    choose(visitor, link_in(mail))
    assert who(visitor) == "erin@acme.example"
    assert EmailAddress.objects.get(user__username="erin@acme.example").verified


@pytest.mark.usefixtures("mailing")
def test_mail_of_invitations_is_bounded_and_the_link_is_not(
    mailoutbox: list[EmailMessage], alice: Person, acme: Organization
) -> None:
    client, path = client_of(alice.user), f"/console/{acme.pk}/members/invite"
    sent = {"role": "viewer", "sees": "all"}
    pages = [
        client.post(path, sent | {"email": f"{number}@acme.example"}, follow=True).content.decode()
        for number in range(attempts.MAX_MAILS_PER_NETWORK + 1)
    ]
    assert len(mailoutbox) == attempts.MAX_MAILS_PER_NETWORK
    assert "Too many mails were sent. Copy the link instead." in pages[-1]
    assert "/console/invitation/" in pages[-1]


@pytest.mark.usefixtures("mailing")
def test_an_invitation_is_copied_while_redis_is_away(
    alice: Person, acme: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "count_mail", Mock(side_effect=RedisError))
    sent = {"email": "erin@acme.example", "role": "viewer", "sees": "all"}
    shown = client_of(alice.user).post(f"/console/{acme.pk}/members/invite", sent, follow=True)
    assert "Redis does not respond. Copy the link instead." in shown.content.decode()


def test_an_invitation_of_somebody_who_joined_another_organization_is_the_operators(
    alice: Person, charlie: Person, acme: Organization
) -> None:
    client = client_of(alice.user)
    client.post(
        f"/console/{acme.pk}/members/invite", {"email": "erin@acme.example", "role": "viewer", "sees": "all"}
    )
    member = Member.objects.get(user__username="erin@acme.example")
    Member.objects.create(organization=charlie.project.organization, user=member.user, role=Role.VIEWER)
    shown = client.get(f"/console/{acme.pk}/members/{member.pk}/invitation", follow=True).content.decode()
    assert "Only an operator can make a link for this person" in shown


def test_invitations_do_not_tell_many_names(alice: Person, acme: Organization) -> None:
    User.objects.create(username="taken")
    client, path = client_of(alice.user), f"/console/{acme.pk}/members/invite"
    sent = {"name": "taken", "role": "viewer", "sees": "all"}
    for _ in range(attempts.MAX_INVITATIONS):
        assert "This name is taken" in client.post(path, sent).content.decode()
    for name in ("taken", "free", "free@hooli.example"):
        refused = client.post(path, sent | {"name": name}).content.decode()
        assert "At most 50 people are invited in ten minutes" in refused
    assert not User.objects.filter(username__startswith="free").exists()


@pytest.mark.parametrize("email", ["", "mallory@acme.example"])
def test_nobody_is_named_by_somebody_elses_address(alice: Person, acme: Organization, email: str) -> None:
    sent = {"name": "ceo@hooli.example", "email": email, "role": "viewer", "sees": "all"}
    refused = client_of(alice.user).post(f"/console/{acme.pk}/members/invite", sent)
    assert "must be the person&#x27;s e-mail address" in refused.content.decode()
    assert not User.objects.filter(username="ceo@hooli.example").exists()


def test_an_address_that_signs_somebody_in_is_no_name_for_another_account(
    alice: Person, charlie: Person, acme: Organization
) -> None:
    confirmed(charlie, "charlie@globex.example")
    path, sent = (
        f"/console/{acme.pk}/members/invite",
        {"email": "Charlie@globex.example", "role": "viewer", "sees": "all"},
    )
    shown = client_of(alice.user).post(path, sent, follow=True).content.decode()
    (link,) = re.findall(r"http://testserver(/console/invitation/[^\"]+)", shown)
    choose(Client(), link)
    assert not User.objects.filter(username="charlie@globex.example").exists()
    assert not User.objects.exclude(pk=charlie.user.pk).exclude(password__startswith="!").exists()


def test_any_address_is_a_user_name(alice: Person, acme: Organization, root: Client) -> None:
    sent = {"email": "O'Brien/x@acme.example", "role": "viewer", "sees": "all"}
    client_of(alice.user).post(f"/console/{acme.pk}/members/invite", sent)
    person = User.objects.get(username="o'brien/x@acme.example")
    form = {"username": person.username, "email": person.email, "date_joined_0": "2026-01-01"}
    saved = root.post(f"/admin/auth/user/{person.pk}/change/", form | {"date_joined_1": "12:00"})
    person.refresh_from_db()
    assert (saved.status_code, person.is_active) == (302, False)


def test_an_address_that_is_too_long_for_a_user_name_is_refused(alice: Person, acme: Organization) -> None:
    sent = {"email": f"erin@{'a.' * 70}example", "role": "viewer"}
    refused = client_of(alice.user).post(f"/console/{acme.pk}/members/invite", sent)
    assert "at most 150 characters" in refused.content.decode()


def test_a_copied_invitation_confirms_nothing(alice: Person, acme: Organization) -> None:
    shown = client_of(alice.user).post(
        f"/console/{acme.pk}/members/invite",
        {"email": "erin@acme.example", "role": "viewer", "sees": "all"},
        follow=True,
    )
    (copied,) = re.findall(r"http://testserver(/console/invitation/[^\"]+)", shown.content.decode())
    visitor = Client()
    choose(visitor, copied)
    assert who(visitor) == "erin@acme.example"
    assert not EmailAddress.objects.exists()


@pytest.mark.parametrize("meanwhile", ["withdrawn", "deactivated"])
def test_a_password_changes_nothing_else_of_its_person(
    alice: Person, acme: Organization, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    shown = client_of(alice.user).post(
        f"/console/{acme.pk}/members/invite",
        {"email": "erin@acme.example", "role": "viewer", "sees": "all"},
        follow=True,
    )
    (link,) = re.findall(r"http://testserver(/console/invitation/[^\"]+)", shown.content.decode())
    visitor, member = Client(), Member.objects.get(user__username="erin@acme.example")
    form, hash_password = visitor.get(link, follow=True).redirect_chain[-1][0], User.set_password

    def hash_slowly(person: User, password: str) -> None:
        if meanwhile == "withdrawn":
            acceptance.withdraw(member)
        else:
            User.objects.filter(pk=person.pk).update(is_active=False)
        hash_password(person, password)

    monkeypatch.setattr(User, "set_password", hash_slowly)
    assert (visitor.post(form, ANOTHER).status_code == 404) is (meanwhile == "withdrawn")
    assert not User.objects.filter(username="erin@acme.example", is_active=True).exists()


def test_where_sign_up_is_closed_only_operators_add_people(
    alice: Person, acme: Organization, root: Client, settings: Settings
) -> None:
    settings.SIGN_UP = "closed"
    asked = Client().get("/console/sign-in").content.decode()
    assert "owner or admin can invite you" not in asked
    path, sent = (
        f"/console/{acme.pk}/members/invite",
        {"email": "erin@acme.example", "role": "viewer", "sees": "all"},
    )
    refused = client_of(alice.user).post(path, sent)
    assert "Only an operator of this service adds new people" in refused.content.decode()
    assert root.post(path, sent).status_code == 302
