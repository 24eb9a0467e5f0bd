"""Events, whichever process is killed on their way: one of each threshold, and one message by its id."""

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults import armed
from tests.faults.bookkeeper import Bookkeeper
from tests.faults.conftest import Ask
from tests.installation import Installation, wait_for
from tests.webhook_receiver import Receiver, content, receiving
from usage.failpoints import OF_EVENTS

pytestmark = [pytest.mark.xdist_group("faults-events"), pytest.mark.timeout(180)]

ENVIRONMENT = armed.ENVIRONMENT | {"CHATAPI_WEBHOOK_PRIVATE_ADDRESSES": "allow"}
AROUND_COMMITS = [
    "settle.before_tx",
    "settle.in_tx",
    "settle.after_commit",
    "reaper.in_tx",
    "reaper.after_commit",
]
AROUND_LOOKS = ["watch.before_tx", "watch.in_tx", "watch.after_commit"]
ON_THE_WAY = sorted({*OF_EVENTS} - {*AROUND_LOOKS})
ADD_ENDPOINT = """
from accounts.models import Organization
from chatapi.notifications import webhooks
from chatapi.notifications.models import WebhookEndpoint
print(webhooks.add(WebhookEndpoint(organization=Organization.objects.get(name="Tests"), url="{url}")))
"""
LOW = "credit.low"
# A limit of the next scope and period, which the next request reaches: what was spent and a nanodollar.
LIMIT = """
from accounts.models import APIKey
from usage.models import Budget, BudgetLimit, Event
key = APIKey.objects.get(name="live")
owners = [("key", key.pk), ("project", key.project_id), ("organization", key.project.organization_id)]
for scope, pk in owners:
    for period in ("day", "month", "ever"):
        row = Budget.objects.filter(scope=scope, scope_id=pk, period=period).order_by("-period_start").first()
        if not BudgetLimit.objects.filter(scope=scope, scope_id=pk, period=period).exists():
            limit = (row.posted_nanodollars if row else 0) + 1
            BudgetLimit.objects.create(scope=scope, scope_id=pk, period=period, soft_limit_nanodollars=limit)
            print(f"{scope}/{pk}/{period}")
            raise SystemExit
"""
# A key that is made a month before, and expires in two days.
EXPIRE = """
from datetime import timedelta
from accounts.keys import create_key, get_or_create_project
from accounts.models import APIKey
from usage.database.clock import database_now
now = database_now()
key, _ = create_key(get_or_create_project("Tests", "default"), name="expires")
APIKey.objects.filter(pk=key.pk).update(
    created_at=now - timedelta(days=30), expires_at=now + timedelta(days=2)
)
print(key.pk)
"""
# Finds all that other tests have left, so that the next look finds only what its own test has made.
LOOK = """
from usage.books import outbox
from usage.database.clock import database_now
from usage.notifications import watch
now = database_now()
for find in watch.LOOKS:
    outbox.write(now, watch.look(now, find))
"""
EVENTS = """
import json
from usage.models import Event
rows = Event.objects.all()
print(json.dumps([[row.kind, row.subject, row.period, row.threshold, row.webhook_id] for row in rows]))
"""
# A balance that the next request brings below its threshold; each grant is a period of its own.
GRANT = """
from accounts.models import Organization
from usage.books import credit
from usage.models import Credit
from usage.pricing import to_usd
organization = Organization.objects.get(name="Tests")
credit.grant(organization, 10**9, credit.Note("a test", "the tests"))
row = Credit.objects.get(organization=organization)
credit.set_low(organization, credit.balance(organization).nanodollars)
print(to_usd(row.credited_nanodollars))
"""
# The lease of a process that has died runs out.
END_LEASES = """
from chatapi.notifications.models import Delivery
from usage.database.clock import database_now
Delivery.objects.filter(state="due").update(due_at=database_now())
"""


