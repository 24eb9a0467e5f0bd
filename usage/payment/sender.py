"""Sends the outbox's events to Stripe, each of them until Stripe has it.

1. `claim` notes in the event's row that it is about to be sent, and for how long nobody else may send it.
2. `deliver` sends it. An event that was perhaps sent before is sent again: Stripe refuses its identifier.
3. `record` notes the outcome.

Stripe knows identifiers for a day. So an event that may have reached Stripe more than a day ago is not sent
again before a look: its minute's sum at Stripe says whether it is there, because no other event has this
minute. The same holds for events of older hours: a database that was restored from a backup may have sent
them before.
"""

import logging
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple

from django.db.models import F
from django.db.models.functions import Coalesce

from usage.database.clock import database_now, hour_of
from usage.errors import StripeRefused, StripeUnavailable
from usage.failpoints import failpoint
from usage.payment import stripe_api
from usage.payment.metered_usage import WINDOW, FreeMinutes
from usage.payment.models import MeterEvent

BATCH = 20
# More than the calls of a batch may take.
LEASE = timedelta(minutes=10)
MARGIN_S = 60.0
# Less than the day for which Stripe knows identifiers.
KNOWN_FOR = timedelta(hours=20)
# Stripe adds events up later than it takes them; by then a sum has all that were sent.
ADDED_UP_AFTER = timedelta(hours=2)
# Stripe takes events of the last 35 days.
MOST_AGE = timedelta(days=34)
SHORTEST_PAUSE, LONGEST_PAUSE = timedelta(seconds=30), timedelta(hours=1)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Claimed:
    """An event that this process is to send, or to look for, until `until`."""

    event: MeterEvent
    until: datetime
    is_to_be_looked_for: bool
    began_at: float = field(default_factory=time.time)


class Result(Enum):
    """What came of an event."""

    THERE = "there"
    ABSENT = "absent"
    REFUSED = "refused"
    AWAY = "away"


class Outcome(NamedTuple):
    """The result of a delivery, with Stripe's words if it failed."""

    result: Result
    error: str = ""


def claim(most: int = BATCH) -> list[Claimed]:
    """Claim up to `most` events that are due."""
    now = database_now()
    until = now + LEASE
    claimed: list[Claimed] = []
    for event in MeterEvent.objects.filter(due_at__lte=now).order_by("due_at", "pk")[:BATCH]:
        if len(claimed) == most:
            break
        is_old = now - (event.first_tried_at or event.hour) > KNOWN_FOR
        changes: dict[str, Any] = {"due_at": until, "tries": F("tries") + 1}
        if is_old and event.last_tried_at and now - event.last_tried_at < ADDED_UP_AFTER:
            _change(event, event.due_at, due_at=event.last_tried_at + ADDED_UP_AFTER)
            continue
        if not is_old:
            if event.last_tried_at is None and now - event.stamped_at > MOST_AGE:
                oldest = hour_of(now - WINDOW)
                event.stamped_at = FreeMinutes(event.organization_id, oldest).take(oldest)
                changes["stamped_at"] = event.stamped_at
            changes |= {"first_tried_at": Coalesce("first_tried_at", now), "last_tried_at": now}
        if _change(event, event.due_at, **changes):
            claimed.append(Claimed(event, until, is_old))
    return claimed


def deliver(claimed: Claimed) -> Outcome:
    """Send the event, or look whether Stripe has it; blocks for a bounded time, and writes nothing here."""
    # A process that stood still must not send what another one may be sending now.
    if time.time() - claimed.began_at > LEASE.total_seconds() - MARGIN_S:
        return Outcome(Result.AWAY, "this process stood still")
    event = claimed.event
    failpoint("meter.before_send")
    try:
        if claimed.is_to_be_looked_for:
            return _look_for(event)
        stripe_api.send(event)
    except StripeRefused as error:
        return Outcome(Result.REFUSED, str(error))
    except StripeUnavailable as error:
        return Outcome(Result.AWAY, str(error))
    failpoint("meter.after_send")
    return Outcome(Result.THERE)


def _look_for(event: MeterEvent) -> Outcome:
    found = stripe_api.minute_sum(event.customer_id, event.meter, event.stamped_at)
    if found in (0, event.value):
        return Outcome(Result.THERE if found else Result.ABSENT)
    return Outcome(Result.REFUSED, f"Stripe has {found} in this minute, not {event.value}.")


def record(claimed: Claimed, outcome: Outcome) -> None:
    """Note the outcome in the event's row, unless another process has claimed it since."""
    event = claimed.event
    now = database_now()
    if outcome.result == Result.THERE:
        MeterEvent.objects.filter(pk=event.pk).update(due_at=None, error="")
    elif outcome.result == Result.ABSENT:
        _change(event, claimed.until, due_at=now, first_tried_at=now, last_tried_at=None)
    else:
        if outcome.result == Result.REFUSED:
            log.error("usage is not reported: Stripe refuses %s: %s", event, outcome.error)
        pause = min(SHORTEST_PAUSE * 2 ** min(event.tries, 10), LONGEST_PAUSE)
        _change(event, claimed.until, due_at=now + pause, error=outcome.error[:300])
    failpoint("meter.after_record")


def _change(event: MeterEvent, was_due_at: datetime | None, **changes: Any) -> bool:
    """Change the event if nobody has changed when it is due."""
    return bool(MeterEvent.objects.filter(pk=event.pk, due_at=was_due_at).update(**changes))
