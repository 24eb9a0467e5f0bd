"""Random histories of two months and the days after, as statements see them: requests at changing prices,
discounts, corrections, re-ratings and credit, at any time.
"""

import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from accounts.models import APIKey, Organization, Project
from chatapi import identity
from tests.usage.conftest import completed, run
from usage import pricing
from usage.books import corrections, credit, ledger, prices
from usage.books.corrections import Correction
from usage.books.credit import Note
from usage.books.prices import History
from usage.database.sql import db_value
from usage.errors import NotBooked
from usage.models import CHARGED, Discount, LedgerEntry, Outcome, UsageSource
from usage.pricing import Price, Tokens
from usage.rollups import closing
from usage.statements import issuing, itemizing, reading

START = datetime(2026, 1, 28, tzinfo=UTC)
NOW = datetime(2026, 3, 3, 15, 20, tzinfo=UTC)
"""January, of which there are four days, and February are over; March is not."""
FIRST_PRICE = Price(150_000_001, 75_000_000, 600_000_007, None, 187_500_000, None)
LATER_PRICE = Price(140_000_000, 70_000_000, 630_000_000, 900_000_001, 187_500_000, 300_000_000)
NOTE = Note("story", "test")


def set_clock(monkeypatch: pytest.MonkeyPatch, now: datetime = NOW) -> None:
    """Make it this time for all that closes and shows months, and for bookings."""
    for module in (closing, issuing, credit, corrections):
        monkeypatch.setattr(module, "database_now", lambda: now)
    monkeypatch.setattr(reading, "clock_in_statement", lambda: ("%s", [db_value(now)]))


def close_all() -> None:
    """Do what a reaper does once a month is over."""
    list(iter(closing.close_next, None))
    list(iter(itemizing.itemize_next, None))
    while [row for row in map(issuing.issue, issuing.due()) if row]:
        pass


def keys_of(name: str) -> list[APIKey]:
    """Return keys of two projects of a new organization."""
    organization = Organization.objects.create(name=name)
    made = []
    for number in range(2):
        project = Project.objects.create(organization=organization, name=f"project {number}")
        public = f"{name[:4].lower()}{identity.new_id().hex[-7:]}{number}"
        made.append(APIKey.objects.create(project=project, public=public, digest="0" * 64))
    return made


def set_prices(chance: random.Random, keys: list[APIKey]) -> None:
    """Give two models prices that change in the midst of a day, and the organization discounts."""
    for model in ("small", "large"):
        prices.change(model, FIRST_PRICE, START - timedelta(days=9))
        prices.change(model, LATER_PRICE, START + timedelta(minutes=chance.randrange(30 * 24 * 60)))
    owner = keys[0].project.organization
    for number, points in enumerate((1_250, 0, 333)):
        begins = START + timedelta(days=10 * number, minutes=chance.randrange(9_999))
        Discount.objects.create(organization=owner, effective_from=begins, basis_points=points)


def use(
    chance: random.Random,
    key: APIKey,
    moment: datetime,
    *,
    is_free: bool = False,
    completion: int | None = None,
    model: str | None = None,
) -> None:
    """Settle a random request at that moment, a while after it was admitted."""
    model = model or chance.choice(["small", "large"])
    admitted_at = moment - timedelta(minutes=chance.choice([0, 0, 7]))
    price = History().at(model, admitted_at, key.project.organization_id)
    assert price is not None
    admission = ledger.Admission(
        identity.new_id(), key.project.organization_id, key.project_id, key.pk, "Asia/Tokyo",
        is_free, model, "chat.completions", "openai", True, 1, 1, 300, 1_000,
        pricing.FREE if is_free else price, 60_000,
    )  # fmt: skip
    prompt = chance.randrange(1, 3_000)
    completion = chance.choice([0, chance.randrange(1, 600)]) if completion is None else completion
    cached = chance.randrange(prompt)
    written = chance.choice([None, chance.randrange(prompt - cached + 1)])
    tokens = Tokens(prompt, completion, cached, chance.choice([None, completion // 3]), written, written)
    outcome = Outcome.COMPLETED if completion else chance.choice([Outcome.COMPLETED, Outcome.FAILED])
    with transaction.atomic():
        ledger.admit(admitted_at, [admission])
        claimed = run(admission, admitted_at)
        end = completed(claimed, tokens=tokens, outcome=outcome, usage_source=UsageSource.UPSTREAM)
        ledger.settle(moment, [end])


def correct(chance: random.Random, keys: list[APIKey], moment: datetime, *, is_rerating: bool) -> None:
    """Correct a charge that was written before."""
    before = LedgerEntry.objects.filter(
        kind__in=CHARGED, created_at__lt=moment, amount_nanodollars__gt=1, api_key__in=keys
    )
    if not (known := list(before.order_by("id"))):
        return
    charge = chance.choice(known)
    assert charge.generation_id is not None
    amount = chance.choice([-corrections.charged(charge.generation_id), 77])
    if amount:
        with transaction.atomic():
            corrections.write(moment, [Correction(charge, amount, "story", "test", is_rerating)])


def live(chance: random.Random, keys: list[APIKey], monkeypatch: pytest.MonkeyPatch, steps: int = 50) -> None:
    """Write a random history in the order of time."""
    organization = keys[0].project.organization
    use(chance, keys[0], START)
    minutes = sorted(chance.randrange(int((NOW - START).total_seconds() / 60)) for _ in range(steps))
    for moment in (START + timedelta(minutes=minute, microseconds=minute) for minute in minutes):
        match chance.choice(["use"] * 7 + ["free", "correct", "rerate", "grant", "refund"]):
            case "use":
                use(chance, chance.choice(keys), moment)
            case "free":
                use(chance, chance.choice(keys), moment, is_free=True)
            case "correct":
                correct(chance, keys, moment, is_rerating=False)
            case "rerate":
                correct(chance, keys, moment, is_rerating=True)
            case booking:
                set_clock(monkeypatch, moment)
                with suppress(NotBooked):
                    book = credit.grant if booking == "grant" else credit.refund
                    book(organization, chance.randrange(1, 10**9), NOTE)
    set_clock(monkeypatch)
