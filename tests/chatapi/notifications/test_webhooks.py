"""Webhooks: signed messages, retries for three days, replay, and rotation of secrets."""

import asyncio
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection, transaction
from pytest_django.fixtures import Settings
from standardwebhooks import WebhookVerificationError

from chatapi.notifications import queue, webhooks
from chatapi.notifications.dispatch import dispatch
from chatapi.notifications.models import Delivery, DeliveryAttempt, WebhookEndpoint
from chatapi.process_metrics import DELIVERY_ATTEMPTS
from chatapi.worker.reaper import notifying
from tests.cast import Person
from tests.chatapi.notifications.conftest import Deliver, endpoint_of, write_event
from tests.webhook_receiver import Receiver, content
from usage.database.clock import database_now
from usage.database.group_commit import GroupCommit
from usage.errors import DatabaseUnavailable
from usage.models import EventKind

DUE, DELIVERED, FAILED = Delivery.State.DUE, Delivery.State.DELIVERED, Delivery.State.FAILED


@pytest.fixture
def now(transactional_db: None) -> datetime:
    return database_now()


def test_an_event_is_one_signed_message(
    alice: Person, receiver: Receiver, deliver: Deliver, now: datetime
) -> None:
    _, secret = endpoint_of(alice, receiver.url)
    event = write_event(alice, now)
    assert deliver(now) == 1
    assert deliver(now) == 0
    [message] = receiver.messages
    assert message.verified(secret) == {
        "type": "spend.unusual",
        "timestamp": now.isoformat(),
        "data": {
            "organization_id": str(alice.project.organization_id),
            "spent_usd": "8.1",
            "usual_usd": "4",
        },
    }
    assert message.id == event.webhook_id
    attempt = DeliveryAttempt.objects.get()
    assert (attempt.status, attempt.answer, attempt.error) == (200, "thanks", "")
    assert Delivery.objects.get().state == DELIVERED
    with pytest.raises(WebhookVerificationError):
        message.verified("whsec_" + "a" * 44)


def test_an_endpoint_gets_its_kinds_of_its_organization_only(
    alice: Person, charlie: Person, receiver: Receiver, deliver: Deliver, now: datetime
) -> None:
    endpoint_of(alice, receiver.url, EventKind.MODEL)
    endpoint_of(charlie, receiver.url + "/umbrella")
    write_event(alice, now)
    write_event(alice, now, EventKind.MODEL)
    deliver(now)
    assert [content(message)["type"] for message in receiver.messages] == ["model.down"]
    disabled, _ = endpoint_of(alice, receiver.url)
    WebhookEndpoint.objects.filter(pk=disabled.pk).update(is_enabled=False)
    write_event(alice, now + timedelta(seconds=1))
    assert deliver(now) == 0


