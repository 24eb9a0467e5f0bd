"""`manage.py doctor` about mail and webhooks: it connects to the mail server, and sends nothing."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from pytest_django.fixtures import Settings

from accounts import memberships
from accounts.models import Member, Role
from chatapi.doctor.finding import Finding, Level
from chatapi.doctor.notifications import check_alerts, check_deliveries, check_mail
from chatapi.notifications import queue, webhooks
from chatapi.notifications.dispatch import dispatch
from chatapi.notifications.models import Delivery, WebhookEndpoint
from tests.cast import Person
from tests.installation import free_port
from tests.mail_server import PASSWORD, USER, serving, use
from usage.books import outbox
from usage.books.outbox import NewEvent
from usage.database.clock import database_now
from usage.models import EventKind, SpendAlert

HOUR = timedelta(hours=1)
OK = Level.OK


def found(findings: Iterator[Finding]) -> list[tuple[Level, str]]:
    rows = list(findings)
    assert all(bool(row.remedy) == (row.level is not OK) for row in rows)
    return [(row.level, row.text) for row in rows]


# ---- mail


def test_no_mail_server_is_fine(settings: Settings) -> None:
    settings.SENDS_EMAIL = False
    [(level, text)] = found(check_mail())
    assert level is OK
    assert text.startswith("Not set up")


def test_a_server_that_is_right_is_sent_nothing(settings: Settings) -> None:
    with serving() as mailbox:
        use(settings, f"smtp://127.0.0.1:{mailbox.port}")
        [(level, text)] = found(check_mail())
    assert level is OK
    assert text == f"127.0.0.1:{mailbox.port} answers; mail is from Chat API <chatapi@example.com>."
    assert mailbox.commands == 0


def test_mail_that_is_printed_and_links_without_an_address_are_warnings(settings: Settings) -> None:
    use(settings, "console:")
    settings.PUBLIC_URL = ""
    (printed, _), (links, text) = found(check_mail())
    assert printed is links is Level.WARNING
    assert "CHATAPI_PUBLIC_URL is empty" in text


SIGNS_IN = f"{USER.replace('@', '%40')}:{PASSWORD.replace('%', '%25').replace('/', '%2F')}@"


# The server's TLS, the URL, whether the authority is known, and what is found.
CASES = [
    ("starttls", f"smtp://{SIGNS_IN}{{}}?tls=starttls", True, "answers over TLS and takes the password"),
    ("smtps", f"smtps://{SIGNS_IN}{{}}", True, "answers over TLS and takes the password"),
    ("starttls", f"smtp://{SIGNS_IN}{{}}?tls=starttls", False, "is not trusted: self-signed certificate"),
    ("smtps", f"smtps://{SIGNS_IN}{{}}", False, "is not trusted: self-signed certificate"),
    ("starttls", f"smtps://{SIGNS_IN}{{}}", True, "does not speak TLS as expected"),
    ("smtps", "smtps://me:hunter2@{}", True, "refuses the user or the password (535)"),
    ("", f"smtp://{SIGNS_IN}{{}}?tls=starttls", True, "offers no TLS by STARTTLS"),
]


@pytest.mark.parametrize("case", CASES)
def test_tls_and_the_password_are_tried(
    case: tuple[str, str, bool, str],
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    certificate: Path,
) -> None:
    tls, url, is_trusted, text = case
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serving(tls=tls, certificate=certificate if tls else None) as mailbox:
        use(settings, url.format(f"127.0.0.1:{mailbox.port}"))
        [(level, sentence)] = found(check_mail())
    assert (level is OK) == text.startswith("answers")
    assert text in sentence
    assert "hunter2" not in sentence
    assert mailbox.commands == 0


def test_plain_text_to_another_machine_is_a_warning(settings: Settings) -> None:
    with serving("127.0.0.2") as mailbox:
        use(settings, f"smtp://127.0.0.2:{mailbox.port}")
        [(level, text)] = found(check_mail())
    assert level is Level.WARNING
    assert "in plain text" in text


def test_a_server_that_is_away_is_named(settings: Settings) -> None:
    port = free_port()
    use(settings, f"smtp://127.0.0.1:{port}")
    [(level, text)] = found(check_mail())
    assert (level, text) == (Level.WARNING, f"127.0.0.1:{port} does not answer: Connection refused.")


# ---- deliveries


@pytest.fixture
def now(db: None) -> datetime:
    return database_now()


def event(person: Person, at: datetime) -> None:
    pk = person.project.organization_id
    data = {"spent_usd": "8.1", "usual_usd": "4"}
    outbox.write(at, [NewEvent(EventKind.SPEND, pk, f"organization/{pk}", str(at), "", data)])


def endpoint(person: Person, path: str) -> WebhookEndpoint:
    row = WebhookEndpoint(organization=person.project.organization, url=f"https://hooks.example.com/{path}")
    webhooks.add(row)
    return row


def attempt(at: datetime, error: str) -> None:
    for delivery in queue.take(at, 10):
        queue.record(at, delivery, queue.Attempt(1, error=error))


def test_nothing_set_up_is_fine(now: datetime) -> None:
    assert found(check_deliveries()) == [
        (OK, "None is set up; organizations add them in the console, and operators in the admin.")
    ]


def test_an_event_that_nobody_delivers_is_found(alice: Person, now: datetime) -> None:
    event(alice, now - HOUR)
    (level, text), _ = found(check_deliveries())
    assert level is Level.WARNING
    assert text == "The oldest waits for 1 h: no reaper delivers."


def test_an_alert_that_nobody_gets_is_named(alice: Person, bob: Person, settings: Settings) -> None:
    settings.SENDS_EMAIL = True
    for person in (alice, bob):
        User.objects.filter(pk=person.user.pk).update(
            email=f"{person.user.username}@acme.example", last_login=database_now()
        )
    alert = SpendAlert.objects.create(
        organization=bob.project.organization,
        threshold_nanodollars=5_000_000_000,
        recipients=[bob.user.pk],
    )
    SpendAlert.objects.create(
        organization=bob.project.organization, threshold_nanodollars=1, recipients=[alice.user.pk]
    )
    assert found(check_alerts()) == []
    memberships.change_place(Member.objects.get(user=bob.user), Role.VIEWER, [bob.project])
    assert found(check_alerts()) == [(Level.WARNING, f"Nobody gets the spend alert of {alert}.")]
    settings.SENDS_EMAIL = False
    assert found(check_alerts()) == []


def test_endpoints_that_fail_are_named_without_their_paths(alice: Person, now: datetime) -> None:
    endpoint(alice, "a-secret")
    event(alice, now - 3 * HOUR)
    dispatch(now - 3 * HOUR)
    attempt(now - 2 * HOUR, "status 503")
    assert found(check_deliveries()) == [
        (Level.WARNING, "hooks.example.com of Acme failed 2 h ago: status 503.")
    ]
    attempt(now, "")
    assert found(check_deliveries()) == [(OK, "1 in order.")]
    WebhookEndpoint.objects.update(is_enabled=False)
    assert found(check_deliveries()) == [(OK, "0 in order, 1 disabled.")]


def test_an_endpoint_of_the_service_that_fails_is_named(now: datetime) -> None:
    row = WebhookEndpoint(url="https://ops.example.com/a-secret")
    webhooks.add(row)
    queue.send_test(now - HOUR, row)
    attempt(now - HOUR, "status 503")
    [finding] = check_deliveries()
    assert finding.text == "ops.example.com of the service failed 1 h ago: status 503."
    assert finding.remedy.startswith("The admin's page Webhooks")


def test_mail_that_is_tried_in_vain_and_mail_that_was_given_up_are_found(
    alice: Person, settings: Settings, now: datetime
) -> None:
    settings.SENDS_EMAIL = True
    User.objects.filter(pk=alice.user.pk).update(email="alice@example.com", last_login=now)
    event(alice, now - 2 * HOUR)
    dispatch(now - 2 * HOUR)
    attempt(now - 2 * HOUR, "the mail server: TimeoutError")
    (level, text), _ = found(check_deliveries())
    assert level is Level.WARNING
    error = "the mail server: TimeoutError"
    assert text == f"1 mail could not be sent yet; the oldest has been retried for 2 h: {error}."
    Delivery.objects.update(state=Delivery.State.FAILED, begun_at=now - queue.GIVE_UP_AFTER - HOUR)
    (level, text), _ = found(check_deliveries())
    assert level is Level.WARNING
    assert text == "1 mail was given up in the last day, after three days of attempts."
