"""Signing up: the people that may, the mails, what a stranger learns, and a new organization's limits."""

from smtplib import SMTPDataError
from typing import Any
from unittest.mock import Mock

import pytest
from allauth.account.models import EmailAddress
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from django.contrib.auth.models import User
from django.core.mail import EmailMessage
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from accounts.audit.models import AuditEntry
from accounts.models import Member, Organization, Role
from accounts.sign_in import attempts
from accounts.sign_in.models import EmailDomain
from tests.cast import Person
from tests.chatapi.signing_in import PASSWORD, link_in, sign_in, who, with_password
from usage.models import Credit

PATH = "/console/sign-up"
pytestmark = pytest.mark.usefixtures("db", "counting", "mailing")


@pytest.fixture(autouse=True)
def open_to_all(settings: Settings) -> None:
    settings.SIGN_UP = "open"


def mailed(box: list[EmailMessage], address: str = "ada@globex.example") -> str:
    """Sign the address up; return the path of the link in its mail."""
    answer = Client().post(PATH, {"email": address})
    assert answer.status_code == 200
    assert box[-1].to == [address.lower()]
    return link_in(box[-1])


def test_a_confirmed_address_founds_an_organization(mailoutbox: list[EmailMessage]) -> None:
    link, visitor = mailed(mailoutbox, "Ada@Globex.example"), Client()
    assert not User.objects.exists()
    assert "ada@globex.example is confirmed" in visitor.get(link).content.decode()
    done = visitor.post(link, {"password": PASSWORD, "name": "Globex"}, follow=True)
    globex = Organization.objects.get(name="Globex")
    assert done.redirect_chain[-1][0] == f"/console/{globex.pk}/start"
    ada = User.objects.get(username="ada@globex.example")
    assert (ada.email, ada.is_staff, ada.is_superuser) == ("ada@globex.example", False, False)
    assert EmailAddress.objects.get(user=ada).verified
    assert Member.objects.get(user=ada).role == Role.OWNER
    assert list(AuditEntry.objects.order_by("pk").values_list("actor", "action", "object_type")) == [
        ("ada@globex.example", "created", "accounts.organization"),
        ("ada@globex.example", "created", "usage.credit"),
        ("ada@globex.example", "created", "accounts.member"),
        ("ada@globex.example", "signed in", "auth.user"),
    ]


def test_a_founded_organization_spends_nothing_before_it_has_credit(mailoutbox: list[EmailMessage]) -> None:
    done = Client().post(mailed(mailoutbox), {"password": PASSWORD, "name": "Globex"}, follow=True)
    assert "the operator of this service grants some" in done.content.decode()
    credit = Credit.objects.get(organization__name="Globex")
    assert (credit.is_required, credit.credited_nanodollars) == (True, 0)


def test_a_link_makes_one_account_and_no_other_link_works(mailoutbox: list[EmailMessage]) -> None:
    link = mailed(mailoutbox)
    Client().post(link, {"password": PASSWORD, "name": "Globex"})
    answers = [Client().get(link)]
    for path in (link + "x", f"{PATH}/nothing"):
        answers += [Client().get(path), Client().post(path, {"password": PASSWORD, "name": "Hooli"})]
    for answer in answers:
        assert answer.status_code == 404
        assert "This link does not work" in answer.content.decode()
    assert Organization.objects.count() == 1


def test_a_known_address_gets_the_same_page_and_another_mail(
    mailoutbox: list[EmailMessage], alice: Person
) -> None:
    with_password(alice.user, email="alice@acme.example")
    pages = [
        Client().post(PATH, {"email": address}).content.decode().replace(address, "?")
        for address in ("alice@acme.example", "nobody@acme.example")
    ]
    assert pages[0] == pages[1]
    known, unknown = mailoutbox
    assert known.subject == "You have an account at testserver already"
    assert link_in(known) == "/console/password/forgotten"
    assert link_in(unknown).startswith(f"{PATH}/")


@pytest.mark.parametrize("path", [PATH, "/console/password/forgotten"])
@pytest.mark.parametrize("address", ["ada@b\N{ARABIC LETTER ALEF}.example", "\u0131" * 30 + "@b.example"])
def test_an_address_to_which_no_mail_can_be_written_gets_none(path: str, address: str) -> None:
    answer = Client().post(path, {"email": address})
    assert answer.status_code == 200
    assert "could not be sent. Check the address" in answer.content.decode()