def test_the_error_of_a_receiver_that_speaks_no_http_has_no_part_of_its_path(
    alice: Person, deliver: Deliver, now: datetime
) -> None:
    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(b"220 mail.example.com ESMTP\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, daemon=True).start()
        endpoint_of(alice, f"http://127.0.0.1:{listener.getsockname()[1]}/hooks/T0SECRET?token=abc")
        write_event(alice, now)
        deliver(now)
    assert DeliveryAttempt.objects.get().error == "the answer is not HTTP"


def test_a_receiver_that_is_down_for_an_hour_gets_the_event_once(
    alice: Person, receiver: Receiver, deliver: Deliver, now: datetime
) -> None:
    _, secret = endpoint_of(alice, receiver.url)
    event = write_event(alice, now)
    receiver.status = 503
    up_again = now + timedelta(hours=1)
    at = now
    while not Delivery.objects.filter(state=DELIVERED).exists():
        receiver.status = 200 if at >= up_again else 503
        assert deliver(at) == 1
        at = Delivery.objects.get().due_at
    assert deliver(at + timedelta(days=4)) == 0
    assert receiver.accepted_ids == [event.webhook_id]
    assert {message.id for message in receiver.messages} == {event.webhook_id}
    assert len({message.body for message in receiver.messages}) == 1
    assert 5 <= len(receiver.messages) <= 9
    assert receiver.messages[0].verified(secret)["type"] == "spend.unusual"


def test_after_three_days_a_delivery_has_failed_and_can_be_replayed(
    alice: Person, receiver: Receiver, deliver: Deliver, now: datetime
) -> None:
    endpoint_of(alice, receiver.url)
    event = write_event(alice, now)
    receiver.status, receiver.answer = 500, b"x" * 100_000
    DELIVERY_ATTEMPTS.series.clear()
    at, times = now, []
    while Delivery.objects.filter(state=DUE).exists() or at == now:
        if deliver(at):
            times.append(at)
        at = max(at + timedelta(seconds=1), Delivery.objects.get().due_at)
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert waits[0] <= timedelta(seconds=6)
    assert all(wait <= 1.2 * timedelta(hours=8) for wait in waits)
    assert times[-1] == now + timedelta(days=3)
    delivery = Delivery.objects.get()
    assert delivery.state == FAILED
    assert delivery.log.count() == delivery.attempts == len(times) > 10
    assert {(row.status, row.error) for row in delivery.log.all()} == {(500, "status 500")}
    assert max(len(row.answer) for row in delivery.log.all()) <= 500
    assert DELIVERY_ATTEMPTS.series == {"webhook retried": len(times) - 1, "webhook given_up": 1}
    receiver.status = 200
    queue.replay(at, delivery)
    assert deliver(at) == 1
    assert DELIVERY_ATTEMPTS.series["webhook delivered"] == 1
    assert receiver.accepted_ids == [event.webhook_id]
    assert Delivery.objects.get().state == DELIVERED


def test_a_delivery_that_is_replayed_keeps_its_newest_attempts(
    alice: Person, receiver: Receiver, deliver: Deliver, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "MAX_LOG", 2)
    endpoint_of(alice, receiver.url)
    for kind in (EventKind.SPEND, EventKind.MODEL):
        write_event(alice, now, kind)
    assert deliver(now) == 2
    replayed = Delivery.objects.earliest("pk")
    times = [now + timedelta(minutes=number) for number in (1, 2, 3)]
    for at in times:
        queue.replay(at, replayed)
        assert deliver(at) == 1
    logged = DeliveryAttempt.objects.order_by("pk")
    assert [attempt.at for attempt in logged.filter(delivery=replayed)] == times[1:]
    assert logged.exclude(delivery=replayed).count() == 1


def test_a_delivery_is_leased_and_sent_again_with_its_id_after_a_crash(
    alice: Person, receiver: Receiver, deliver: Deliver, now: datetime
) -> None:
    endpoint_of(alice, receiver.url)
    event = write_event(alice, now)
    deliver(now)
    Delivery.objects.update(state=DUE, due_at=now)
    assert len(queue.take(now, 10)) == 1  # by a process that dies now
    assert queue.take(now, 10) == []
    assert deliver(now + queue.LEASE - timedelta(seconds=1)) == 0
    assert deliver(now + queue.LEASE) == 1
    assert receiver.accepted_ids == [event.webhook_id] * 2


def test_the_wait_begins_when_the_attempt_has_ended(alice: Person, now: datetime) -> None:
    endpoint_of(alice, "https://example.com")
    queue.send_test(now, WebhookEndpoint.objects.get())
    [delivery] = queue.take(now, 1)
    queue.record(now, delivery, queue.Attempt(15_000, error="no answer within 15 s"))
    waits = Delivery.objects.get().due_at - now - timedelta(seconds=15)
    assert timedelta(seconds=4) <= waits <= timedelta(seconds=6)


def test_what_was_lost_to_another_process_decides_nothing(alice: Person, now: datetime) -> None:
    endpoint_of(alice, "https://example.com")
    queue.send_test(now, WebhookEndpoint.objects.get())
    [first] = queue.take(now, 1)
    [second] = queue.take(now + queue.LEASE, 1)
    queue.record(now, first, queue.Attempt(1, error="late"))
    assert Delivery.objects.get().due_at == second.due_at


def test_an_endpoint_may_be_removed_while_a_message_is_on_its_way_to_it(alice: Person, now: datetime) -> None:
    endpoint, _ = endpoint_of(alice, "https://example.com")
    queue.send_test(now, endpoint)
    [delivery] = queue.take(now, 1)
    endpoint.delete()
    queue.record(now, delivery, queue.Attempt(15_000, error="no answer within 15 s"))
    assert not DeliveryAttempt.objects.exists()


def test_a_rotated_secret_signs_for_a_day_beside_the_new_one(
    alice: Person, receiver: Receiver, deliver: Deliver, now: datetime
) -> None:
    endpoint, old = endpoint_of(alice, receiver.url)
    new = webhooks.rotate(endpoint, now, webhooks.secret_id(endpoint))
    assert new is not None
    write_event(alice, now)
    deliver(now)
    [message] = receiver.messages
    assert message.verified(old) == message.verified(new)
    assert len(message.headers["webhook-signature"].split()) == 2
    later = now + webhooks.ROTATION
    write_event(alice, later)
    deliver(later)
    signatures = receiver.messages[1].headers["webhook-signature"].split()
    assert len(signatures) == 1


def test_secrets_are_encrypted_and_never_logged(
    alice: Person, receiver: Receiver, deliver: Deliver, now: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    _, secret = endpoint_of(alice, receiver.url)
    write_event(alice, now)
    receiver.status = 500
    deliver(now)
    stored = bytes(WebhookEndpoint.objects.get().encrypted_secret)
    assert secret.encode() not in stored
    assert secret.removeprefix("whsec_")[:10] not in caplog.text
    WebhookEndpoint.objects.update(encrypted_secret=b"x" * 60)
    deliver(now + timedelta(minutes=1))
    assert [row.error for row in DeliveryAttempt.objects.order_by("pk")][1:] == [webhooks.SECRETS_LOST]


def test_a_redirect_is_a_failure(alice: Person, receiver: Receiver, deliver: Deliver, now: datetime) -> None:
    endpoint_of(alice, receiver.url)
    receiver.status, receiver.headers = 307, {"location": receiver.url + "/elsewhere"}
    write_event(alice, now)
    deliver(now)
    assert len(receiver.messages) == 1
    assert DeliveryAttempt.objects.get().error == "status 307"


def test_a_slow_receiver_is_given_up(
    alice: Person, deliver: Deliver, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 0.2)

    listening = socket.create_server(("127.0.0.1", 0))
    endpoint_of(alice, f"http://127.0.0.1:{listening.getsockname()[1]}/")
    write_event(alice, now)
    deliver(now)
    listening.close()
    assert DeliveryAttempt.objects.get().error == "no answer within 0 s"


def test_a_database_error_ends_no_other_delivery(
    alice: Person, receiver: Receiver, deliver: Deliver, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 0.2)
    record, errors = queue.record, [DatabaseUnavailable("away")]

    def record_after_an_error(now: datetime, delivery: Delivery, attempt: queue.Attempt) -> Any:
        if errors:
            raise errors.pop()
        return record(now, delivery, attempt)

    monkeypatch.setattr(queue, "record", record_after_an_error)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        endpoint_of(alice, receiver.url)
        endpoint_of(alice, f"http://127.0.0.1:{hanging.getsockname()[1]}/")
        write_event(alice, now)
        with pytest.raises(DatabaseUnavailable):
            deliver(now)
    assert DeliveryAttempt.objects.get().error == "no answer within 0 s"


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("is_late", [True, False])
def test_the_status_counts_if_the_rest_of_the_answer_is_late_or_cut_off(
    alice: Person,
    deliver: Deliver,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    is_late: bool,
) -> None:
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 0.5)

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 %d It\r\ncontent-length: 100\r\n\r\n" % status)
            if is_late:
                connection.recv(1)  # until the sender gives up

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, daemon=True).start()
        endpoint_of(alice, f"http://127.0.0.1:{listener.getsockname()[1]}/")
        write_event(alice, now)
        deliver(now)
    assert Delivery.objects.get().state == (DELIVERED if status == 200 else DUE)
    attempt = DeliveryAttempt.objects.get()
    assert (attempt.status, attempt.error) == (status, "" if status == 200 else "status 500")


