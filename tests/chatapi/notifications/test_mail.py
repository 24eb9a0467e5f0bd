"""Mail: a real SMTP server gets one message for each event and person that wants it."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test.utils import override_script_prefix
from pytest_django.fixtures import Settings

from accounts.models import Member
from chatapi.notifications import backlog, mail, queue, webhooks
from chatapi.notifications.dispatch import dispatch, prefer, preferences
from chatapi.notifications.models import Delivery, DeliveryAttempt
from chatapi.worker.reaper import notifying
from tests.admin_pages import client_of, text
from tests.cast import Person
from tests.chatapi.notifications.conftest import Deliver, endpoint_of, has_signed_in, write_event
from tests.installation import free_port
from tests.mail_server import Mailbox, serving, use
from tests.webhook_receiver import Receiver
from usage.books import outbox
from usage.books.outbox import SOFT_LIMIT, NewEvent
from usage.database.clock import database_now
from usage.database.group_commit import GroupCommit
from usage.models import CHOSEN_KINDS, TENANTS_KINDS, Event, EventKind, SpendAlert
from usage.notifications import texts


@pytest.fixture
def mailbox(settings: Settings, transactional_db: None) -> Iterator[Mailbox]:
    """Run an SMTP server, which the settings name."""
    with serving() as found:
        use(settings, f"smtp://127.0.0.1:{found.port}")
        yield found


@pytest.fixture
def now(transactional_db: None) -> datetime:
    return database_now()


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
    content = message.get_content()
    assert content.startswith(f"{now.day} {now:%B %Y} has cost $8.10 so far.")
    home = f"https://chat.example.com/console/{alice.project.organization_id}"
    day = now.date()
    assert f"See {home}/overview?start={day}&end={day}&group=key" in content.splitlines()
    assert "Days, weeks and months follow the time zone UTC." in content
    assert "You get this mail because you are a member of Acme" in content
    assert f"{home}/notifications" in content
    assert Delivery.objects.get().state == Delivery.State.DELIVERED


def test_links_of_mail_have_the_prefix_of_the_service(
    mailbox: Mailbox, alice: Person, deliver: Deliver, now: datetime
) -> None:
    has_signed_in(alice)
    write_event(alice, now)
    with override_script_prefix("/llm/"):  # as `CHATAPI_PATH_PREFIX` sets it at the start
        deliver(now)
    [message] = mailbox.messages
    assert "https://chat.example.com/llm/console/" in message.get_content()


def test_mail_of_a_kind_that_only_a_newer_release_knows_is_sent(
    mailbox: Mailbox, alice: Person, deliver: Deliver, now: datetime
) -> None:
    has_signed_in(alice)
    write_event(alice, now)
    Event.objects.update(kind="key.stolen")
    deliver(now)
    [message] = mailbox.messages
    assert message["subject"] == "key.stolen: Acme"
    assert message.get_content().splitlines()[:3] == ["key.stolen.", "", "--"]


def test_each_person_chooses_the_kinds(
    mailbox: Mailbox, alice: Person, bob: Person, deliver: Deliver, now: datetime
) -> None:
    has_signed_in(alice, bob)
    acme = alice.project.organization
    assert preferences(alice.user, acme) == dict.fromkeys(CHOSEN_KINDS, True)
    assert preferences(bob.user, acme) == dict.fromkeys(CHOSEN_KINDS, False)
    prefer(alice.user, acme, {EventKind.SPEND: False})
    prefer(bob.user, acme, {EventKind.SPEND: True})
    write_event(alice, now)
    deliver(now)
    assert mailbox.receivers == ["bob@example.com"]


def test_a_choice_for_an_outage_counts_for_its_end(
    mailbox: Mailbox, alice: Person, deliver: Deliver, now: datetime
) -> None:
    has_signed_in(alice)
    acme = alice.project.organization
    prefer(alice.user, acme, {EventKind.MODEL: False})
    assert not preferences(alice.user, acme)[EventKind.MODEL_UP]
    write_event(alice, now, EventKind.MODEL_UP)
    deliver(now)
    assert mailbox.receivers == []
    prefer(alice.user, acme, {EventKind.MODEL_UP: True})
    write_event(alice, now + timedelta(hours=1), EventKind.MODEL_UP)
    deliver(now)
    assert mailbox.receivers == ["alice@example.com"]


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


def test_a_server_that_hangs_keeps_no_other_work_of_the_process_waiting(
    settings: Settings, alice: Person, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SENDS_EMAIL = True
    has_signed_in(alice)
    for number in range(3):
        write_event(alice, now - timedelta(seconds=number))
    begun, is_over = threading.Semaphore(0), threading.Event()

    def hang(*_: Any) -> queue.Attempt:
        begun.release()
        is_over.wait(20)
        return queue.Attempt(0)

    monkeypatch.setattr(mail, "send", hang)

    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        commits = GroupCommit()
        await commits.read(dispatch, now)
        async with webhooks.new_session() as session:
            delivering = asyncio.create_task(notifying.deliver(commits, session, now))
            try:
                async with asyncio.timeout(5):
                    for _ in range(2):
                        while not begun.acquire(blocking=False):
                            await asyncio.sleep(0.01)
                    await asyncio.to_thread(lambda: None)
            finally:
                is_over.set()
                await delivering
                await commits.close()

    asyncio.run(run())


def leave(person: Person) -> None:
    Member.objects.filter(user=person.user).delete()


def switch_off(person: Person) -> None:
    prefer(person.user, person.project.organization, {EventKind.SPEND: False})


@pytest.mark.parametrize("change", [leave, switch_off])
def test_mail_that_waits_for_the_server_goes_to_nobody_who_would_not_get_it_any_more(
    mailbox: Mailbox, alice: Person, deliver: Deliver, now: datetime, change: Callable[[Person], None]
) -> None:
    has_signed_in(alice)
    write_event(alice, now)
    mailbox.answer = "451 later"
    deliver(now)
    mailbox.answer = "250 OK"
    change(alice)
    deliver(now + timedelta(minutes=1))
    assert mailbox.messages == []
    assert Delivery.objects.count() == 0


def test_an_address_that_bounces_keeps_no_other_member_waiting_and_is_given_up(
    mailbox: Mailbox, alice: Person, bob: Person, deliver: Deliver, now: datetime
) -> None:
    Member.objects.update(role="owner")
    has_signed_in(alice, bob)
    mailbox.refused = {"alice@example.com"}
    write_event(alice, now)
    assert deliver(now) == 2
    assert mailbox.receivers == ["bob@example.com"]
    assert_given_up(alice, deliver, now, "SMTPRecipientsRefused 550")
    assert mailbox.receivers == ["bob@example.com"]


def test_a_server_that_is_down_for_days_is_asked_for_three_days(
    settings: Settings, alice: Person, deliver: Deliver, now: datetime
) -> None:
    has_signed_in(alice)
    use(settings, f"smtp://127.0.0.1:{free_port()}")
    write_event(alice, now)
    assert deliver(now) == 1
    assert_given_up(alice, deliver, now, "ConnectionRefusedError")


def assert_given_up(alice: Person, deliver: Deliver, now: datetime, error: str) -> None:
    """Deliver until no mail is due, and see that members and operators are shown the failure."""
    page = f"/console/{alice.project.organization_id}/notifications"
    assert "1 mail not yet" in text(client_of(alice.user).get(page))
    while due := Delivery.objects.filter(state=Delivery.State.DUE).first():
        at = due.due_at
        assert deliver(at) == 1
    assert at == now + queue.GIVE_UP_AFTER
    delivery = Delivery.objects.get(state=Delivery.State.FAILED)
    assert {row.error for row in delivery.log.all()} == {f"the mail server: {error}"}
    assert delivery.log.count() == delivery.attempts > 10
    assert "1 mail failed" in text(client_of(alice.user).get(page))
    assert backlog.deliveries(at + timedelta(hours=23))["mail"].failed == 1
    assert backlog.deliveries(at + timedelta(hours=25))["mail"].failed == 0


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


def test_a_mail_that_waits_when_the_server_is_taken_away_is_not_called_sent(
    mailbox: Mailbox, settings: Settings, alice: Person, deliver: Deliver, now: datetime
) -> None:
    has_signed_in(alice)
    write_event(alice, now)
    mailbox.answer = "451 later"
    deliver(now)
    settings.SENDS_EMAIL = False
    deliver(now + timedelta(minutes=1))
    assert Delivery.objects.get().state == Delivery.State.DUE
    assert DeliveryAttempt.objects.latest("pk").error == "no mail server is set up"


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
    content = message.get_content()
    assert message["subject"] == "Deployment down: gpu-1 of small, the service"
    assert content.startswith("The deployment gpu-1 of small does not answer.")
    assert "because you are an operator" in content
    assert "http" not in content
    prefer(User.objects.get(username="root"), None, {EventKind.DEPLOYMENT: False})
    outbox.write(now, [NewEvent(EventKind.DEPLOYMENT, None, "small gpu-1", "2026-11-27", "", data)])
    assert deliver(now) == 0


def test_an_operator_chooses_the_kinds_of_the_service(settings: Settings, alice: Person) -> None:
    root = User.objects.create_superuser("root", password="a long password")
    client = client_of(root)
    assert "CHATAPI_EMAIL_URL names no mail server" in text(client.get("/admin/mail/"))
    settings.SENDS_EMAIL = True
    assert "Add one in Users" in text(client.get("/admin/mail/"))
    assert client.post("/admin/mail/", {"kinds": [EventKind.DEPLOYMENT_UP]}).status_code == 302
    wanted = [kind for kind, is_wanted in preferences(root, None).items() if is_wanted]
    assert wanted == [EventKind.DEPLOYMENT_UP]
    assert client_of(alice.user).get("/admin/mail/").status_code in (302, 403)


SENTENCES: dict[EventKind, tuple[dict[str, Any], str]] = {
    EventKind.BUDGET: (
        {
            "scope": "key",
            "scope_id": "1",
            "name": "Acme / default / chatbot",
            "period": "month",
            "period_start": "2026-11-01",
            "threshold": "80",
            "limit_usd": "100",
            "is_soft": False,
            "spent_usd": "80",
            "reached": ["80"],
        },
        "Acme / default / chatbot has spent $80.00 of $100.00 in November 2026: 80 % of its limit.",
    ),
    EventKind.CREDIT: (
        {"balance_usd": "4.99", "threshold_usd": "5", "credited_usd": "50"},
        "$4.99 of credit is left, less than $5.00.",
    ),
    EventKind.KEY: (
        {
            "key_id": "12",
            "name": "Acme / default / chatbot",
            "redacted_value": "ck_live_2bIJ…",
            "expires_at": "2026-12-03T00:00:00+00:00",
            "days": 7,
        },
        "The API key Acme / default / chatbot (ck_live_2bIJ…) expires in less than 7 days: at 2026-12-03 "
        "00:00 UTC.",
    ),
    EventKind.SPEND: (
        {"spent_usd": "8.1", "usual_usd": "4"},
        "26 November 2026 has cost $8.10 so far. The second highest of the 14 days before cost $4.00.",
    ),
    EventKind.ALERT: (
        {
            "project_id": "12",
            "project": "chatbot",
            "period_start": "2026-11-01",
            "threshold_usd": "75",
            "spent_usd": "80",
            "subject_prefix": "",
        },
        "The project chatbot has spent $80.00 in November 2026. Its spend alert is at $75.00.",
    ),
    EventKind.FAILURES: (
        {"since": "2026-11-26T00:00:00+00:00", "requests": 4_000, "failed": 1_000},
        "1,000 of 4,000 requests failed since 2026-11-26 00:00 UTC.",
    ),
    EventKind.MODEL: (
        {"model": "small", "since": "2026-11-26T00:40:28+00:00"},
        "The model small has not answered since 2026-11-26 00:40 UTC.",
    ),
    EventKind.MODEL_UP: (
        {"model": "small", "since": "2026-11-26T00:40:28+00:00"},
        "The model small answers again. It was down since 2026-11-26 00:40 UTC.",
    ),
    EventKind.DEPLOYMENT: (
        {"model": "small", "deployment": "gpu-1", "since": "2026-11-26T00:40:28+00:00"},
        "The deployment gpu-1 of small has not answered since 2026-11-26 00:40 UTC.",
    ),
    EventKind.DEPLOYMENT_UP: (
        {"model": "small", "deployment": "gpu-1", "since": "2026-11-26T00:40:28+00:00"},
        "The deployment gpu-1 of small answers again. It was down since 2026-11-26 00:40 UTC.",
    ),
    EventKind.LEDGER: (
        {"differences": 2, "first_difference": "Budget key/1 has 5, its entries have 4."},
        "The books have 2 differences, which manage.py verifyledger lists. The first one: Budget key/1 has"
        " 5, its entries have 4.",
    ),
    EventKind.STATEMENT: (
        {"organization_id": "7", "organization": "Acme", "month": "2026-10", "reason": "its lines are 5 n$"},
        "The statement 2026-10 of Acme can't be issued: its lines are 5 n$.",
    ),
}


def test_one_difference_is_not_differences() -> None:
    data = SENTENCES[EventKind.LEDGER][0] | {"differences": 1}
    assert texts.sentence(Event(kind=EventKind.LEDGER, data=data)).startswith("The books have 1 difference, ")


def test_each_kind_of_mail_has_its_sentence() -> None:
    assert set(SENTENCES) == set(EventKind) - {EventKind.TEST}


@pytest.mark.parametrize("kind", SENTENCES)
def test_a_mail_says_what_has_happened(
    mailbox: Mailbox, alice: Person, deliver: Deliver, now: datetime, kind: EventKind
) -> None:
    has_signed_in(alice)
    User.objects.create_superuser("root", "root@example.com", "a long password")
    is_tenants = kind in TENANTS_KINDS
    owner = alice.project.organization_id if is_tenants else None
    data, sentence = SENTENCES[kind]
    if kind == EventKind.ALERT:
        data = data | {"alert_id": str(alert_to(alice).pk)}
    subject = f"key/{alice.api_key.pk}/month" if kind == EventKind.BUDGET else "a subject"
    outbox.write(now, [NewEvent(kind, owner, subject, "2026-11-26", data.get("threshold", ""), data)])
    deliver(now)
    assert mailbox.receivers == ["alice@example.com" if is_tenants else "root@example.com"]
    assert sentences(mailbox) == [sentence]


def alert_to(person: Person) -> SpendAlert:
    return SpendAlert.objects.create(
        organization=person.project.organization, threshold_nanodollars=1, recipients=[person.user.pk]
    )


def test_a_spend_alert_goes_to_the_members_whom_it_names_whatever_they_chose(
    mailbox: Mailbox, alice: Person, bob: Person, charlie: Person, deliver: Deliver, now: datetime
) -> None:
    for person in (alice, bob, charlie):
        has_signed_in(person)
    acme = alice.project.organization
    alert = alert_to(bob)
    SpendAlert.objects.filter(pk=alert.pk).update(recipients=[bob.user.pk, charlie.user.pk])
    prefer(bob.user, acme, dict.fromkeys(CHOSEN_KINDS, False))
    data = {**SENTENCES[EventKind.ALERT][0], "alert_id": str(alert.pk), "subject_prefix": "[billing]"}
    outbox.write(now, [NewEvent(EventKind.ALERT, acme.pk, "a subject", "2026-11-01", "", data)])
    deliver(now)
    assert mailbox.receivers == ["bob@example.com"]
    (message,) = mailbox.messages
    assert message["subject"] == "[billing] Spend alert: Acme"
    assert f"/console/{acme.pk}/budgets" in message.get_content()


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


def reach(person: Person, now: datetime, *thresholds: str, limit_usd: int = 100) -> None:
    """Write the events of thresholds that the month of the person's key reaches in one posting."""
    budget_id = f"key/{person.api_key.pk}/month/2026-11-01"
    outbox.write(now, outbox.budget_events(budget_id, thresholds, 80 * 10**9, limit_usd * 10**9))


