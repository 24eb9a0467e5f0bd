"""Page, export, usage API, rollups and ledger have the same numbers after any history."""

import csv
import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import transaction
from django.test import Client

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts import keys
from chatapi import identity
from tests.admin_pages import client_of, downloaded
from tests.cast import PRICE, Person
from usage import pricing
from usage.books import corrections, ledger
from usage.books.credit import Note
from usage.database.clock import database_now
from usage.exports import exporting
from usage.formatting import usd
from usage.insights import Range, series, top, totals
from usage.models import CHARGED, SPENT, LedgerEntry, Outcome, Price, UsageSource
from usage.pages import exports
from usage.pricing import TOKEN_COLUMNS, Tokens
from usage.rollups import ENTRY_COLUMNS, closed_days, closing
from usage.verification import seals, verify

# ---- each kind of token is everywhere


@pytest.mark.parametrize(
    "columns",
    [closed_days.SUMS, seals.COLUMNS, ENTRY_COLUMNS, exporting.COLUMNS, exports._SUMS, exports._REQUESTS],
)
def test_each_kind_of_token_is_added_up_sealed_and_exported(columns: Sequence[str]) -> None:
    assert {*TOKEN_COLUMNS} <= {*columns}


# ---- and all tell the same numbers

Numbers = Counter[str]
"""Requests, tokens in and out by kind, nanodollars."""
PRICE_TODAY = {
    "input_per_mtok_nanodollars": 140_000_000,
    "cached_input_per_mtok_nanodollars": 70_000_000,
    "output_per_mtok_nanodollars": 630_000_000,
}
"""At which charges of the closed days are re-rated."""
WRITTEN_1H = "cache_write_1h_tokens"
"""The API tells the written tokens together, as OpenAI does."""
NAMES = (
    *("requests", "prompt_tokens", "cached_tokens", "cache_write_tokens", WRITTEN_1H),
    *("completion_tokens", "amount_nanodollars"),
)
ENDS = [
    *[(Outcome.COMPLETED, UsageSource.UPSTREAM)] * 4,
    (Outcome.CLIENT_CANCELLED, UsageSource.COUNTED),
    (Outcome.FAILED, UsageSource.NONE),
]


def use(chance: random.Random, person: Person, moment: datetime) -> None:
    """Settle a random request of that person at that moment; Acme has a discount, test keys are free."""
    caller = person.caller
    price = (
        pricing.FREE
        if caller.is_test
        else pricing.discounted(PRICE, 1_250 if caller.organization_id % 2 else 0)
    )
    admission = ledger.Admission(
        identity.new_id(), caller.organization_id, caller.project_id, caller.api_key_id, "Europe/Berlin",
        caller.is_test, chance.choice(["small", "large"]), "chat.completions", "openai", True, 1, 1, 300,
        1_000, price, 60_000,
    )  # fmt: skip
    outcome, source = chance.choice(ENDS)
    # Now and then more than was held: an upstream that does not keep to its cap.
    prompt = chance.randrange(1, 3_000)
    cached = chance.randrange(prompt)
    written = chance.randrange(prompt - cached)
    tokens = (
        Tokens()
        if source == UsageSource.NONE
        else Tokens(prompt, chance.randrange(1, 600), cached, None, written, chance.randrange(written + 1))
    )
    with transaction.atomic():
        ledger.admit(moment, [admission])
        (claimed,) = ledger.claim(moment, [ledger.Claim(admission.id, "worker-1", 6_000)])
        assert isinstance(claimed, ledger.Claimed)
        ledger.settle(
            moment,
            [
                ledger.Settlement(
                    claimed.id, claimed.fence, outcome, tokens, source, attempts=1, first_token_ms=40
                )
            ],
        )