@pytest.mark.parametrize("host", ["127.0.0.1", "hanging.test"])
def test_receivers_that_hang_keep_no_other_organization_waiting(
    settings: Settings, alice: Person, charlie: Person, receiver: Receiver, now: datetime, *, host: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    settings.WEBHOOK_PRIVATE_ADDRESSES = True
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(notifying, "AT_ONCE", 2)
    resolve, is_over = socket.getaddrinfo, threading.Event()

    def resolve_late(name: str, *rest: Any, **more: Any) -> Any:
        if name == "hanging.test":
            is_over.wait(20)
        return resolve(name, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_late)

    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))  # as many as uvloop has
        commits = GroupCommit()
        delivering = asyncio.create_task(notifying.deliver_forever(commits))
        try:
            async with asyncio.timeout(8):
                while not await commits.read(DeliveryAttempt.objects.exists):
                    await asyncio.sleep(0.05)
                await commits.read(write_event, charlie, now)
                while not receiver.messages:
                    await asyncio.sleep(0.05)
        finally:
            is_over.set()
            delivering.cancel()
            await asyncio.gather(delivering, return_exceptions=True)
            await commits.close()

    with socket.create_server(("127.0.0.1", 0)) as hanging:
        endpoint_of(alice, f"http://{host}:{hanging.getsockname()[1]}/")
        endpoint_of(charlie, receiver.url.replace("127.0.0.1", "localhost"))
        # To give each up once takes 10 s.
        for number in range(100):
            write_event(alice, now - timedelta(seconds=number))
        asyncio.run(run())


