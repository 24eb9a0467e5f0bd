"""Mail about changes of an account: by its person, by an operator, by a command."""

import json
import re
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from pytest_django import Settings
from redis.exceptions import RedisError

import manage
from accounts.audit.models import AuditEntry
from accounts.models import Organization
from accounts.sign_in import attempts
from tests.admin_pages import client_of
from tests.cast import Person
from tests.chatapi.passkey import Passkey
from tests.chatapi.signing_in import ANOTHER, PASSWORD, choose, sign_in, who, with_password
from tests.chatapi.test_second_factors import code_of
from tests.mail_server import Mailbox, serving, use
from tests.opened_forms import opened

ADDRESS, NEW = "alice@acme.example", ANOTHER["new_password1"]
# Not `db`: mail is sent after the commit.
pytestmark = pytest.mark.usefixtures("transactional_db", "counting")


@pytest.fixture
def mailbox(settings: Settings) -> Iterator[Mailbox]:
    with serving() as found:
        use(settings, f"smtp://127.0.0.1:{found.port}")
        settings.PUBLIC_URL = "http://testserver"
        yield found


@pytest.fixture
def here(alice: Person, mailbox: Mailbox) -> Client:
    """Return a client as which alice, who has a confirmed address, has just signed in."""
    EmailAddress.objects.create(user=alice.user, email=ADDRESS, verified=True, primary=True)
    with_password(alice.user)
    User.objects.filter(pk=alice.user.pk).update(email=ADDRESS)
    alice.user.email = ADDRESS
    client = Client(REMOTE_ADDR="203.0.113.7")
    sign_in(client, "alice")
    client.post("/console/account/again/password", {"password": PASSWORD})
    assert mailbox.messages == [], "signing in is no change"
    return client


def subjects(mailbox: Mailbox) -> list[str]:
    return [str(each["subject"]).removesuffix(" at testserver") for each in mailbox.messages]


def path_in(mail: Any) -> str:
    (path,) = re.findall(r"http://testserver(/\S+)", body_of(mail))
    return str(path)


def body_of(mail: Any) -> str:
    return str(mail.get_content())


def sent_by_operator(mailbox: Mailbox, subject: str, operator: str = "root") -> None:
    """Assert that this mail alone was sent, to alice, without the operator's name and IP."""
    assert (subjects(mailbox), mailbox.receivers) == ([subject], [ADDRESS])
    body = body_of(mailbox.messages[0])
    assert ", by an operator." in body
    assert not re.search(rf"\b{operator}\b|127\.0\.0\.1|IP address", body)


def test_a_changed_password_is_mailed_with_time_ip_and_a_way_back(here: Client, mailbox: Mailbox) -> None:
    here.post("/console/account/password", {"oldpassword": "wrong", "password1": NEW, "password2": NEW})
    assert mailbox.messages == []
    here.post("/console/account/password", {"oldpassword": PASSWORD, "password1": NEW, "password2": NEW})
    (mail,) = mailbox.messages
    body = body_of(mail)
    assert (mail["subject"], mailbox.receivers) == ("Your password was changed at testserver", [ADDRESS])
    assert mail["auto-submitted"] == "auto-generated"
    assert re.search(r"your user name is alice, on \d{4}-\d\d-\d\d at \d\d:\d\d UTC, from the IP", body)
    assert "from the IP address 203.0.113.7." in body
    assert "http://testserver/console/password/forgotten" in body
    assert NEW not in str(mail)
    assert PASSWORD not in str(mail)


def test_a_first_password_of_an_existing_account_is_mailed(
    here: Client, alice: Person, mailbox: Mailbox
) -> None:
    User.objects.filter(pk=alice.user.pk).update(password="!")
    here.force_login(User.objects.get(pk=alice.user.pk))
    TOTP.activate(alice.user, secret := str(generate_totp_secret()))
    here.get("/console/account/password/new")
    here.post("/console/account/again/code", {"code": code_of(secret)})
    here.post("/console/account/password/new", {"password1": NEW, "password2": NEW})
    assert subjects(mailbox) == ["Your password was changed"]


def test_a_password_that_is_reset_by_mail_is_mailed_once(here: Client, mailbox: Mailbox) -> None:
    Client().post("/console/password/forgotten", {"email": ADDRESS})
    visitor, link = Client(REMOTE_ADDR="203.0.113.9"), path_in(mailbox.messages.pop())
    choose(visitor, link)
    visitor.get(link, follow=True)
    (mail,) = mailbox.messages
    assert mail["subject"] == "Your password was changed at testserver"
    assert "from the IP address 203.0.113.9." in body_of(mail)


