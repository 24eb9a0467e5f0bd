"""Finds outages of models and deployments: an event when one begins, once a day while it lasts, and when it
ends.

`period` is the time of the outage's previous event, and part of the unique key: two processes that find the
same change write one event. Writing it sets `followed_at` of the previous event, so that a look reads only
the newest event of each outage.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from usage.books import outbox
from usage.books.outbox import NewEvent
from usage.database.sql import db_value, execute, fetch_all, rows_of_values
from usage.database.time_limit import time_limit
from usage.failpoints import failpoint
from usage.models import (
    ENDS,
    MAX_SUBJECT_CHARS,
    NEWEST_OF_OUTAGE,
    OUTAGES_KINDS,
    Event,
    EventKind,
    Kind,
    Outcome,
)
from usage.notifications.watch import callers

REMIND_AFTER = timedelta(days=1)
# The shortest time between two beginnings: what fails again and again would be many events.
AGAIN_AFTER = timedelta(hours=1)
# An outage without an event for so long has ended in silence: nobody calls the model, or it is gone.
FORGET_AFTER = timedelta(days=3)
# The end is an answer that was complete so recently; a look a minute misses none, however long one takes.
ANSWERED_WITHIN = timedelta(minutes=5)
# A model, or a model and the name of a deployment.
Place = tuple[str, ...]


@time_limit()
def changes(now: datetime, deployments: Collection[str], models: Collection[str]) -> list[NewEvent]:
    """Return the events that these deployments, by `Route.key`, and models are down, and that others are not
    any more.
    """
    newest = _newest(now)
    down = [_of_deployment(each) for each in deployments]
    down += [event for model in models for event in _of_callers(model, now)]
    is_down = {EventKind.DEPLOYMENT.value: deployments, EventKind.MODEL.value: models}
    open_ones = [
        row
        for (kind, _), row in newest.items()
        if row.kind == kind and " ".join(_place(row)) not in is_down[kind]
    ]
    return [*_begun(now, down, newest), *_ended(now, open_ones)]


def _newest(now: datetime) -> dict[tuple[str, str], Event]:
    """Return the newest event of each outage, by its kind when it is down and its subject."""
    rows = Event.objects.filter(NEWEST_OF_OUTAGE, created_at__gte=now - FORGET_AFTER)
    begins = {end.value: begin for begin, end in ENDS.items()}
    return {(begins.get(row.kind, row.kind), row.subject): row for row in rows.order_by("created_at", "pk")}


def write(now: datetime, items: Sequence[Sequence[NewEvent]]) -> list[None]:
    """Write what was found, and that the events before are not the newest; an operation of `GroupCommit`."""
    events = [event for found in items for event in found]
    outbox.write(now, events)
    # An event without another one before it has the date as its period.
    before = [(each.subject, datetime.fromisoformat(each.period)) for each in events]
    followed = [pair for pair in before if pair[1].tzinfo]
    if followed:
        values, parameters = rows_of_values("f", ["place", "until"], followed)
        execute(
            f"""{values} UPDATE usage_event SET followed_at = %s FROM f
            WHERE kind IN ({", ".join(["%s"] * len(OUTAGES_KINDS))}) AND followed_at IS NULL
            AND subject = f.place AND created_at <= f.until""",  # noqa: S608  the text is ours
            [*parameters, db_value(now), *OUTAGES_KINDS],
        )
    failpoint("watch.in_tx")
    return [None for _ in items]


def _of_deployment(key: str) -> NewEvent:
    model, _, name = key.partition(" ")
    # Two long names are more than the column holds.
    subject = key if len(key) <= MAX_SUBJECT_CHARS else sha256(key.encode()).hexdigest()
    return NewEvent(EventKind.DEPLOYMENT, None, subject, "", "", {"model": model, "deployment": name})


def _of_callers(model: str, now: datetime) -> Iterator[NewEvent]:
    """Yield an event for each organization whose live keys have called this model in the last day."""
    for organization_id in callers(now - timedelta(days=1), model):
        subject = f"organization/{organization_id}/{model}"
        yield NewEvent(EventKind.MODEL, organization_id, subject, "", "", {"model": model})


def _begun(
    now: datetime, down: Iterable[NewEvent], newest: Mapping[tuple[str, str], Event]
) -> Iterator[NewEvent]:
    """Yield the events of outages that have begun, or have lasted for another day."""
    for event in down:
        before, since = newest.get((event.kind, event.subject)), now.isoformat()
        period = str(now.astimezone(UTC).date())
        if before is not None:
            is_going_on = before.kind in ENDS
            wait, start = AGAIN_AFTER, _since(before)
            if is_going_on:
                wait, start, since = REMIND_AFTER, before.created_at, _since(before).isoformat()
            if now < start + wait:
                continue
            period = before.created_at.isoformat()
        yield event._replace(period=period, data={**event.data, "since": since})


def _ended(now: datetime, open_ones: Iterable[Event]) -> Iterator[NewEvent]:
    """Yield the events of those outages after which a request was answered."""
    by_place: dict[Place, list[Event]] = {}
    for row in open_ones:
        by_place.setdefault(_place(row), []).append(row)
    for place, rows in by_place.items():
        if _has_answered(place, now - ANSWERED_WITHIN, max(row.created_at for row in rows)):
            for row in rows:
                data = {**row.data, "since": _since(row).isoformat()}
                period = row.created_at.isoformat()
                yield NewEvent(ENDS[row.kind], row.organization_id, row.subject, period, "", data)


def _place(event: Event) -> Place:
    return tuple(event.data[name] for name in ("model", "deployment") if name in event.data)


def _since(event: Event) -> datetime:
    """Return the beginning of the outage; events of older releases have none, and are one each day."""
    since = event.data.get("since")
    return datetime.fromisoformat(since) if since else event.created_at


def _has_answered(place: Place, since: datetime, began_after: datetime) -> bool:
    """Return whether a request that began after the one time was completed there since the other; test keys
    reach no upstream.
    """
    of_deployment = "AND g.deployment = %s" if len(place) > 1 else ""
    # One look into an index for each organization, as in `callers`: the ledger's is by the time of the end.
    found = fetch_all(
        f"""SELECT 1 FROM accounts_organization AS o WHERE 1 = (SELECT 1 FROM usage_ledgerentry AS e
        JOIN usage_generation AS g ON g.id = e.generation_id
        WHERE e.organization_id = o.id AND e.created_at >= %s AND e.kind = '{Kind.CHARGE.value}'
        AND e.outcome = '{Outcome.COMPLETED.value}' AND g.admitted_at >= %s AND e.model = %s {of_deployment}
        AND NOT g.is_test LIMIT 1)
        LIMIT 1""",  # noqa: S608  the text is ours, the values are parameters
        [db_value(since), db_value(began_after), *place],
    )
    return bool(found)
