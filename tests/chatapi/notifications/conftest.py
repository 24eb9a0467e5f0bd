"""An endpoint of Acme's, its receiver, and deliveries on a clock that the test sets."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest
from django.contrib.auth.models import User
from pytest_django.fixtures import Settings

from chatapi.notifications import webhooks
from chatapi.notifications.dispatch import dispatch
from chatapi.notifications.models import WebhookEndpoint
from chatapi.worker.reaper import notifying
from tests.cast import Person
from tests.webhook_receiver import Receiver, receiving
from usage.books import outbox
from usage.books.outbox import NewEvent
from usage.database.clock import database_now
from usage.database.group_commit import GroupCommit
from usage.models import Event, EventKind

Deliver = Callable[[datetime], int]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture
def deliver(settings: Settings, transactional_db: None) -> Deliver:
    """Dispatch and deliver all that is due at a time; return the number of messages."""
    settings.WEBHOOK_PRIVATE_ADDRESSES = True

    async def work(now: datetime) -> int:
        commits = GroupCommit()
        try:
            async with webhooks.new_session() as session:
                await commits.read(dispatch, now)
                return await notifying.deliver(commits, session, now)
        finally:
            await commits.close()

    return lambda now: asyncio.run(work(now))


def endpoint_of(person: Person, url: str, *kinds: str) -> tuple[WebhookEndpoint, str]:
    """Return a new endpoint of the person's organization, and its secret."""
    endpoint = WebhookEndpoint(organization=person.project.organization, url=url, kinds=list(kinds))
    secret = webhooks.add(endpoint)
    assert secret is not None
    return endpoint, secret


def has_signed_in(*people: Person) -> None:
    """Give each person an address, to which mail may go."""
    for person in people:
        User.objects.filter(pk=person.user.pk).update(
            email=f"{person.user.username}@example.com", last_login=database_now()
        )


def write_event(person: Person, now: datetime, kind: EventKind = EventKind.SPEND) -> Event:
    """Write an event of the person's organization."""
    pk = person.project.organization_id
    data = (
        {"spent_usd": "8.1", "usual_usd": "4"}
        if kind == EventKind.SPEND
        else {"model": "small", "since": str(now)}
    )
    subject = f"organization/{pk} at {now}"
    outbox.write(now, [NewEvent(kind, pk, subject, str(now.date()), "", data)])
    return Event.objects.get(organization=pk, kind=kind, subject=subject)