def test_an_apps_whole_life_is_mailed(here: Client, mailbox: Mailbox) -> None:
    path = "/console/account/codes-app"
    (secret,) = re.findall(r'id="secret" value="(\w+)"', here.get(path).content.decode())
    here.post(path, {"code": "000000"})
    assert mailbox.messages == []
    here.post(path, {"code": code_of(secret)})
    here.post("/console/account/recovery-codes/new")
    here.post(f"{path}/remove")
    assert not Authenticator.objects.exists()
    assert subjects(mailbox) == [
        "An authenticator app was added to your account",
        "Your account has new recovery codes",
        "An authenticator app was removed from your account",
    ]
    for mail in mailbox.messages:
        assert "from the IP address 203.0.113.7." in body_of(mail)
        assert secret not in str(mail)


def test_a_passkeys_whole_life_is_mailed(here: Client, alice: Person, mailbox: Mailbox) -> None:
    passkey, path = Passkey(alice.user), "/console/account/passkeys"
    Authenticator.objects.all().delete()
    (challenge,) = re.findall(r'"challenge": "([^"]+)"', here.get(f"{path}/new").content.decode())
    credential = json.dumps(passkey.create(challenge))
    here.post(f"{path}/new", {"name": "Laptop", "credential": credential})
    here.post(f"{path}/{Authenticator.objects.get(type='webauthn').pk}/remove")
    assert not Authenticator.objects.exists()
    assert subjects(mailbox) == [
        "A passkey was added to your account",
        "A passkey was removed from your account",
    ]


def test_another_address_is_mailed_to_the_one_before(here: Client, mailbox: Mailbox) -> None:
    here.post("/console/account/address", {"email": "alice@home.example"})
    link = path_in(mailbox.messages.pop())
    mailbox.receivers.clear()
    here.post(link)
    here.post(link)
    assert User.objects.get(username="alice").email == "alice@home.example"
    assert subjects(mailbox) == ["The address of your account was changed"]
    assert mailbox.receivers == [ADDRESS]
    assert "alice@home.example" not in str(mailbox.messages[0])


def test_an_address_that_is_only_confirmed_is_no_change(here: Client, mailbox: Mailbox) -> None:
    EmailAddress.objects.all().delete()
    here.post("/console/account/address", {"email": ADDRESS})
    here.post(path_in(mailbox.messages.pop()))
    assert EmailAddress.objects.get().verified
    assert mailbox.messages == []


# ---- by others


def test_an_operator_sets_a_password(here: Client, alice: Person, root: Client, mailbox: Mailbox) -> None:
    sent = {"password1": NEW, "password2": NEW, "usable_password": "true", "set-password": "1"}
    root.post(f"/admin/auth/user/{alice.user.pk}/password/", sent)
    assert User.objects.get(pk=alice.user.pk).check_password(NEW)
    sent_by_operator(mailbox, "Your password was changed")


def test_an_operator_removes_a_password(here: Client, alice: Person, root: Client, mailbox: Mailbox) -> None:
    sent = {"usable_password": "false", "unset-password": "1"}
    root.post(f"/admin/auth/user/{alice.user.pk}/password/", sent)
    assert not User.objects.get(pk=alice.user.pk).has_usable_password()
    sent_by_operator(mailbox, "Your password was removed")


def test_an_operator_removes_a_factor(here: Client, alice: Person, root: Client, mailbox: Mailbox) -> None:
    Passkey(alice.user)
    root.post(f"/admin/mfa/authenticator/{Authenticator.objects.get().pk}/delete/", {"post": "yes"})
    assert not Authenticator.objects.exists()
    sent_by_operator(mailbox, "A passkey was removed from your account")


def test_an_operator_changes_an_address(here: Client, alice: Person, root: Client, mailbox: Mailbox) -> None:
    page = f"/admin/auth/user/{alice.user.pk}/change/"
    sent = opened(root, page, "email") | {"first_name": "Alice"}
    assert root.post(page, sent).status_code == 302
    assert mailbox.messages == []
    assert root.post(page, sent | {"email": "alice@home.example"}).status_code == 302
    sent_by_operator(mailbox, "The address of your account was changed")