@pytest.mark.parametrize("path", [PATH, "/console/password/forgotten"])
def test_a_mail_that_the_server_does_not_take_is_not_on_its_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    refusal = SMTPDataError(554, b"5.7.1 the link http://testserver/console/x is not welcome")
    monkeypatch.setattr(EmailMessage, "send", Mock(side_effect=refusal))
    answer = Client().post(path, {"email": "ada@globex.example"}).content.decode()
    assert "The mail to ada@globex.example could not be sent." in answer
    assert "on its way" not in answer
    assert "was not sent: SMTPDataError 554" in caplog.text
    assert "testserver" not in caplog.text, "the answer may quote the link"


@pytest.mark.parametrize("mode", ["closed", "invitation"])
def test_elsewhere_nobody_signs_up(mailoutbox: list[EmailMessage], settings: Settings, mode: str) -> None:
    link = mailed(mailoutbox)
    settings.SIGN_UP = mode
    assert [Client().get(PATH).status_code, Client().post(PATH, {"email": "a@b.example"}).status_code] == [
        404,
        404,
    ]
    assert Client().post(link, {"password": PASSWORD, "name": "Globex"}).status_code == 404
    assert "Sign up" not in Client().get("/console/sign-in").content.decode()
    assert len(mailoutbox) == 1


def test_only_addresses_of_a_domain_sign_up(mailoutbox: list[EmailMessage], settings: Settings) -> None:
    settings.SIGN_UP, settings.SIGN_UP_DOMAINS = "domain", ["globex.example"]
    assert mailed(mailoutbox)
    refused = Client().post(PATH, {"email": "ada@evil-globex.example"})
    assert "Only addresses of globex.example can sign up" in refused.content.decode()
    assert len(mailoutbox) == 1


def test_mail_to_one_address_is_bounded(mailoutbox: list[EmailMessage]) -> None:
    answers = [
        Client(REMOTE_ADDR=f"192.0.2.{number}").post(PATH, {"email": "ada@globex.example"})
        for number in range(attempts.MAX_MAILS_PER_ADDRESS + 1)
    ]
    assert [answer.status_code for answer in answers] == [200] * attempts.MAX_MAILS_PER_ADDRESS + [429]
    assert len(mailoutbox) == attempts.MAX_MAILS_PER_ADDRESS


def test_names_of_organizations_are_tried_out_a_few_times_only(
    mailoutbox: list[EmailMessage], acme: Organization
) -> None:
    link, visitor = mailed(mailoutbox), Client()
    for _ in range(attempts.MAX_PER_NAME_AND_NETWORK):
        answer: Any = visitor.post(link, {"password": PASSWORD, "name": "acme"})
        assert "This name is taken" in answer.content.decode()
    assert visitor.post(link, {"password": PASSWORD, "name": "Globex"}).status_code == 429


@pytest.mark.parametrize(
    "name", ["Globex\nYour account is closed: https://evil.example", "<b>", "-", "ab\u202ecd"]
)
def test_a_founded_organization_has_a_name_that_its_settings_would_take(
    mailoutbox: list[EmailMessage], name: str
) -> None:
    answer = Client().post(mailed(mailoutbox), {"password": PASSWORD, "name": name})
    assert "Use 1 to 100 ASCII letters" in answer.content.decode()
    assert not Organization.objects.exists()
    assert not User.objects.exists()


@pytest.mark.parametrize("password", ["short", "ada@globex.example", ""])
def test_a_weak_password_is_not_taken(mailoutbox: list[EmailMessage], password: str) -> None:
    answer = Client().post(mailed(mailoutbox), {"password": password, "name": "Globex"})
    assert 'class="error"' in answer.content.decode()
    assert not User.objects.exists()


# ---- pressing twice


def test_a_second_press_signs_in_and_makes_nothing(mailoutbox: list[EmailMessage]) -> None:
    link, again = mailed(mailoutbox), Client()
    Client().post(link, {"password": PASSWORD, "name": "Globex"})
    done = again.post(link, {"password": PASSWORD, "name": "Globex"}, follow=True)
    assert done.redirect_chain[-1][0] == f"/console/{Organization.objects.get().pk}/start"
    assert who(again) == "ada@globex.example"
    assert (User.objects.count(), Member.objects.count(), Credit.objects.count()) == (1, 1, 1)


