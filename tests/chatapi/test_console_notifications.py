"""The console's Notifications and Webhooks: what is shown, chosen, sent again, and recorded."""

import base64
import html
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from pytest_django.fixtures import Settings

from accounts.audit.models import AuditEntry
from accounts.models import Organization, Role
from chatapi.notifications import queue, webhooks
from chatapi.notifications.dispatch import dispatch, preferences
from chatapi.notifications.models import Delivery, WebhookEndpoint
from chatapi.pages.webhook_parts import EndpointForm
from tests.admin_pages import client_of, text
from tests.cast import Person, run
from tests.chatapi.console_pages import as_role, url
from usage.books import credit, outbox
from usage.books.credit import Note
from usage.books.outbox import SOFT_LIMIT, NewEvent
from usage.database.clock import database_now
from usage.models import BudgetLimit, Credit, Event, EventKind
from usage.notifications.texts import sentence

SECRET = re.compile(r"whsec_[A-Za-z0-9+/=]+")


def write(person: Person, number: int) -> None:
    """Write events, the newest last."""
    pk, now = person.project.organization_id, database_now()
    for minute in range(number):
        data = {"model": f"model-{minute}"}
        at = now + timedelta(minutes=minute)
        outbox.write(at, [NewEvent(EventKind.MODEL, pk, f"organization/{pk}/{minute}", "today", "", data)])


def test_an_organization_without_events_reads_what_becomes_one(alice: Person) -> None:
    shown = text(client_of(alice.user).get(url(alice, "notifications")))
    assert "Nothing has happened yet." in shown
    assert "An API key expires within 7 days" in shown


def test_events_are_listed_by_pages_and_filtered_by_kind(alice: Person, charlie: Person) -> None:
    write(alice, 51)
    write(charlie, 1)
    BudgetLimit.objects.create(scope="key", scope_id=alice.api_key.pk, period="day", soft_limit_nanodollars=1)
    run(alice)
    client = client_of(alice.user)
    first = client.get(url(alice, "notifications"))
    assert "The model model-50 does not answer." in text(first)
    older = re.search(r'href="([^"]*before=[^"]*)"', first.content.decode())
    assert older is not None
    shown = text(client.get(older[1].replace("&amp;", "&")))
    assert "The model model-0 does not answer." in shown
    assert "model-50" not in shown
    budgets = text(client.get(url(alice, "notifications?kind=budget.reached")))
    assert "100 % of its warning" in budgets
    assert "model-50" not in budgets
    assert client.get(url(alice, "notifications?kind=nothing")).status_code == 400
    assert client.get(url(alice, "notifications?before=nothing")).status_code == 400


def test_what_was_sent_and_what_was_not_is_beside_each_event(alice: Person) -> None:
    now = database_now()
    for _ in range(4):
        row = WebhookEndpoint(organization=alice.project.organization, url="https://example.com")
        webhooks.add(row)
    write(alice, 1)
    dispatch(now)
    states = [Delivery.State.DELIVERED, Delivery.State.DELIVERED, Delivery.State.DUE, Delivery.State.FAILED]
    for delivery, state in zip(Delivery.objects.order_by("pk"), states, strict=True):
        Delivery.objects.filter(pk=delivery.pk).update(state=state)
    shown = client_of(alice.user).get(url(alice, "notifications")).content.decode()
    assert re.findall(r'class="badge (\w+)">([^<]*webhook[^<]*)<', shown) == [
        ("plain", "2 webhooks"), ("warn", "1 webhook not yet"), ("bad", "1 webhook failed"),
    ]  # fmt: skip