def test_a_command_changes_a_password(
    here: Client, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getpass", lambda prompt: NEW)
    call_command("changepassword", "alice")
    sent_by_operator(mailbox, "Your password was changed")


def test_the_audit_log_has_a_password_that_a_command_changes(
    alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getpass", lambda prompt: NEW)
    call_command(manage._commands().fetch_command("changepassword"), "alice")
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.action, entry.object_name) == ("manage.py changepassword", "changed", "alice")
    assert entry.changes == {"password": ["(hidden)", "(hidden)"]}


# ---- no mail


def test_an_address_that_nobody_has_confirmed_gets_little_mail(
    alice: Person, bob: Person, mailbox: Mailbox
) -> None:
    """It may be a stranger's: the person who invites somebody writes it."""
    for _ in range(4):
        for person in (alice, bob):
            with_password(person.user, email="stranger@hooli.example")
    assert len(mailbox.messages) == attempts.MAX_MAILS_PER_ADDRESS


@pytest.mark.parametrize("is_redis_away", [False, True])
def test_a_confirmed_address_gets_mail_about_each_change(
    here: Client, alice: Person, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch, is_redis_away: bool
) -> None:
    """Nobody uses up the limit, or stops Redis, to change an account without a mail."""
    for _ in range(attempts.MAX_MAILS_PER_ADDRESS):
        Client().post("/console/password/forgotten", {"email": ADDRESS})
    if is_redis_away:
        monkeypatch.setattr(attempts, "count_mail", Mock(side_effect=RedisError))
    mailbox.messages.clear()
    with_password(alice.user)
    assert subjects(mailbox) == ["Your password was changed"]
    carl = User.objects.create_user("carl", "carl@acme.example", PASSWORD)
    with_password(carl)
    assert len(mailbox.messages) == (1 if is_redis_away else 2)


def test_a_new_account_gets_no_mail_about_its_first_password(
    alice: Person, acme: Organization, mailbox: Mailbox
) -> None:
    invitation = {"email": "erin@acme.example", "role": "viewer", "sees": "all"}
    client_of(alice.user).post(f"/console/{acme.pk}/members/invite", invitation)
    visitor = Client()
    choose(visitor, path_in(mailbox.messages.pop()))
    assert who(visitor) == "erin@acme.example"
    assert mailbox.messages == []


def test_signing_up_is_no_change(mailbox: Mailbox, settings: Settings) -> None:
    settings.SIGN_UP, visitor = "open", Client()
    visitor.post("/console/sign-up", {"email": "erin@acme.example"})
    visitor.post(path_in(mailbox.messages.pop()), {"password": NEW, "name": "Erin"})
    assert who(visitor) == "erin@acme.example"
    assert mailbox.messages == []


def test_a_person_without_an_address_gets_no_mail(alice: Person, root: Client, mailbox: Mailbox) -> None:
    Passkey(with_password(alice.user))
    root.post(f"/admin/mfa/authenticator/{Authenticator.objects.get().pk}/delete/", {"post": "yes"})
    assert not Authenticator.objects.exists()
    assert (mailbox.messages, mailbox.receivers) == ([], [])


def test_a_hash_that_is_renewed_is_no_change(here: Client, mailbox: Mailbox, settings: Settings) -> None:
    before = User.objects.get(username="alice").password
    settings.PASSWORD_HASHERS = [
        "django.contrib.auth.hashers.ScryptPasswordHasher",
        *settings.PASSWORD_HASHERS,
    ]
    assert sign_in(Client(), "alice").status_code == 302
    assert User.objects.get(username="alice").password != before
    assert mailbox.messages == []


def test_a_mail_server_that_fails_fails_no_page(
    here: Client, mailbox: Mailbox, caplog: pytest.LogCaptureFixture
) -> None:
    mailbox.answer = "554 5.7.1 no"
    sent = {"oldpassword": PASSWORD, "password1": NEW, "password2": NEW}
    assert here.post("/console/account/password", sent).status_code == 302
    assert User.objects.get(username="alice").check_password(NEW)
    # The server of the test, which has a log, too, names addresses.
    logged = "\n".join(each.getMessage() for each in caplog.records if each.name != "mail.log")
    assert "the mail 'account_changed' was not sent: SMTPDataError 554" in logged
    assert not re.search(f"{ADDRESS}|{NEW}", logged)
