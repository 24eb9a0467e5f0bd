"""Makes the situations that a reaper's look finds, with the books' functions. Runs inside an installation."""

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from django.conf import settings
from redis import Redis

from accounts.models import Organization, Role
from chatapi.notifications import webhooks
from chatapi.notifications.models import Delivery, WebhookEndpoint
from tests.cast import Person, join, run
from usage.database.clock import database_now
from usage.models import Event, LedgerCheck, Outcome, SpendAlert
from usage.notifications import outages, watch
from usage.pricing import Price, Tokens

DAYS_OF_SPEND = 7
DEAR = Price(*[10**13] * 3)
"""A request of `run` costs $12."""
DEPLOYMENT = "upstream"
LONG_MS = 600_000
Found = list[tuple[str, str]]
"""The kinds and the subjects of the events that a look is to write; one about the ledger has its day, too."""


def new_organization(name: str, url: str) -> Person:
    """Add an organization whose events go to this URL, with a live key."""
    organization = Organization.objects.create(name=name)
    webhooks.add(WebhookEndpoint(organization=organization, url=url))
    return join(name, Role.OWNER, organization, "default")


def prepare(url: str, numbers: Iterable[int]) -> None:
    """Send the service's events to the URL. Write the past days of the organizations that are to spend much,
    before a reaper closes these days.
    """
    webhooks.add(WebhookEndpoint(organization=None, url=url))
    now = database_now()
    for spender in (new_organization(f"spender {each}", url) for each in numbers):
        for days in range(1, DAYS_OF_SPEND + 1):
            with patch("tests.cast.database_now", lambda days=days: now - timedelta(days=days)):
                run(spender)


def unusual_spend(_: str, number: int, __: Redis) -> Found:
    spender = Organization.objects.get(name=f"spender {number}")
    person = join(f"big spender {number}", Role.MEMBER, spender, "default")
    run(person, price=DEAR)
    return [("spend.unusual", f"organization/{spender.pk}")]


def spend_alert(url: str, number: int, _: Redis) -> Found:
    person = new_organization(f"alerted {number}", url)
    run(person)
    alert = SpendAlert.objects.create(
        organization=person.project.organization,
        project=person.project,
        threshold_nanodollars=1,
        recipients=[],
    )
    return [("spend.alert", f"spend_alert/{alert.pk}")]


def rising_failures(url: str, number: int, _: Redis) -> Found:
    person = new_organization(f"unlucky {number}", url)
    for _times in range(watch.LEAST_FAILURES):
        run(person, outcome=Outcome.FAILED, tokens=Tokens())
    return [("failures.rising", f"organization/{person.project.organization_id}")]


def ledger_check(_: str, number: int, __: Redis) -> Found:
    # Each check has a day of its own. It covers all rows, so no check of a reaper resolves its differences.
    checked_at = database_now() - timedelta(days=number)
    LedgerCheck.objects.create(checked_at=checked_at, differences=1, first_difference="a test")
    return [("ledger_check.failed", f"ledger {checked_at:%Y-%m-%d}")]


def outage(url: str, number: int, redis: Redis) -> Found:
    person = new_organization(f"caller {number}", url)
    model = f"model-{number}"
    run(person, model=model, deployment=DEPLOYMENT)
    until = round(time.time() * 1_000) + LONG_MS
    redis.hset(f"{settings.REDIS_KEY_PREFIX}routing:cooling", f"{model} {DEPLOYMENT}", f"{until} 5 0")
    organization_id = person.project.organization_id
    return [
        ("deployment.down", f"{model} {DEPLOYMENT}"),
        ("model.down", f"organization/{organization_id}/{model}"),
    ]


def end_of_outage(url: str, number: int, _: Redis) -> Found:
    person = new_organization(f"waiting {number}", url)
    model = f"model-{number}"
    run(person, model=model, deployment=DEPLOYMENT)
    now = database_now()
    begun = outages.changes(now, [f"{model} {DEPLOYMENT}"], [model])
    outages.write(now, [begun])
    # Only the messages about the end are still to be sent.
    Event.objects.filter(dispatched_at=None).update(dispatched_at=now)
    run(person, model=model, deployment=DEPLOYMENT)
    ends = {"deployment.down": "deployment.up", "model.down": "model.up"}
    return [(ends[event.kind], event.subject) for event in begun]


FINDINGS: Mapping[str, Callable[[str, int, Redis], Found]] = {
    "unusual spend": unusual_spend,
    "spend alert": spend_alert,
    "rising failures": rising_failures,
    "ledger check": ledger_check,
    "outage": outage,
    "end of outage": end_of_outage,
}


def events(found: Found) -> dict[str, Any]:
    """Return the ids of the messages about these findings, and what a look would find now."""
    wanted, now = {tuple(each) for each in found}, database_now()
    rows = [
        row
        for row in Event.objects.all()
        if wanted & {(row.kind, row.subject), (row.kind, f"{row.subject} {row.period}")}
    ]
    return {
        "ids": [row.webhook_id for row in rows],
        "deliveries": Delivery.objects.filter(event__in=rows).count(),
        "found again": [each[:4] for find in watch.LOOKS for each in watch.look(now, find)],
    }