def test_amounts_are_rounded_and_periods_have_names(alice: Person) -> None:
    data = {
        "scope": "project", "scope_id": "1",
        "name": "Acme / backend", "period": "month", "period_start": "2026-11-01", "threshold": "80",
        "spent_usd": "8.74741828", "limit_usd": "9.184789194", "is_soft": False,
    }  # fmt: skip
    said = [
        sentence(Event(kind=EventKind.BUDGET, data=data | changed))
        for changed in ({}, {"period": "day", "period_start": "2026-11-02", "threshold": SOFT_LIMIT})
    ]
    assert said == [
        "Acme / backend has spent $8.75 of $9.18 in November 2026: 80 % of its limit.",
        "Acme / backend has spent $8.75 of $9.18 on 2 November 2026, and has reached its warning.",
    ]


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        (
            EventKind.CREDIT,
            {"balance_usd": "-0.5", "threshold_usd": "5"},
            "The prepaid balance is -$0.50, a debt. Its threshold is $5.00.",
        ),
        (
            EventKind.SPEND,
            {"spent_usd": "2500000.123", "usual_usd": "1000000.5"},
            "2 November 2026 has cost $2,500,000.12 so far. The second highest of the 14 days before cost"
            " $1,000,000.50.",
        ),
    ],
)
def test_debts_and_more_than_a_price_can_be_are_amounts_of_sentences(
    kind: EventKind, data: dict[str, str], said: str
) -> None:
    assert sentence(Event(kind=kind, period="2026-11-02", data=data)) == said


@pytest.mark.parametrize(
    ("kind", "data", "page"),
    [
        (EventKind.BUDGET, {"scope": "key", "scope_id": "{key}"}, "keys/{key}"),
        (EventKind.BUDGET, {"scope": "project", "scope_id": "{project}"}, "budgets?project={project}"),
        (EventKind.BUDGET, {"scope": "organization", "scope_id": "1"}, "budgets"),
        (EventKind.KEY, {"key_id": "{key}"}, "keys/{key}"),
        (EventKind.ALERT, {"project_id": "{project}"}, "budgets?project={project}"),
        (EventKind.SPEND, {}, "overview?start=2026-11-03&amp;end=2026-11-03&amp;group=key"),
        (EventKind.FAILURES, {}, "overview?start=2026-11-03&amp;end=2026-11-03&amp;group=error"),
        (
            EventKind.FAILURES,
            {"since": "2026-11-02T22:00:00+00:00"},
            "overview?start=2026-11-02&amp;end=2026-11-03&amp;group=error",
        ),
        (EventKind.MODEL, {}, "usage?model=small"),
        (EventKind.MODEL_UP, {}, "usage?model=small"),
    ],
)
def test_an_event_leads_to_the_page_where_one_looks_next(
    alice: Person, kind: EventKind, data: dict[str, str], page: str
) -> None:
    at = datetime(2026, 11, 2, 23, 30, tzinfo=UTC)
    usual = {
        "name": "backend", "redacted_value": "ck_live_1234…", "expires_at": str(at), "days": 1,
        "model": "small", "spent_usd": "9", "usual_usd": "1", "limit_usd": "10", "failed": 9, "requests": 10,
        "since": str(at),
        "period": "month", "period_start": "2026-11-01", "threshold": "80", "is_soft": False,
        "project": "backend", "threshold_usd": "8",
    }  # fmt: skip
    ids = {"key": alice.api_key.pk, "project": alice.project.pk}
    own = {name: value.format(**ids) for name, value in data.items()}
    acme = alice.project.organization
    Organization.objects.filter(pk=acme.pk).update(time_zone="Europe/Berlin")
    outbox.write(at, [NewEvent(kind, acme.pk, "a subject", "2026-11-03", "", usual | own)])
    client = client_of(alice.user)
    shown = client.get(url(alice, "notifications")).content.decode()
    link = f'<th scope="row" class="wrap full"><a class="calm" href="{url(alice, page.format(**ids))}">'
    assert link in shown
    assert client.get(html.unescape(url(alice, page.format(**ids)))).status_code == 200


def test_each_member_chooses_the_kinds_of_mail(alice: Person, settings: Settings) -> None:
    client = as_role(alice, Role.VIEWER)
    page = url(alice, "notifications")
    assert "sends no mail" in text(client.get(page))
    settings.SENDS_EMAIL = True
    assert "no mail address" in text(client.get(page))
    assert client.post(page, {"kinds": [EventKind.KEY]}).status_code == 302
    acme = alice.project.organization
    assert [kind for kind, is_wanted in preferences(alice.user, acme).items() if is_wanted] == [
        "key.expiring"
    ]
    assert re.findall(r'value="([^"]+)"[^>]* checked', client.get(page).content.decode()) == ["key.expiring"]
    assert client.post(page, {"kinds": ["nothing"]}).status_code == 400