def events(installation: Installation) -> Any:
    return json.loads(installation.shell(EVENTS))


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture(scope="module")
def secret(installed: Installation, receiver: Receiver) -> str:
    return installed.shell(ADD_ENDPOINT.format(url=receiver.url))


def die(installation: Installation, bookkeeper: Bookkeeper, ask: Ask, failpoint: str) -> None:
    """Let the process that passes the failpoint die while a request is answered, and start it again."""
    strike = armed.Strike(installation, failpoint, "kill9")
    answer = ask("a-second").heard(5)
    if failpoint.startswith("reaper"):
        installation.end("worker")
    is_later = failpoint in OF_EVENTS
    strike.wait(lambda: answer.has_ended and not is_later)
    installation.revive()
    bookkeeper.close_the_books()
    installation.shell(END_LEASES)


@pytest.mark.parametrize("failpoint", [*AROUND_COMMITS, *ON_THE_WAY])
def test_each_threshold_is_one_event_and_one_message(
    installation: Installation,
    bookkeeper: Bookkeeper,
    ask: Ask,
    receiver: Receiver,
    secret: str,
    failpoint: str,
) -> None:
    installation.revive()
    subject = installation.shell(LIMIT)
    die(installation, bookkeeper, ask, failpoint)

    def of_subject() -> list[str]:
        """Return the ids that the receiver has of this budget's last threshold."""
        found = [(message.id, content(message)["data"]) for message in receiver.messages]
        return [each for each, data in found if data.get("threshold") == "100" and _subject(data) == subject]

    wait_for(lambda: bool(of_subject()), "the message")
    written = [(each, threshold) for kind, each, _, threshold, _ in events(installation) if kind != LOW]
    assert max(Counter(written).values()) == 1
    assert (subject, "100") in written
    assert len(set(of_subject())) == 1
    assert receiver.messages[-1].verified(secret)["type"] == "budget.reached"
    if failpoint != "deliver.after_send":
        assert len(of_subject()) == 1


def _subject(data: Any) -> str:
    return f"{data['scope']}/{data['scope_id']}/{data['period']}"


@pytest.mark.parametrize("failpoint", AROUND_COMMITS)
def test_low_credit_is_one_event_and_one_message(
    installation: Installation,
    bookkeeper: Bookkeeper,
    ask: Ask,
    receiver: Receiver,
    secret: str,
    failpoint: str,
) -> None:
    installation.revive()
    credited_usd = installation.shell(GRANT)
    die(installation, bookkeeper, ask, failpoint)

    def received() -> list[str]:
        found = [(message.id, content(message)["data"]) for message in receiver.messages]
        return [each for each, data in found if data.get("credited_usd") == credited_usd]

    wait_for(lambda: bool(received()), "the message")
    written = [pk for kind, _, period, _, pk in events(installation) if (kind, period) == (LOW, credited_usd)]
    assert received() == written
    assert len(written) == 1


@pytest.mark.parametrize("failpoint", AROUND_LOOKS)
def test_a_key_that_expires_soon_is_one_event_and_one_message(
    installation: Installation, receiver: Receiver, secret: str, failpoint: str
) -> None:
    installation.end("reaper")
    key_id = installation.shell(LOOK + EXPIRE)
    # A reaper looks as soon as it starts, which may be before it is ready.
    command = [sys.executable, "manage.py", "serve", "--only", "reaper"]
    installation.run("reaper", command, CHATAPI_FAILPOINTS=f"{failpoint}=kill9")
    assert installation.processes["reaper"].wait(60) == -signal.SIGKILL

    def written() -> list[str]:
        return [pk for _, subject, _, _, pk in events(installation) if subject == f"key/{key_id}"]

    assert len(written()) == (failpoint == "watch.after_commit")
    installation.revive()

    def received() -> list[str]:
        found = [(message.id, content(message)["data"]) for message in receiver.messages]
        return [each for each, data in found if data.get("key_id") == key_id]

    wait_for(lambda: bool(received()), "the message")
    assert received() == written()
    assert len(written()) == 1