def sentences(mailbox: Mailbox) -> list[str]:
    return [each.get_content().splitlines()[0] for each in mailbox.messages]


@pytest.mark.parametrize(
    ("thresholds", "said"),
    [
        (["50", "80"], "80 % of its limit."),
        (["50", "80", SOFT_LIMIT], "80 % of its limit, and has reached its warning."),
        ([SOFT_LIMIT], "in November 2026, and has reached its warning."),
    ],
)
def test_thresholds_that_are_reached_at_once_are_one_mail_and_an_event_each(
    mailbox: Mailbox,
    receiver: Receiver,
    alice: Person,
    deliver: Deliver,
    thresholds: list[str],
    said: str,
) -> None:
    has_signed_in(alice)
    now = database_now()
    endpoint_of(alice, receiver.url)
    reach(alice, now, *thresholds)
    deliver(now)
    assert deliver(now) == 0
    [sentence] = sentences(mailbox)
    assert sentence.endswith(said)
    sent = [json.loads(each.body)["data"]["threshold"] for each in receiver.messages]
    assert sorted(sent) == sorted(thresholds)


@pytest.mark.parametrize(
    ("threshold", "limit_usd", "said"),
    [
        ("50", 160, "50 % of its limit."),
        (SOFT_LIMIT, 100, "has reached its warning."),
        (
            "100",
            80,
            "100 % of its limit. Its requests are refused until 1 December 2026, unless the limit is raised.",
        ),
        ("100", -80, "100 % of its warning."),
    ],
)
def test_mail_of_a_budget_says_how_much_is_spent_and_what_follows(
    mailbox: Mailbox, alice: Person, deliver: Deliver, threshold: str, limit_usd: int, said: str
) -> None:
    has_signed_in(alice)
    now = database_now()
    reach(alice, now, threshold, limit_usd=limit_usd)
    deliver(now)
    [message] = mailbox.messages
    title = "Budget warning reached" if threshold == SOFT_LIMIT else f"{threshold} % of a budget is spent"
    assert message["subject"] == f"{title}: Acme / default / alice"
    assert sentences(mailbox)[0].endswith(said)


