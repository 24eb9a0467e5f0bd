"""Endpoints of the service: they get its events and no organization's, and operators manage them."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from pytest_django.fixtures import Settings

from accounts.audit.models import AuditEntry
from accounts.models import Member, Role
from chatapi.notifications import queue, webhooks
from chatapi.notifications.dispatch import dispatch
from chatapi.notifications.models import Delivery, DeliveryAttempt, WebhookEndpoint
from chatapi.notifications.queue import Attempt
from tests import admin_pages
from tests.admin_pages import client_of, text
from tests.cast import Person
from tests.chatapi.notifications.conftest import Deliver, endpoint_of, write_event
from tests.chatapi.test_page_weight import MAX_BYTES, MAX_QUERIES
from tests.webhook_receiver import Receiver, content
from usage.books import outbox
from usage.books.outbox import NewEvent
from usage.database.clock import database_now
from usage.models import Event, EventKind
from usage.notifications import outages

SECRET = re.compile(r"whsec_[\w+/=]{44}")
LIST, NEW = "/admin/chatapi/webhookendpoint/", "/admin/chatapi/webhookendpoint/add/"
GOOD = {"url": "https://ops.example.com/hooks", "is_enabled": "on"}


@pytest.fixture
def now(db: None) -> datetime:
    return database_now()


def service_endpoint(url: str = "https://ops.example.com", *kinds: str) -> tuple[WebhookEndpoint, str]:
    """Return a new endpoint of the service, and its secret."""
    endpoint = WebhookEndpoint(url=url, kinds=list(kinds))
    secret = webhooks.add(endpoint)
    assert secret is not None
    return endpoint, secret


def write_failed_check(now: datetime) -> Event:
    data = {"differences": 2, "first_difference": "an entry is missing"}
    outbox.write(now, [NewEvent(EventKind.LEDGER, None, "ledger", str(now), "", data)])
    return Event.objects.get(kind=EventKind.LEDGER, period=str(now))


# ---- who gets which events


@pytest.mark.django_db(transaction=True)
def test_an_outage_of_a_deployment_is_a_signed_message_to_the_service_alone(
    alice: Person, receiver: Receiver, deliver: Deliver
) -> None:
    now = database_now()
    _, secret = service_endpoint(receiver.url)
    endpoint_of(alice, receiver.url + "/acme")
    outages.write(now, [outages.changes(now, ["small sandbox"], [])])
    assert deliver(now) == 1
    [message] = receiver.messages
    assert message.verified(secret) == {
        "type": "deployment.down",
        "timestamp": now.isoformat(),
        "data": {"model": "small", "deployment": "sandbox", "since": now.isoformat()},
    }
    assert message.id == Event.objects.get().webhook_id
    assert Delivery.objects.get().state == Delivery.State.DELIVERED


@pytest.mark.django_db(transaction=True)
def test_an_event_of_an_organization_never_goes_to_the_service(
    alice: Person, receiver: Receiver, deliver: Deliver
) -> None:
    now = database_now()
    service_endpoint(receiver.url + "/service")
    _, secret = endpoint_of(alice, receiver.url)
    write_event(alice, now)
    write_event(alice, now, EventKind.MODEL)
    write_failed_check(now)
    assert deliver(now) == 3
    of_acme = [each for each in receiver.messages if "organization_id" in content(each)["data"]]
    assert {each.verified(secret)["type"] for each in of_acme} == {"spend.unusual", "model.down"}
    of_service = [each for each in receiver.messages if each not in of_acme]
    assert [content(each)["type"] for each in of_service] == ["ledger_check.failed"]


def test_an_endpoint_of_the_service_gets_its_kinds_while_it_is_enabled(now: datetime) -> None:
    service_endpoint("https://down.example.com", EventKind.DEPLOYMENT)
    every, _ = service_endpoint("https://all.example.com")
    disabled, _ = service_endpoint("https://off.example.com")
    WebhookEndpoint.objects.filter(pk=disabled.pk).update(is_enabled=False)
    write_failed_check(now)
    dispatch(now)
    assert Delivery.objects.get().endpoint == every


@pytest.mark.django_db(transaction=True)
def test_an_endpoint_of_the_service_reaches_no_private_address(
    settings: Settings, receiver: Receiver, deliver: Deliver
) -> None:
    settings.WEBHOOK_PRIVATE_ADDRESSES = False
    service_endpoint(receiver.url.replace("http:", "https:"))
    write_failed_check(now := database_now())
    assert deliver(now) == 1
    assert "[not a public address]" in DeliveryAttempt.objects.get().error
    assert receiver.messages == []


# ---- the pages


def test_an_operator_adds_an_endpoint_and_sees_its_secret_once(root: Client) -> None:
    created = root.post(NEW, {**GOOD, "kinds": ["deployment.down"]})
    assert "no-store" in created["cache-control"]
    [secret] = set(SECRET.findall(created.content.decode()))
    row = WebhookEndpoint.objects.get()
    assert (row.organization, row.url, row.kinds) == (None, GOOD["url"], ["deployment.down"])
    listed = root.get(LIST)
    assert "nothing sent yet" in text(listed)
    for shown in (listed, root.get(admin_pages.page(row))):
        assert not SECRET.search(shown.content.decode())
    sent = {"secret_id": webhooks.secret_id(row)}
    rotated = root.post(reverse("admin:webhook_rotate", args=[row.pk]), sent)
    assert "no-store" in rotated["cache-control"]
    [second] = set(SECRET.findall(rotated.content.decode()))
    assert second != secret
    assert "messages have a signature by the old secret, too" in text(rotated)
    again = root.post(reverse("admin:webhook_rotate", args=[row.pk]), sent, follow=True)
    assert "Nothing was changed: since this form was opened, the secret was rotated" in text(again)
    entries = AuditEntry.objects.filter(object_type="chatapi.webhookendpoint").order_by("pk")
    # The secret is encrypted for the row, which is saved before.
    assert [each.action for each in entries] == ["created", "changed", "changed"]
    assert {each.organization_id for each in entries} == {None}
    recorded = str([each.changes for each in entries])
    assert "encrypted_secret" in recorded
    assert secret[6:] not in recorded
    assert second[6:] not in recorded


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        ({"url": ""}, "required"),
        ({"url": "http://example.com"}, "Use a URL such as https://"),
        ({"kinds": ["budget.reached"]}, "not one of the available choices"),
    ],
)
def test_a_wrong_endpoint_is_refused_with_the_reason(
    root: Client, change: dict[str, Any], mistake: str
) -> None:
    assert mistake in text(root.post(NEW, {**GOOD, **change}))
    assert not WebhookEndpoint.objects.exists()


def test_the_service_has_ten_endpoints_at_most(root: Client, alice: Person) -> None:
    endpoint_of(alice, "https://example.com")
    for _ in range(10):
        root.post(NEW, GOOD)
    assert "at most 10 endpoints" in text(root.post(NEW, GOOD))
    own = WebhookEndpoint.objects.filter(organization=None)
    assert own.count() == 10
    # One that is full is changed all the same.
    row = own[0]
    assert root.post(admin_pages.page(row), {**GOOD, "url": "https://new.example.com"}).status_code == 302
    endpoint_of(alice, "https://example.com")


def test_the_last_place_goes_to_one_of_two_additions_at_once(transactional_db: None) -> None:
    for _ in range(webhooks.MAX_ENDPOINTS - 1):
        service_endpoint()

    def add_one_more() -> str | None:
        try:
            return webhooks.add(WebhookEndpoint(url="https://ops.example.com"))
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as others:
        with transaction.atomic():
            service_endpoint()
            second = others.submit(add_one_more)
            wait([second], timeout=0.2)
        assert second.result() is None
    assert WebhookEndpoint.objects.count() == webhooks.MAX_ENDPOINTS


def test_the_page_of_an_endpoint_has_its_log_and_sends_again(root: Client) -> None:
    endpoint, _ = service_endpoint()
    page = admin_pages.page(endpoint)
    assert "Nothing was sent to it yet" in text(root.get(page))
    send = reverse("admin:webhook_test", args=[endpoint.pk])
    assert "on its way" in text(root.post(send, follow=True))
    assert "waiting already" in text(root.post(send, follow=True))
    now = database_now()
    [delivery] = queue.take(now, 1)
    queue.record(now, delivery, Attempt(120, 503, "<b>busy</b>", "status 503"))
    shown = root.get(page).content.decode()
    assert "after 120 ms" in shown
    assert "1 attempt, the last: status 503" in shown
    assert "&lt;b&gt;busy&lt;/b&gt;" in shown
    assert "failing" in text(root.get(LIST))
    Delivery.objects.update(state=Delivery.State.FAILED)
    assert "given up after three days" in text(root.get(page))
    replay = reverse("admin:webhook_replay", args=[endpoint.pk, delivery.pk])
    assert "with the same id" in text(root.post(replay, follow=True))
    row = Delivery.objects.get()
    assert (row.state, row.attempts) == (Delivery.State.DUE, 0)
    other, _ = service_endpoint()
    assert root.post(reverse("admin:webhook_replay", args=[other.pk, delivery.pk])).status_code == 404


def test_an_endpoint_is_changed_disabled_and_removed(root: Client, now: datetime) -> None:
    endpoint, _ = service_endpoint()
    queue.send_test(now, endpoint)
    page = admin_pages.page(endpoint)
    root.post(page, {"url": "https://new.example.com", "kinds": ["ledger_check.failed"]})
    row = WebhookEndpoint.objects.get()
    assert (row.url, row.kinds, row.is_enabled, bytes(row.encrypted_secret)) == (
        "https://new.example.com", ["ledger_check.failed"], False, endpoint.encrypted_secret,
    )  # fmt: skip
    assert "disabled" in text(root.get(LIST))
    assert root.post(admin_pages.page(row, "delete"), {"post": "yes"}).status_code == 302
    assert not WebhookEndpoint.objects.exists()
    assert not Delivery.objects.exists()
    actions = AuditEntry.objects.filter(object_type="chatapi.webhookendpoint").order_by("pk")
    assert [*actions.values_list("action", flat=True)] == ["changed", "deleted"]


def test_a_long_log_is_small_pages(root: Client, now: datetime) -> None:
    endpoint, _ = service_endpoint()
    for number in range(15):
        queue.send_test(now + timedelta(seconds=number), endpoint)
        [delivery] = queue.take(now + timedelta(minutes=1), 1)
        for _ in range(18):
            DeliveryAttempt.objects.create(
                delivery=delivery, at=now, duration_ms=1, status=503, answer="x" * 120, error="status 503"
            )
        Delivery.objects.filter(pk=delivery.pk).update(state=Delivery.State.FAILED)
    for page in (admin_pages.page(endpoint), LIST, admin_pages.page(endpoint, "delete")):
        with CaptureQueriesContext(connection) as asked:
            response = root.get(page)
        assert len(asked) <= MAX_QUERIES
        assert len(response.content) <= MAX_BYTES
    first = root.get(admin_pages.page(endpoint)).content.decode()
    assert first.count(">Replay<span") == 10
    [older] = re.findall(r'href="([^"]*before=\d+)"', first)
    assert root.get(older).content.decode().count(">Replay<span") == 5


# ---- who may do what


def test_an_organizations_endpoint_is_in_no_page_of_the_admin(
    root: Client, alice: Person, now: datetime
) -> None:
    endpoint, _ = endpoint_of(alice, "https://acme.example.com")
    delivery = queue.send_test(now, endpoint)
    assert delivery is not None
    assert "acme.example.com" not in text(root.get(LIST))
    assert root.get(admin_pages.page(endpoint)).status_code == 404
    assert root.post(admin_pages.page(endpoint), GOOD).status_code == 404
    assert root.post(admin_pages.page(endpoint, "delete"), {"post": "yes"}).status_code == 404
    for name, args in (("rotate", []), ("test", []), ("replay", [delivery.pk])):
        assert root.post(reverse(f"admin:webhook_{name}", args=[endpoint.pk, *args])).status_code == 404
    row = WebhookEndpoint.objects.get()
    assert (row.url, row.previous_expires_at) == ("https://acme.example.com", None)


def test_an_endpoint_of_the_service_is_in_no_organizations_console(
    root: Client, alice: Person, now: datetime
) -> None:
    endpoint, _ = service_endpoint()
    delivery = queue.send_test(now, endpoint)
    assert delivery is not None
    Member.objects.filter(user=alice.user).update(role=Role.OWNER)
    console = f"/console/{alice.project.organization_id}/webhooks"
    for client in (client_of(alice.user), root):
        assert "ops.example.com" not in text(client.get(console))
        assert client.get(f"{console}/{endpoint.pk}").status_code == 404
        for act in ("rotate", "switch", "test", "remove", f"deliveries/{delivery.pk}/replay"):
            assert client.post(f"{console}/{endpoint.pk}/{act}").status_code == 404


def test_owners_of_organizations_neither_see_nor_change_endpoints_of_the_service(alice: Person) -> None:
    endpoint, _ = service_endpoint()
    Member.objects.filter(user=alice.user).update(role=Role.OWNER)
    client = client_of(alice.user)
    for path in (LIST, NEW, admin_pages.page(endpoint)):
        assert client.get(path).status_code == 403
    assert client.post(reverse("admin:webhook_rotate", args=[endpoint.pk])).status_code == 403
    assert LIST not in client.get("/admin/").content.decode()


def test_staff_do_what_their_permissions_allow(root: Client) -> None:
    endpoint, _ = service_endpoint()
    clerk = User.objects.create_user("clerk", is_staff=True)
    clerk.user_permissions.set(
        Permission.objects.filter(codename__in=["view_webhookendpoint", "view_hourlyusage"])
    )
    client = client_of(clerk)
    page = admin_pages.page(endpoint)
    shown = client.get(page).content.decode()
    assert "ops.example.com" in shown
    assert "Rotate the secret" not in shown
    assert LIST in client.get("/admin/").content.decode()
    assert LIST in root.get("/admin/").content.decode()
    assert client.post(page, GOOD).status_code == 403
    for name in ("rotate", "test"):
        assert client.post(reverse(f"admin:webhook_{name}", args=[endpoint.pk])).status_code == 403


def test_the_audit_log_links_to_the_page_of_each_endpoint(root: Client, alice: Person) -> None:
    root.post(NEW, GOOD)
    own = WebhookEndpoint.objects.get()
    console = f"/console/{alice.project.organization_id}/webhooks"
    root.post(f"{console}/new", {"url": "https://acme.example.com"})
    theirs = WebhookEndpoint.objects.exclude(pk=own.pk).get()
    logged = root.get("/admin/audit/?type=chatapi.webhookendpoint").content.decode()
    assert f'href="{admin_pages.page(own)}"' in logged
    assert f'href="{console}/{theirs.pk}"' in logged
    assert f'href="{admin_pages.page(theirs)}"' not in logged


# ---- the migration


def test_the_older_schema_keeps_the_endpoints_of_organizations(
    migrate: Callable[..., None], alice: Person
) -> None:
    theirs, _ = endpoint_of(alice, "https://example.com")
    own, _ = service_endpoint()
    for each in (theirs, own):
        queue.send_test(database_now(), each)
    migrate("chatapi", "0014")
    assert WebhookEndpoint.objects.get() == theirs
    assert Delivery.objects.get().endpoint == theirs
    migrate()
    service_endpoint()