def test_admins_say_when_credit_is_low(alice: Person) -> None:
    admin = as_role(alice, Role.ADMIN)
    page = url(alice, "notifications/low-credit")
    assert "There is no credit yet." in text(admin.post(page, {"low_credit": "5"}, follow=True))
    credit.grant(alice.project.organization, 10**10, Note("a test", "alice"))
    for sent, stored in (("5", 5 * 10**9), ("0", 0), ("", None)):
        assert admin.post(page, {"low_credit": sent}).status_code == 302
        assert Credit.objects.get().low_credit_nanodollars == stored
    refused = admin.post(page, {"low_credit": "-1"})
    assert refused.status_code == 400
    assert 'value="-1"' in refused.content.decode(), "the person need not type it again"
    assert AuditEntry.objects.filter(object_type="usage.credit", actor_id=alice.user.pk).count() == 3


def test_a_secret_is_shown_once_and_recorded_nowhere(alice: Person) -> None:
    client = as_role(alice, Role.ADMIN)
    created = client.post(url(alice, "webhooks/new"), {"url": "https://example.com/hooks", "kinds": []})
    assert created["cache-control"].startswith("max-age=0")
    [secret] = set(SECRET.findall(created.content.decode()))
    endpoint = WebhookEndpoint.objects.get()
    page = url(alice, f"webhooks/{endpoint.pk}")
    assert not SECRET.search(client.get(page).content.decode())
    rotated = client.post(f"{page}/rotate", {"secret_id": secret_id_in(client, page)}).content.decode()
    assert secret not in rotated
    [second] = set(SECRET.findall(rotated))
    entries = str([(row.action, row.changes) for row in AuditEntry.objects.all()])
    assert "https://example.com/hooks" in entries
    assert "encrypted_secret" in entries
    assert secret[6:] not in entries
    assert second[6:] not in entries


def secret_id_in(client: Client, page: str) -> str:
    """Return what the page's form sends of the current secret."""
    [found] = re.findall(r'name="secret_id" value="(\w+)"', client.get(page).content.decode())
    return str(found)


def test_a_rotation_that_is_sent_twice_does_not_end_the_secret_that_receivers_have(alice: Person) -> None:
    client = as_role(alice, Role.ADMIN)
    created = client.post(url(alice, "webhooks/new"), {"url": "https://example.com/hooks"})
    [known] = set(SECRET.findall(created.content.decode()))
    page = url(alice, f"webhooks/{WebhookEndpoint.objects.get().pk}")
    sent = {"secret_id": secret_id_in(client, page)}
    [new] = set(SECRET.findall(client.post(f"{page}/rotate", sent).content.decode()))
    again = client.post(f"{page}/rotate", sent, follow=True)
    assert "Nothing was changed: since this form was opened, the secret was rotated" in text(again)
    signing = webhooks._secrets(WebhookEndpoint.objects.get(), database_now())
    assert [base64.b64encode(each).decode() for each in signing] == [new[6:], known[6:]]


