"""Mail: a real SMTP server gets one message for each event and person that wants it."""

import email.policy
from collections.abc import Iterator
from datetime import datetime, timedelta
from email import message_from_bytes
from email.message import EmailMessage
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from django.contrib.auth.models import User
from pytest_django.fixtures import Settings

from accounts.models import Member
from chatapi.environment import Environment
from chatapi.notifications.dispatch import prefer, preferences
from chatapi.notifications.models import Delivery, DeliveryAttempt
from tests.cast import Person
from tests.chatapi.notifications.conftest import Deliver, write_event
from tests.installation import free_port
from usage.books import outbox
from usage.books.outbox import NewEvent
from usage.database.clock import database_now
from usage.models import TENANTS_KINDS, EventKind


class Mailbox:
    """Keeps what the server gets; `answer` is its reply to each message."""

    def __init__(self) -> None:
        self.messages: list[EmailMessage] = []
        self.receivers: list[str] = []
        self.answer = "250 OK"

    async def handle_DATA(self, _: Any, __: Any, envelope: Any) -> str:  # noqa: N802  aiosmtpd's name
        if self.answer.startswith("250"):
            found: Any = message_from_bytes(envelope.content, policy=email.policy.default)
            self.messages.append(found)
            self.receivers += envelope.rcpt_tos
        return self.answer


@pytest.fixture
def mailbox(settings: Settings, monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> Iterator[Mailbox]:
    """Run an SMTP server, which the settings name."""
    found = Mailbox()
    port = free_port()
    server = Controller(found, hostname="127.0.0.1", port=port)
    server.start()
    monkeypatch.setenv("CHATAPI_EMAIL_URL", f"smtp://127.0.0.1:{port}")
    for name, value in Environment().email("CHATAPI_EMAIL_URL").items():
        setattr(settings, name, value)
    settings.SENDS_EMAIL, settings.DEFAULT_FROM_EMAIL = True, "Chat API <chatapi@example.com>"
    settings.PUBLIC_URL = "https://chat.example.com"
    yield found
    server.stop(no_assert=True)


@pytest.fixture
def now(transactional_db: None) -> datetime:
    return database_now()


def has_signed_in(*people: Person) -> None:
    for person in people:
        User.objects.filter(pk=person.user.pk).update(
            email=f"{person.user.username}@example.com", last_login=database_now()
        )


def test_owners_and_admins_get_mail_that_says_why_and_where_it_is_switched_off(
    mailbox: Mailbox, alice: Person, bob: Person, charlie: Person, deliver: Deliver, now: datetime
) -> None:
    has_signed_in(alice, bob, charlie)
    event = write_event(alice, now)
    assert deliver(now) == 1
    assert deliver(now) == 0
    assert mailbox.receivers == ["alice@example.com"]
    [message] = mailbox.messages
    assert message["subject"] == "Unusual spend: Acme"
    assert message["from"] == "Chat API <chatapi@example.com>"
    assert message["message-id"] == f"<{event.webhook_id}.{alice.user.pk}@example.com>"
    assert message["auto-submitted"] == "auto-generated"
    text = message.get_content()
    assert text.startswith("This day has cost $8.1 so far.")
    assert "You get this mail because you are a member of Acme" in text
    assert f"https://chat.example.com/console/{alice.project.organization_id}/notifications" in text
    assert Delivery.objects.get().state == Delivery.State.DELIVERED


def test_each_person_chooses_the_kinds(
    mailbox: Mailbox, alice: Person, bob: Person, deliver: Deliver, now: datetime
) -> None:
    has_signed_in(alice, bob)
    acme = alice.project.organization
    assert preferences(alice.user, acme) == dict.fromkeys(TENANTS_KINDS, True)
    assert preferences(bob.user, acme) == dict.fromkeys(TENANTS_KINDS, False)
    prefer(alice.user, acme, {EventKind.SPEND: False})
    prefer(bob.user, acme, {EventKind.SPEND: True})
    write_event(alice, now)
    deliver(now)
    assert mailbox.receivers == ["bob@example.com"]


def test_nobody_gets_mail_without_an_address_or_before_they_have_joined(
    mailbox: Mailbox, alice: Person, bob: Person, deliver: Deliver, now: datetime
) -> None:
    User.objects.filter(pk=bob.user.pk).update(email="bob@example.com", password="!", last_login=None)
    Member.objects.update(role="owner")
    write_event(alice, now)
    assert deliver(now) == 0


def test_mail_is_tried_again_while_the_server_refuses_it(
    mailbox: Mailbox, alice: Person, deliver: Deliver, now: datetime
) -> None:
    has_signed_in(alice)
    write_event(alice, now)
    mailbox.answer = "451 alice@example.com is busy"
    deliver(now)
    assert DeliveryAttempt.objects.get().error == "the mail server: SMTPDataError 451"
    mailbox.answer = "250 OK"
    deliver(now + timedelta(minutes=1))
    assert len(mailbox.messages) == 1
    assert Delivery.objects.get().state == Delivery.State.DELIVERED


def test_without_a_mail_server_nothing_is_sent_later_either(
    mailbox: Mailbox, settings: Settings, alice: Person, deliver: Deliver, now: datetime
) -> None:
    has_signed_in(alice)
    settings.SENDS_EMAIL = False
    write_event(alice, now)
    deliver(now)
    settings.SENDS_EMAIL = True
    assert deliver(now) == 0
    assert mailbox.messages == []


def test_operators_get_mail_of_the_service(
    mailbox: Mailbox, alice: Person, settings: Settings, deliver: Deliver, now: datetime
) -> None:
    has_signed_in(alice)
    User.objects.create_superuser("root", "root@example.com", "a long password")
    data = {"model": "small", "deployment": "gpu-1"}
    outbox.write(now, [NewEvent(EventKind.DEPLOYMENT, None, "small gpu-1", "2026-11-26", "", data)])
    settings.PUBLIC_URL = ""
    deliver(now)
    assert mailbox.receivers == ["root@example.com"]
    [message] = mailbox.messages
    text = message.get_content()
    assert text.startswith("The deployment gpu-1 of small does not answer.")
    assert "because you are an operator" in text
    assert "http" not in text
    prefer(User.objects.get(username="root"), None, {EventKind.DEPLOYMENT: False})
    outbox.write(now, [NewEvent(EventKind.DEPLOYMENT, None, "small gpu-1", "2026-11-27", "", data)])
    assert deliver(now) == 0


def test_a_name_with_a_line_break_adds_no_header(
    mailbox: Mailbox, alice: Person, deliver: Deliver, now: datetime
) -> None:
    has_signed_in(alice)
    organization = alice.project.organization
    type(organization).objects.filter(pk=organization.pk).update(name="Acme\nBcc: eve@example.com")
    write_event(alice, now)
    deliver(now)
    assert mailbox.receivers == []
    assert DeliveryAttempt.objects.get().error == "the mail server: BadHeaderError"
