"""The queue of deliveries: leased, so that two processes do not send the same one; retried for three days."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q, Window
from django.db.models.functions import RowNumber

from chatapi.notifications.models import (
    MAX_ANSWER_CHARS,
    MAX_ERROR_CHARS,
    Delivery,
    DeliveryAttempt,
    WebhookEndpoint,
)
from usage.models import WITH_AN_END, Event, EventKind

# Longer than any attempt. After a crash, the next attempt is made when the lease has run out.
LEASE = timedelta(minutes=2)
# The wait after the first attempt, which each further attempt multiplies by four, and the longest wait.
FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=5), timedelta(hours=8)
GIVE_UP_AFTER = timedelta(days=3)
KEEP_LOG, KEEP_EVENTS = timedelta(days=30), timedelta(days=400)
# The attempts that a delivery keeps: a page shows all of them, and each replay adds some.
MAX_LOG = 50
DELETED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of one message."""

    duration_ms: int
    status: int | None = None
    answer: str = ""
    error: str = ""

    @property
    def is_delivered(self) -> bool:
        """Return whether it arrived: with a status of 2xx or, for mail, which has none, without an error."""
        return not self.error and (self.status is None or 200 <= self.status < 300)


def take(now: datetime, most: int) -> list[Delivery]:
    """Lease up to `most` deliveries that are due, and return them with their events, endpoints and people.

    Organizations take turns, each with its oldest delivery first, so that the backlog of one does not delay
    the others.
    """
    due = Delivery.objects.filter(
        Q(endpoint__isnull=True) | Q(endpoint__is_enabled=True), state=Delivery.State.DUE, due_at__lte=now
    )
    # Checked before the transaction, as in `dispatch`.
    if not due.exists():
        return []
    owner, oldest_first = "event__organization", (F("due_at").asc(), F("pk").asc())
    turn = Window(RowNumber(), partition_by=owner, order_by=oldest_first)
    chosen = due.order_by(turn, *oldest_first).values("pk")[:most]
    with transaction.atomic():
        # Rows that another process has locked are skipped, not waited for.
        rows = list(
            due.filter(pk__in=chosen)
            .select_related("event__organization", "endpoint", "user")
            .select_for_update(skip_locked=True, of=("self",))
            .order_by("due_at", "pk")
        )
        Delivery.objects.filter(pk__in=[row.pk for row in rows]).update(
            due_at=now + LEASE, attempts=F("attempts") + 1
        )
    for row in rows:
        row.due_at, row.attempts = now + LEASE, row.attempts + 1
    return rows


def record(now: datetime, delivery: Delivery, attempt: Attempt) -> Delivery.State:
    """Write an attempt that began at `now` into the log of its leased delivery; return the state afterwards.

    The log keeps the newest `MAX_LOG` attempts. Nothing is written if the delivery was removed meanwhile,
    with its endpoint or person.
    """
    is_over = now >= delivery.begun_at + GIVE_UP_AFTER
    state = Delivery.State.FAILED if is_over else Delivery.State.DUE
    if attempt.is_delivered:
        state = Delivery.State.DELIVERED
    with transaction.atomic():
        # Locked, so that it is not removed before the attempt is written.
        if Delivery.objects.select_for_update().filter(pk=delivery.pk).first() is None:
            return state
        DeliveryAttempt.objects.create(
            delivery=delivery,
            at=now,
            duration_ms=attempt.duration_ms,
            status=attempt.status,
            answer=attempt.answer[:MAX_ANSWER_CHARS],
            error=attempt.error[:MAX_ERROR_CHARS],
        )
        newest_first = DeliveryAttempt.objects.filter(delivery=delivery).order_by("-pk")
        beyond = newest_first.values("pk")[MAX_LOG : MAX_LOG + DELETED_AT_ONCE]
        DeliveryAttempt.objects.filter(pk__in=beyond).delete()
        # `due_at` differs if another process has leased it since, or a person has replayed it.
        own = Delivery.objects.filter(pk=delivery.pk, due_at=delivery.due_at)
        if state == Delivery.State.DUE:
            ended_at = now + timedelta(milliseconds=attempt.duration_ms)
            due_at = min(ended_at + _wait(delivery.attempts), delivery.begun_at + GIVE_UP_AFTER)
            own.update(due_at=due_at)
        else:
            own.update(state=state)
    return state


def _wait(attempts: int) -> timedelta:
    wait_s = min(FIRST_WAIT.total_seconds() * 4 ** min(attempts - 1, 10), LONGEST_WAIT.total_seconds())
    # Spread, so that deliveries that failed together are not repeated at the same moment.
    return timedelta(seconds=wait_s * random.uniform(0.8, 1.2))  # noqa: S311  nothing secret


def replay(now: datetime, delivery: Delivery) -> None:
    """Make the delivery due again, with the same id, for another three days."""
    Delivery.objects.filter(pk=delivery.pk).update(
        state=Delivery.State.DUE, begun_at=now, due_at=now, attempts=0
    )


class Old(NamedTuple):
    """The ids of deliveries and events that are to be deleted."""

    deliveries: Sequence[int]
    events: Sequence[UUID]


def old(now: datetime) -> Old:
    """Return some deliveries and events to delete. Read them outside of the transaction that deletes them."""
    # Also those that are due: they wait for an endpoint that is disabled.
    deliveries = Delivery.objects.filter(begun_at__lt=now - KEEP_LOG).order_by("begun_at")
    over = Event.objects.filter(WITH_AN_END, created_at__lt=now - KEEP_EVENTS).order_by("created_at")
    return Old(
        list(deliveries.values_list("pk", flat=True)[:DELETED_AT_ONCE]),
        list(over.values_list("pk", flat=True)[:DELETED_AT_ONCE]),
    )


def delete(now: datetime, items: Sequence[Old]) -> list[None]:
    """Delete deliveries with their logs, and events; an operation of `GroupCommit`."""
    for item in items:
        # A delivery that was replayed since is not old any more.
        Delivery.objects.filter(pk__in=item.deliveries, begun_at__lt=now - KEEP_LOG).delete()
        Event.objects.filter(pk__in=item.events).delete()
    return [None for _ in items]


def send_test(now: datetime, endpoint: WebhookEndpoint) -> Delivery | None:
    """Write a test event, which goes to this endpoint only; None if one is due already."""
    with transaction.atomic():
        # Locked, so that of two presses at once the second one finds the event of the first.
        WebhookEndpoint.objects.select_for_update(no_key=True).filter(pk=endpoint.pk).first()
        due = Delivery.objects.filter(endpoint=endpoint, state=Delivery.State.DUE)
        if due.filter(event__kind=EventKind.TEST).exists():
            return None
        event = Event.objects.create(
            organization_id=endpoint.organization_id,
            kind=EventKind.TEST,
            subject=f"endpoint/{endpoint.pk}",
            period=now.isoformat(),
            data={"endpoint_id": str(endpoint.pk)},
            created_at=now,
            dispatched_at=now,
        )
        return Delivery.objects.create(event=event, endpoint=endpoint, begun_at=now, due_at=now)
