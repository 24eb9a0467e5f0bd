"""Counts events and deliveries that wait or have failed, and reads their age, for metrics and the doctor."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Exists, Min, OuterRef, Q, QuerySet, Subquery

from chatapi.notifications.models import Delivery, DeliveryAttempt, WebhookEndpoint
from chatapi.notifications.queue import GIVE_UP_AFTER
from usage.database.time_limit import time_limit
from usage.models import Event

MAIL, WEBHOOK = "mail", "webhook"
KINDS = (MAIL, WEBHOOK)
# The most deliveries, and endpoints, that are counted: without a bound, a long outage would make it slow.
MAX_COUNTED = 10_000
# Deliveries that were given up are counted for this long.
RECENT = timedelta(days=1)
NOT_ARRIVED = (Delivery.State.DUE, Delivery.State.FAILED)
_OF_KIND = {MAIL: Q(endpoint__isnull=True), WEBHOOK: Q(endpoint__isnull=False)}


@dataclass(frozen=True, slots=True)
class Deliveries:
    """The deliveries of one kind that have not arrived."""

    waiting: int
    """The number of deliveries that were not tried yet."""
    retrying: int
    failed: int
    """The number of deliveries that were given up in the last day."""
    oldest_begun_at: datetime | None
    """When the oldest of those that still wait was first due."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The webhook endpoints of all organizations and of the service, by state."""

    working: int
    failing: int
    disabled: int


def oldest_event() -> datetime | None:
    """Return the time of the oldest event that is not dispatched yet; None if there is none."""
    rows = Event.objects.filter(dispatched_at__isnull=True)
    return rows.order_by("created_at").values_list("created_at", flat=True).first()


@time_limit()
def deliveries(now: datetime) -> Mapping[str, Deliveries]:
    """Return the deliveries that have not arrived, by kind; none that wait for a disabled endpoint."""
    due = _counted(waiting().order_by("due_at")[:MAX_COUNTED])
    failed = _counted(given_up(now).order_by("begun_at")[:MAX_COUNTED])
    return {
        kind: Deliveries(
            due[f"{kind}_all"] - due[f"{kind}_tried"],
            due[f"{kind}_tried"],
            failed[f"{kind}_all"],
            due[f"{kind}_oldest"],
        )
        for kind in KINDS
    }


def waiting() -> QuerySet[Delivery]:
    """Return the deliveries that are due, without those of disabled endpoints."""
    is_sent = Q(endpoint__isnull=True) | Q(endpoint__is_enabled=True)
    return Delivery.objects.filter(is_sent, state=Delivery.State.DUE)


def given_up(now: datetime) -> QuerySet[Delivery]:
    """Return the deliveries that were given up in the last day."""
    begun_at = (now - GIVE_UP_AFTER - RECENT, now - GIVE_UP_AFTER)
    return Delivery.objects.filter(state=Delivery.State.FAILED, begun_at__range=begun_at)


def _counted(rows: QuerySet[Delivery]) -> dict[str, Any]:
    numbers: dict[str, Any] = {}
    for kind, is_of_kind in _OF_KIND.items():
        numbers[f"{kind}_all"] = Count("pk", filter=is_of_kind)
        numbers[f"{kind}_tried"] = Count("pk", filter=is_of_kind & Q(attempts__gt=0))
        numbers[f"{kind}_oldest"] = Min("begun_at", filter=is_of_kind)
    return rows.aggregate(**numbers)


@time_limit()
def endpoints() -> Endpoints:
    """Return the number of endpoints in each state."""
    counted = WebhookEndpoint.objects.order_by("pk")[:MAX_COUNTED]
    found = counted.aggregate(all=Count("pk"), disabled=Count("pk", filter=Q(is_enabled=False)))
    number = failing().filter(pk__in=counted.values("pk")).count()
    return Endpoints(found["all"] - found["disabled"] - number, number, found["disabled"])


def failing() -> QuerySet[WebhookEndpoint]:
    """Return the enabled endpoints whose newest delivery that was tried has not arrived."""
    # Only endpoints with such a delivery, which an index finds, are read.
    due, failed = (Delivery.objects.filter(state=state).values("endpoint") for state in NOT_ARRIVED)
    rows = WebhookEndpoint.objects.filter(Q(pk__in=due) | Q(pk__in=failed), is_enabled=True)
    found: QuerySet[WebhookEndpoint] = with_newest_state(rows).filter(newest_state__in=NOT_ARRIVED)
    return found


def with_newest_state(rows: Any) -> Any:
    """Annotate each endpoint with the state of its newest delivery that was tried; None if none was."""
    # A delivery that is due counts as tried once its first attempt has ended and is in the log.
    ended = DeliveryAttempt.objects.filter(delivery=OuterRef("pk"), at__gte=OuterRef("begun_at"))
    tried = Delivery.objects.filter(~Q(state=Delivery.State.DUE) | Exists(ended))
    newest = tried.filter(endpoint=OuterRef("pk")).order_by("-pk").values("state")[:1]
    return rows.annotate(newest_state=Subquery(newest))