def test_a_press_in_the_middle_of_another_one_ends_in_the_same_way(
    mailoutbox: list[EmailMessage], settings: Settings
) -> None:
    settings.AUTH_PASSWORD_VALIDATORS = [{"NAME": "tests.chatapi.test_sign_up.PressesAgain"}]
    link, slow = mailed(mailoutbox), Client()
    PressesAgain.link = link
    done = slow.post(link, {"password": PASSWORD, "name": "Globex"}, follow=True)
    assert done.redirect_chain[-1][0] == f"/console/{Organization.objects.get().pk}/start"
    assert who(slow) == "ada@globex.example"


class PressesAgain:
    """A check of passwords during which the same form is sent once more."""

    link = ""

    def validate(self, password: str, user: User | None = None) -> None:
        link, PressesAgain.link = PressesAgain.link, ""
        if link:
            Client().post(link, {"password": password, "name": "Globex"})


def test_a_second_press_of_the_same_browser_has_an_old_token(mailoutbox: list[EmailMessage]) -> None:
    link, browser = mailed(mailoutbox), Client(enforce_csrf_checks=True)
    token = str(browser.get(link).context["csrf_token"])
    form = {"password": PASSWORD, "name": "Globex", "csrfmiddlewaretoken": token}
    for _ in range(2):
        assert browser.post(link, form).headers["location"] == "/console/"
    assert browser.get(link).headers["location"] == "/console/"
    assert Client(enforce_csrf_checks=True).post(link, form).status_code == 403


def test_a_wrong_password_leads_to_the_sign_in_page_and_is_counted(mailoutbox: list[EmailMessage]) -> None:
    link, guesser = mailed(mailoutbox), Client()
    Client().post(link, {"password": PASSWORD, "name": "Globex"})
    attempts.forget("ada@globex.example", "127.0.0.1")
    for number in range(attempts.MAX_PER_NAME_AND_NETWORK):
        page = guesser.post(link, {"password": f"{number} guesses", "name": "Globex"}).content.decode()
        assert "This address has an account already, with another password." in page
        assert 'action="/console/sign-in"' in page
    for answer in (guesser.post(link, {"password": PASSWORD}), sign_in(guesser, "ada@globex.example")):
        assert answer.status_code == 429
    assert who(guesser) == ""


def test_a_second_press_asks_for_the_second_factor(mailoutbox: list[EmailMessage]) -> None:
    link, again = mailed(mailoutbox), Client()
    Client().post(link, {"password": PASSWORD, "name": "Globex"})
    TOTP.activate(User.objects.get(), generate_totp_secret())
    answer = again.post(link, {"password": PASSWORD, "name": "Globex"})
    assert (answer.headers["location"], who(again)) == ("/console/sign-in/second-factor", "")


# ---- joining


def domain(organization: Organization, **changes: Any) -> EmailDomain:
    return EmailDomain.objects.create(organization=organization, domain="acme.example", **changes)


def test_people_join_the_organization_of_their_domain_if_its_owner_lets_them(
    mailoutbox: list[EmailMessage], acme: Organization
) -> None:
    domain(acme, approved_at=timezone.now(), joins_as="viewer")
    link, visitor = mailed(mailoutbox, "erin@acme.example"), Client()
    assert "Acme, as viewer" in visitor.get(link).content.decode()
    visitor.post(link, {"password": PASSWORD, "place": "join"})
    assert who(visitor) == "erin@acme.example"
    assert Member.objects.get(user__username="erin@acme.example", organization=acme).role == Role.VIEWER


@pytest.mark.parametrize("changes", [{"joins_as": "viewer"}, {"approved_at": timezone.now()}])
def test_nobody_joins_by_a_domain_that_is_not_approved_or_not_opened(
    mailoutbox: list[EmailMessage], acme: Organization, changes: dict[str, Any]
) -> None:
    domain(acme, **changes)
    link, visitor = mailed(mailoutbox, "erin@acme.example"), Client()
    assert "Acme" not in visitor.get(link).content.decode()
    visitor.post(link, {"password": PASSWORD, "place": "join", "name": ""})
    assert not Member.objects.exists()