def test_old_deliveries_and_events_are_deleted(alice: Person, now: datetime) -> None:
    endpoint_of(alice, "https://example.com")
    queue.send_test(now, WebhookEndpoint.objects.get())
    Delivery.objects.update(state=DELIVERED)
    assert queue.old(now + timedelta(days=29)) == queue.Old([], [])
    later = now + timedelta(days=31)
    queue.delete(later, [queue.old(later)])
    assert Delivery.objects.count() == 0


def test_what_waits_for_a_disabled_endpoint_is_deleted_too(
    alice: Person, receiver: Receiver, deliver: Deliver, now: datetime
) -> None:
    endpoint_of(alice, receiver.url)
    write_event(alice, now)
    dispatch(now)
    WebhookEndpoint.objects.update(is_enabled=False)
    assert deliver(now) == 0
    assert queue.old(now + timedelta(days=29)) == queue.Old([], [])
    later = now + timedelta(days=31)
    queue.delete(later, [queue.old(later)])
    assert Delivery.objects.count() == 0


def test_one_test_event_waits_at_a_time(
    alice: Person, receiver: Receiver, deliver: Deliver, now: datetime
) -> None:
    endpoint, secret = endpoint_of(alice, receiver.url, EventKind.MODEL)
    assert queue.send_test(now, endpoint) is not None
    assert queue.send_test(now, endpoint) is None
    deliver(now)
    assert receiver.messages[0].verified(secret)["type"] == "webhook.test"
    assert queue.send_test(now + timedelta(seconds=1), endpoint) is not None


def test_two_presses_at_once_write_one_test_event(alice: Person, now: datetime) -> None:
    endpoint, _ = endpoint_of(alice, "https://example.com")

    def press_again() -> Delivery | None:
        try:
            return queue.send_test(now + timedelta(seconds=1), endpoint)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as others:
        with transaction.atomic():
            assert queue.send_test(now, endpoint) is not None
            second = others.submit(press_again)
            wait([second], timeout=0.2)
        assert second.result() is None


def test_an_organization_has_a_bounded_number_of_endpoints(alice: Person) -> None:
    for _ in range(webhooks.MAX_ENDPOINTS):
        endpoint_of(alice, "https://example.com")
    one_more = WebhookEndpoint(organization=alice.project.organization, url="https://example.com")
    assert webhooks.add(one_more) is None
    assert WebhookEndpoint.objects.count() == webhooks.MAX_ENDPOINTS