def test_a_threshold_that_is_reached_later_is_another_mail(
    mailbox: Mailbox, alice: Person, deliver: Deliver, now: datetime
) -> None:
    has_signed_in(alice)
    for hour, threshold in enumerate(("50", SOFT_LIMIT, "80")):
        reach(alice, now + timedelta(hours=hour), threshold)
        deliver(now + timedelta(hours=hour))
    assert len(mailbox.messages) == 3
    reach(alice, now + timedelta(hours=3), "100")
    assert deliver(now + timedelta(hours=3)) == 1


def test_a_lower_threshold_that_is_found_later_is_no_mail_and_a_warning_is(
    mailbox: Mailbox, alice: Person, deliver: Deliver, now: datetime
) -> None:
    has_signed_in(alice)
    reach(alice, now, "80")
    deliver(now)
    later = now + timedelta(minutes=1)
    reach(alice, later, "50", SOFT_LIMIT)
    assert deliver(later) == 1
    assert ["reached its warning" in each for each in sentences(mailbox)] == [False, True]


def test_a_lower_threshold_of_a_limit_that_was_raised_is_a_mail(
    mailbox: Mailbox, alice: Person, deliver: Deliver, now: datetime
) -> None:
    has_signed_in(alice)
    reach(alice, now, "100", limit_usd=80)
    deliver(now)
    later = now + timedelta(minutes=1)
    reach(alice, later, "50", limit_usd=160)
    assert deliver(later) == 1
    assert sentences(mailbox)[1].endswith("50 % of its limit.")