def correct_some(chance: random.Random) -> None:
    """Give some of a few charges back, and charge a bit more for others."""
    charges = list(LedgerEntry.objects.filter(kind__in=CHARGED, amount_nanodollars__gt=1).order_by("id"))
    for charge in chance.sample(charges, 5):
        corrections.correct(
            charge.pk, chance.choice([-charge.amount_nanodollars // 2, 77]), Note("story", "test")
        )


def numbers(rows: Iterable[Mapping[str, Any]]) -> Numbers:
    """Return the sums of ledger entries or of an export's lines."""
    found = Numbers()
    for row in rows:
        found["requests"] += row["kind"] == "charge"
        for name in NAMES[1:]:
            found[name] += row[name]
    return found


def told_by_the_api(secret: str, start: datetime) -> Numbers:
    """Return the sums over all buckets and groups of both routes."""
    client, found = Client(headers={"authorization": f"Bearer {secret}"}), Numbers()
    query = f"start_time={int(start.timestamp())}&limit=31&group_by=api_key_id"
    for bucket in client.get(f"/v1/organization/usage/completions?{query}&group_by=model").json()["data"]:
        for result in bucket["results"]:
            found["requests"] += result["num_model_requests"]
            found["prompt_tokens"] += result["input_tokens"]
            found["cached_tokens"] += result["input_cached_tokens"]
            found["cache_write_tokens"] += result["input_cache_write_tokens"]
            found["uncached_tokens"] += result["input_uncached_tokens"]
            found["completion_tokens"] += result["output_tokens"]
    for bucket in client.get(f"/v1/organization/costs?{query}&group_by=line_item").json()["data"]:
        found["amount_nanodollars"] += sum(
            round(result["amount"]["value"] * 10**9) for result in bucket["results"]
        )
    return found


@pytest.fixture
def people(alice: Person, bob: Person, charlie: Person) -> list[Person]:
    """Return the people, one with a test key of Alice's project; one organization has a discount."""
    row, key = keys.create_key(alice.project, name="test", is_test=True)
    return [alice, bob, charlie, replace(alice, api_key=row, key=key)]


@pytest.mark.parametrize("seed", range(4))
def test_all_tell_the_same(people: list[Person], seed: int, tmp_path: Path) -> None:
    chance, now = random.Random(seed), database_now()
    for _ in range(60):
        use(chance, chance.choice(people), now - timedelta(minutes=chance.randrange(4 * 24 * 60)))
    correct_some(chance)
    if seed % 2:
        assert list(iter(closing.close_next, None))
        # Charges of days that are closed by now: what changes is the hour of the correction.
        correct_some(chance)
        Price.objects.create(model="small", effective_from=now - timedelta(days=9), **PRICE_TODAY)
        rerated = StringIO()
        period = [f"--from={now - timedelta(days=5)}", f"--to={now}"]
        call_command("rerate", "--model=small", *period, stdout=rerated)
        assert "charges corrected" in rerated.getvalue()
    spent = LedgerEntry.objects.filter(kind__in=SPENT)
    expected = numbers(spent.values())
    over = Range.last(6, database_now())
    assert {name: getattr(totals(over), name) for name in expected} == expected
    root = User.objects.create_superuser("root")
    assert shown_on_the_page(root) == page_of(expected)
    assert numbers(exported(over, tmp_path)) == expected
    assert summed_on_the_page(root) == expected
    assert requested_on_the_page(root) == numbers(spent.filter(kind__in=CHARGED).values())
    for person in people[::2]:
        mine = numbers(spent.filter(organization=person.project.organization_id).values())
        _, secret = keys.create_key(person.project, name="books", is_admin=True)
        shown = told_by_the_api(secret, over.start)
        uncached = mine["prompt_tokens"] - mine["cached_tokens"] - mine["cache_write_tokens"]
        assert shown.pop("uncached_tokens") == uncached
        assert shown == Numbers({name: mine[name] for name in NAMES if name != WRITTEN_1H})
    assert groups_add_up(over, expected)
    assert verify().differences == []


def shown_on_the_page(root: User) -> list[str]:
    """Return the numbers of the Overview's first cards, to the last digit."""
    return [card.exact for card in client_of(root).get("/admin/?days=6").context["cards"][:3]]


def page_of(expected: Numbers) -> list[str]:
    tokens = expected["prompt_tokens"] + expected["completion_tokens"]
    return [usd(expected["amount_nanodollars"]), f"{expected['requests']:,}", f"{tokens:,}"]


def summed_on_the_page(root: User) -> Numbers:
    """Return the sums of the Overview's CSV."""
    found = Numbers()
    for row in csv.DictReader(
        downloaded(client_of(root), "/admin/overview.csv?days=6&group=key").splitlines()
    ):
        found.update({name: int(row[name]) for name in NAMES})
        assert Decimal(row["amount_usd"]) * 10**9 == int(row["amount_nanodollars"])
    return found


def requested_on_the_page(root: User) -> Numbers:
    """Return the sums of the requests that the Overview's numbers link to, without later corrections."""
    found = Numbers()
    for line in downloaded(client_of(root), "/admin/requests/export.ndjson?days=6&time=settled").splitlines():
        row = {"requests": 1, **json.loads(line)}
        found.update({name: row[name] or 0 for name in NAMES})
    return found


def exported(over: Range, folder: Path) -> list[dict[str, Any]]:
    """Return the lines of `exportusage`."""
    period = [f"--from={over.start.isoformat()}", f"--to={over.end.isoformat()}"]
    call_command("exportusage", *period, f"--output={folder / 'export'}", "--format=ndjson")
    return [json.loads(line) for line in (folder / "export" / "usage.ndjson").read_text().splitlines()]


def groups_add_up(over: Range, expected: Numbers) -> bool:
    """Check that each dimension and the days add up to the same amount."""
    for group_by in ("organization", "project", "key", "model", "outcome"):
        by_day = sum(point.totals.amount_nanodollars for point in series(over, group_by))
        assert (
            by_day
            == sum(row.totals.amount_nanodollars for row in top(over, group_by, n=100))
            == expected["amount_nanodollars"]
        )
    return True