def test_a_saved_url_leaves_the_secret_that_was_made_meanwhile(
    alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rotate(form: EndpointForm) -> None:
        row = WebhookEndpoint.objects.get()
        webhooks.rotate(row, database_now(), webhooks.secret_id(row))
        rotated.append(bytes(row.encrypted_secret))

    rotated: list[bytes] = []
    client = as_role(alice, Role.ADMIN)
    client.post(url(alice, "webhooks/new"), {"url": "https://example.com/hooks"})
    monkeypatch.setattr(EndpointForm, "clean", rotate)
    page = url(alice, f"webhooks/{WebhookEndpoint.objects.get().pk}")
    client.post(page, {"url": "https://example.com/others"})
    row = WebhookEndpoint.objects.get()
    assert (row.url, bytes(row.encrypted_secret)) == ("https://example.com/others", rotated[0])


def test_an_endpoint_that_is_disabled_twice_stays_disabled(alice: Person) -> None:
    client = as_role(alice, Role.ADMIN)
    client.post(url(alice, "webhooks/new"), {"url": "https://example.com/hooks"})
    page = url(alice, f"webhooks/{WebhookEndpoint.objects.get().pk}")
    [is_enabled] = re.findall(r'name="is_enabled" value="(\w+)">Disable', client.get(page).content.decode())
    for _ in range(2):
        client.post(f"{page}/switch", {"is_enabled": is_enabled})
    assert not WebhookEndpoint.objects.get().is_enabled


@pytest.mark.parametrize(
    ("sent", "mistake"),
    [
        ({"url": ""}, "required"),
        ({"url": "http://example.com"}, "Use a URL such as https://"),
        ({"url": "https://example.com", "kinds": ["nothing"]}, "not one of the available choices"),
        ({"url": "https://example.com", "kinds": ["deployment.down"]}, "not one of the available choices"),
    ],
)
def test_a_wrong_endpoint_is_refused_with_the_reason(
    alice: Person, sent: dict[str, Any], mistake: str
) -> None:
    refused = as_role(alice, Role.ADMIN).post(url(alice, "webhooks/new"), sent)
    assert mistake in text(refused, 400)
    assert not WebhookEndpoint.objects.exists()


def test_an_organization_has_ten_endpoints_at_most(alice: Person) -> None:
    client = as_role(alice, Role.ADMIN)
    for _ in range(10):
        client.post(url(alice, "webhooks/new"), {"url": "https://example.com"})
    refused = client.post(url(alice, "webhooks/new"), {"url": "https://example.com"})
    assert "at most 10 endpoints" in text(refused, 400)
    assert "New webhook" not in text(client.get(url(alice, "webhooks")))


def test_the_page_of_an_endpoint_has_its_log_and_sends_again(alice: Person) -> None:
    client = as_role(alice, Role.ADMIN)
    endpoint = WebhookEndpoint(organization=alice.project.organization, url="https://example.com")
    webhooks.add(endpoint)
    page = url(alice, f"webhooks/{endpoint.pk}")
    assert "nothing sent yet" in text(client.get(url(alice, "webhooks")))
    client.post(f"{page}/test")
    assert "waiting already" in text(client.post(f"{page}/test", follow=True))
    now = database_now()
    [delivery] = queue.take(now, 1)
    assert "nothing sent yet" in text(client.get(page))  # it is under way
    queue.record(now, delivery, queue.Attempt(120, 503, "<b>busy</b>", "status 503"))
    shown = client.get(page).content.decode()
    assert "after 120 ms" in shown
    assert "1 attempt, the last: status 503" in shown
    assert {"failing", "retrying"} <= set(re.findall(r'class="badge \w+">(\w+)<', shown))
    assert "&lt;b&gt;busy&lt;/b&gt;" in shown
    assert "failing" in text(client.get(url(alice, "webhooks")))
    Delivery.objects.update(state=Delivery.State.FAILED)
    assert "given up after three days" in text(client.get(page))
    client.post(f"{page}/switch", {"is_enabled": "no"})
    assert "It gets no events" in text(client.get(page))
    client.post(f"{page}/switch", {"is_enabled": "yes"})
    client.post(f"{page}/deliveries/{delivery.pk}/replay")
    row = Delivery.objects.get()
    assert (row.state, row.attempts) == (Delivery.State.DUE, 0)
    [delivery] = queue.take(database_now(), 1)
    queue.record(now, delivery, queue.Attempt(9, 204))
    assert "working" in text(client.get(url(alice, "webhooks")))
    assert client.post(f"{page}/deliveries/999/replay").status_code == 404


def test_an_endpoint_is_changed_disabled_and_removed(alice: Person) -> None:
    client = as_role(alice, Role.ADMIN)
    endpoint = WebhookEndpoint(organization=alice.project.organization, url="https://example.com")
    webhooks.add(endpoint)
    page = url(alice, f"webhooks/{endpoint.pk}")
    client.post(page, {"url": "https://example.com/new", "kinds": ["budget.reached"]})
    row = WebhookEndpoint.objects.get()
    assert (row.url, row.kinds, row.encrypted_secret) == (
        "https://example.com/new", ["budget.reached"], endpoint.encrypted_secret,
    )  # fmt: skip
    assert client.post(page, {"url": "http://example.com"}).status_code == 400
    for is_enabled in (False, True):
        client.post(f"{page}/switch", {"is_enabled": "yes" if is_enabled else "no"})
        assert WebhookEndpoint.objects.get().is_enabled is is_enabled
    client.post(f"{page}/remove")
    assert not WebhookEndpoint.objects.exists()
    actions = AuditEntry.objects.filter(object_type="chatapi.webhookendpoint").values_list(
        "action", flat=True
    )
    assert [*actions.order_by("pk")][-4:] == ["changed", "changed", "changed", "deleted"]
