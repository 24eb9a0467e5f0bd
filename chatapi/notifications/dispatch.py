"""Writes the deliveries of events: to the endpoints of the organization or the service, and by mail."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction

from accounts import acceptance, access, memberships
from accounts.models import Organization, Role
from chatapi.notifications.models import Delivery, MailPreference, WebhookEndpoint
from usage.books.outbox import SOFT_LIMIT
from usage.failpoints import failpoint
from usage.models import CHOSEN_KINDS, ENDS, OPERATORS_KINDS, Event, EventKind, SpendAlert

BATCH = 100
# The roles that get mail of their organization's events unless they choose otherwise.
MAILED_ROLES = frozenset({Role.OWNER, Role.ADMIN})


def dispatch(now: datetime) -> int:
    """Write the deliveries of the oldest events that have none yet; return the number of these events."""
    waiting = Event.objects.filter(dispatched_at__isnull=True)
    # Checked before the transaction, which would block SQLite's writers once a second for nothing.
    if not waiting.exists():
        return 0
    with transaction.atomic():
        # Locked, so that two processes do not dispatch the same event; SQLite has one writer.
        events = list(waiting.select_for_update(skip_locked=True).order_by("created_at")[:BATCH])
        overtaken = _overtaken(events) if settings.SENDS_EMAIL else ()
        for event in events:
            _write([Delivery(endpoint=endpoint) for endpoint in _endpoints(event)], event, now)
            if settings.SENDS_EMAIL and event.pk not in overtaken:
                _write([Delivery(user=person) for person in _people(event)], event, now)
        Event.objects.filter(pk__in=[event.pk for event in events]).update(dispatched_at=now)
        if events:
            failpoint("dispatch.in_tx")
    return len(events)


def _write(deliveries: Sequence[Delivery], event: Event, now: datetime) -> None:
    for delivery in deliveries:
        delivery.event, delivery.begun_at, delivery.due_at = event, now, now
    Delivery.objects.bulk_create(deliveries, ignore_conflicts=True)


def _overtaken(events: Iterable[Event]) -> Collection[UUID]:
    """Return the events that are not mailed, because a higher threshold of the same budget, period and limit
    was reached, too; a warning only if the event of that threshold names it.
    """
    waiting = [event for event in events if event.kind == EventKind.BUDGET]
    subjects, periods = {each.subject for each in waiting}, {each.period for each in waiting}
    rows = Event.objects.filter(kind=EventKind.BUDGET, subject__in=subjects, period__in=periods)
    percents = sorted(rows.exclude(threshold=SOFT_LIMIT), key=lambda row: int(row.threshold))
    highest = {_limit_of(row): row for row in percents}
    return {
        event.pk
        for event in waiting
        if (top := highest.get(_limit_of(event))) is not None
        and top.pk != event.pk
        # The mail of a warning is left out only if the event of the higher threshold names both.
        and (event.threshold != SOFT_LIMIT or SOFT_LIMIT in top.data.get("reached", ()))
    }


def _limit_of(event: Event) -> tuple[str, str, str]:
    # With the amount: 50 % of a raised limit is news, although 100 % of the lower one was reported.
    return event.subject, event.period, event.data["limit_usd"]


def _endpoints(event: Event) -> list[WebhookEndpoint]:
    # Endpoints and events without an organization are the service's.
    rows = WebhookEndpoint.objects.filter(organization=event.organization_id, is_enabled=True)
    return [row for row in rows if row.wants(event.kind)]


def still_gets(event: Event, person: User) -> bool:
    """Return whether mail of the event would go to the person now: it may have waited for days."""
    return person in _people(event)


def _people(event: Event) -> list[User]:
    if event.kind == EventKind.ALERT:
        alert = SpendAlert.objects.filter(pk=event.data["alert_id"]).first()
        return [each for each in mailable(event.organization_id) if alert and each.pk in alert.recipients]
    # A person who made no choice for the end of an outage has that for its beginning.
    kinds = [*(begin for begin, end in ENDS.items() if end == event.kind), event.kind]
    rows = MailPreference.objects.filter(organization=event.organization_id, kind__in=kinds)
    chosen = sorted(rows.values_list("kind", "user", "is_wanted"), key=lambda row: kinds.index(row[0]))
    wanted = {user: is_wanted for _, user, is_wanted in chosen}
    if event.organization_id is None:
        people = [(person, True) for person in User.objects.filter(is_superuser=True)]
    else:
        # Events are of the whole organization, also those about a project: they name its spending.
        members = memberships.of_whole(event.organization_id)
        people = [(member.user, member.role in MAILED_ROLES) for member in members]
    return [
        person for person, by_default in people if gets_mail(person) and wanted.get(person.pk, by_default)
    ]


def mailable(organization_id: int | None) -> list[User]:
    """Return the members who see the whole organization and to whom mail may go, sorted by user name."""
    members = memberships.of_whole(organization_id).order_by("user__username")
    people = [member.user for member in members]
    return [person for person in people if gets_mail(person)]


def gets_mail(person: User) -> bool:
    """Return whether mail may go to the person: they have an address, and have accepted their invitation."""
    return bool(person.is_active and person.email and not acceptance.is_invited(person))


def preferences(person: User, organization: Organization | None) -> dict[str, bool]:
    """Return for each kind of the organization, or of the service, whether the person gets mail of it."""
    kinds = OPERATORS_KINDS if organization is None else CHOSEN_KINDS
    is_member = organization is not None and organization.pk in access.roles_of(person)
    by_default = organization is None or (
        is_member and access.role_in(person, organization.pk) in MAILED_ROLES
    )
    rows = MailPreference.objects.filter(user=person, organization=organization, kind__in=kinds)
    chosen = dict(rows.values_list("kind", "is_wanted"))
    ends = {end.value: chosen[begin] for begin, end in ENDS.items() if begin in chosen and end in kinds}
    return dict.fromkeys(map(str, kinds), by_default) | ends | chosen


def prefer(person: User, organization: Organization | None, wanted: Mapping[str, bool]) -> None:
    """Store which kinds of events are mailed to the person."""
    for kind, is_wanted in wanted.items():
        MailPreference.objects.update_or_create(
            user=person, organization=organization, kind=kind, defaults={"is_wanted": is_wanted}
        )
