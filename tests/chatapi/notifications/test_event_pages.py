"""The operator's pages of events say who got each, and show no organization's secrets."""

from datetime import datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from chatapi.notifications.models import Delivery, DeliveryAttempt, WebhookEndpoint
from chatapi.pages import event_pages
from tests.admin_pages import client_of, text
from tests.cast import Person
from tests.chatapi.notifications.conftest import has_signed_in, write_event
from tests.chatapi.test_page_weight import MAX_BYTES, MAX_QUERIES
from usage.database.clock import database_now
from usage.models import Event


@pytest.fixture
def now(db: None) -> datetime:
    return database_now()


@pytest.fixture
def event(alice: Person, now: datetime) -> Event:
    has_signed_in(alice)
    event = write_event(alice, now)
    Event.objects.update(dispatched_at=now)
    return event


def endpoint_of(person: Person) -> WebhookEndpoint:
    return WebhookEndpoint.objects.create(
        organization=person.project.organization,
        url="https://hooks.example.com/services/T00/secret-in-the-path?token=secret-in-the-query",
        encrypted_secret=b"secret",
    )


def deliver(event: Event, now: datetime, state: str, error: str = "", **to: object) -> Delivery:
    row = Delivery.objects.create(
        event=event, state=state, begun_at=now, due_at=now + timedelta(hours=8), attempts=2, **to
    )
    for each in ("the first error", error):
        DeliveryAttempt.objects.create(
            delivery=row, at=now, duration_ms=1, error=each, answer="secret-in-the-answer"
        )
    return row


def page_of(client: Client, event: Event) -> str:
    return text(client.get(reverse("admin:usage_event_change", args=[event.pk])))


def test_an_operator_sees_who_got_an_event_and_why_others_did_not(
    root: Client, alice: Person, bob: Person, event: Event, now: datetime
) -> None:
    has_signed_in(bob)
    endpoint = endpoint_of(alice)
    deliver(event, now, "delivered", user=alice.user)
    deliver(event, now, "failed", "the mail server: SMTPDataError 451", user=bob.user)
    deliver(event, now, "due", "status 500", endpoint=endpoint)
    page = page_of(root, event)
    assert "mail to alice (alice@example.com) delivered 2" in page
    assert "mail to bob (bob@example.com) given up after three days 2" in page
    assert "the mail server: SMTPDataError 451" in page
    assert "webhook at hooks.example.com retrying 2" in page
    assert f"status 500 {now + timedelta(hours=8):%Y-%m-%d %H:%M:%S}" in page
    assert page.index("bob@") < page.index("hooks.example.com") < page.index("alice@")
    assert "the first error" not in page
    listed = text(root.get(reverse("admin:usage_event_changelist")))
    assert "1 failed, 1 not yet, 1 delivered" in listed
    WebhookEndpoint.objects.update(is_enabled=False)
    assert "waits: endpoint is disabled" in page_of(root, event)


def test_no_page_of_the_admin_shows_a_secret_of_an_endpoint(
    root: Client, alice: Person, event: Event, now: datetime
) -> None:
    deliver(event, now, "failed", "status 500", endpoint=endpoint_of(alice))
    for url in (
        reverse("admin:usage_event_change", args=[event.pk]),
        reverse("admin:usage_event_changelist"),
    ):
        assert b"secret-in" not in root.get(url).content


def test_people_of_an_organization_see_deliveries_in_the_console_only(
    alice: Person, bob: Person, event: Event, now: datetime
) -> None:
    deliver(event, now, "failed", "status 500", endpoint=endpoint_of(alice))
    page = page_of(client_of(alice.user), event)
    assert "Unusual spend" in page
    assert "hooks.example.com" not in page


def test_an_event_says_that_nobody_gets_it_or_not_yet(root: Client, event: Event) -> None:
    assert "Nobody: there was no endpoint for it" in page_of(root, event)
    assert "to nobody" in text(root.get(reverse("admin:usage_event_changelist")))
    Event.objects.update(dispatched_at=None)
    assert "Not sent yet" in page_of(root, event)


def test_the_list_does_not_say_of_old_events_that_nobody_got_them(
    root: Client, event: Event, now: datetime
) -> None:
    Event.objects.update(dispatched_at=now - timedelta(days=31))
    listed = text(root.get(reverse("admin:usage_event_changelist")))
    assert "to nobody" not in listed
    assert "no longer known" in listed


def test_an_event_for_very_many_people_has_a_small_page(
    root: Client, alice: Person, event: Event, now: datetime
) -> None:
    for number in range(event_pages.MAX_SHOWN + 5):
        person = User.objects.create_user(f"person {number}".ljust(140, "x"), email="x" * 200)
        deliver(event, now, "failed", "e" * 200, user=person)
    with CaptureQueriesContext(connection) as queries:
        response = root.get(reverse("admin:usage_event_change", args=[event.pk]))
    assert len(queries) <= MAX_QUERIES
    assert len(response.content) <= MAX_BYTES
    assert "There are more" in text(response)
