"""Each line of a statement is of one project, model, kind of token and price: recomputed from the ledger."""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.core.management import call_command
from django.test import Client

from accounts import keys
from accounts.models import APIKey, Project
from tests.usage.billing_months import (
    FIRST_PRICE,
    LATER_PRICE,
    NOW,
    START,
    close_all,
    keys_of,
    live,
    set_clock,
    set_prices,
    use,
)  # fmt: skip
from tests.usage.test_statements import FEBRUARY, JANUARY, MARCH, made_of
from usage import pricing
from usage.books import prices
from usage.models import CHARGED, Discount, Generation, Kind, LedgerEntry, Outcome, Price
from usage.statements.document import StatementDocument
from usage.statements.month import Month
from usage.verification import verify

INPUTS = ("input", "cached_input", "cache_write", "cache_write_1h")


class Label(NamedTuple):
    """What all requests of a line have in common; prices in nanodollars for a million tokens."""

    project_id: str
    project: str
    model: str
    kind: str
    list_price: int
    price: int


class Sums(NamedTuple):
    requests: int = 0
    tokens: int = 0
    list_amount: int = 0
    amount: int = 0


@pytest.fixture
def owners(db: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[list[APIKey]]:
    """Write a random history of two organizations. Their projects have the same names, two projects share two
    models, and the third one has a model of its own.
    """
    chance = random.Random(request.param)
    organizations = [keys_of(name) for name in ("Acme", "Umbrella")]
    set_prices(chance, organizations[0])
    prices.change("own", FIRST_PRICE, START - timedelta(days=9))
    prices.change("own", LATER_PRICE, START + timedelta(minutes=chance.randrange(30 * 24 * 60)))
    for each in organizations:
        live(chance, each, monkeypatch)
        project = Project.objects.create(organization=each[0].project.organization, name="project 2")
        third, _ = keys.create_key(project, name="third")
        for _ in range(15):
            minutes = chance.randrange(int((NOW - START).total_seconds() / 60))
            use(chance, third, START + timedelta(minutes=minutes), model=chance.choice(["own", "small"]))
    close_all()
    return organizations


def lines_of(made: StatementDocument) -> dict[Label, Sums]:
    found = {
        Label(
            line.project_id, line.project, line.model, line.kind,
            nanodollars(line.list_price_per_mtok_usd), nanodollars(line.price_per_mtok_usd),
        ): Sums(line.requests, line.tokens, line.list_amount.nanodollars, line.amount.nanodollars)
        for line in made.lines
    }  # fmt: skip
    assert len(found) == len(made.lines), "two lines have the same label"
    return found


def nanodollars(usd: str | None) -> int:
    assert usd is not None
    return round(float(usd) * 10**9)


def entries_of(key: APIKey, month: Month) -> Any:
    return LedgerEntry.objects.filter(
        organization=key.project.organization_id, created_at__gte=month.start, created_at__lt=month.end
    )


def recomputed(key: APIKey, month: Month) -> dict[Label, Sums]:
    """Return the lines of the requests that were charged in the month, one request after the other."""
    found: defaultdict[Label, Sums] = defaultdict(Sums)
    charged: Counter[Generation] = Counter()
    for entry in entries_of(key, month).filter(kind__in=CHARGED).select_related("generation__project"):
        charged[entry.generation] += entry.amount_nanodollars
    for row, amount in charged.items():
        price = price_of(row)
        listed = list_price(row) if any(price.columns().values()) else pricing.FREE
        total = 0
        for kind, tokens in parts_of(row, price):
            per_mtok, full = (getattr(each, f"{kind}_per_mtok_nanodollars") for each in (price, listed))
            label = Label(str(row.project_id), row.project.name, row.model, kind, full, per_mtok)
            one = (1, tokens, cost(tokens, full), cost(tokens, per_mtok))
            found[label] = Sums(*(before + more for before, more in zip(found[label], one, strict=True)))
            total += cost(tokens, per_mtok)
        assert total == amount, "the ledger has another amount"
    return found


def price_of(row: Generation) -> pricing.Price:
    """Return the price that the request was charged at: a failure without output is free."""
    is_waived = row.outcome != Outcome.COMPLETED and not row.completion_tokens
    return pricing.FREE if is_waived else pricing.Price.of(row)


def list_price(row: Generation) -> pricing.Price:
    """Return the price of the time when the request was admitted, before the discount."""
    known = Price.objects.filter(model=row.model, effective_from__lte=row.admitted_at)
    return pricing.Price.of(known.latest("effective_from"))


def parts_of(row: Generation, price: pricing.Price) -> Iterator[tuple[str, int]]:
    """Yield the tokens of each kind that has a price of its own."""
    assert row.prompt_tokens is not None
    assert row.completion_tokens is not None
    written, hourly = row.cache_write_tokens or 0, row.cache_write_1h_tokens or 0
    has_written = price.cache_write_per_mtok_nanodollars is not None
    has_hourly = price.cache_write_1h_per_mtok_nanodollars is not None
    has_reasoning = price.reasoning_per_mtok_nanodollars is not None
    reasoning = (row.reasoning_tokens or 0) * has_reasoning
    apart = {
        "cached_input": row.cached_tokens or 0,
        "cache_write": (written - hourly * has_hourly) * has_written,
        "cache_write_1h": hourly * has_hourly,
    }
    kinds = {
        "input": row.prompt_tokens - sum(apart.values()), **apart,
        "output": row.completion_tokens - reasoning, "reasoning": reasoning,
    }  # fmt: skip
    yield from ((kind, tokens) for kind, tokens in kinds.items() if tokens)


def cost(tokens: int, per_mtok: int) -> int:
    """Return the price of the tokens, rounded half up."""
    return (2 * tokens * per_mtok + 10**6) // (2 * 10**6)


@pytest.mark.parametrize("owners", range(3), indirect=True)
def test_each_line_and_each_credit_note_has_what_its_label_says(owners: list[list[APIKey]]) -> None:
    models, reasons = set(), set()
    for key, _ in owners:
        for month in (JANUARY, FEBRUARY, MARCH):
            made = made_of(key, month)
            lines, notes = lines_of(made), credit_notes_of(made)
            assert lines == recomputed(key, month)
            assert notes == recomputed_credit_notes(key, month)
            models |= {(label.project, label.model) for label in lines}
            reasons |= {reason for *_, reason in notes}
    assert {("project 0", "small"), ("project 1", "small"), ("project 2", "own")} <= models
    assert reasons == {"correction", "rerating"}
    assert verify().differences == []


@pytest.mark.parametrize("is_free", [True, False])
def test_a_discount_of_everything_is_none_of_test_requests(
    db: None, monkeypatch: pytest.MonkeyPatch, is_free: bool
) -> None:
    """Both are charged nothing: a test request because it is one, a live one by the discount."""
    set_clock(monkeypatch)
    key, long_ago = keys_of("Acme")[0], START - timedelta(days=9)
    prices.change("plain", pricing.Price(10**9, 10**9, 10**9), long_ago)
    owner = key.project.organization
    Discount.objects.create(organization=owner, effective_from=long_ago, basis_points=10_000)
    use(random.Random(1), key, START, is_free=is_free, completion=10, model="plain")
    close_all()
    made = made_of(key, JANUARY)
    assert {line.price_per_mtok_usd for line in made.lines} == {"0"}
    assert {line.list_price_per_mtok_usd for line in made.lines} == {"0" if is_free else "1"}
    assert made.totals.discount == made.totals.list_amount
    assert bool(made.totals.list_amount.nanodollars) == (not is_free)


CreditNotes = dict[tuple[str, str, str, str], tuple[int, int]]
"""The number and the sum of corrections by project, model, corrected month and reason."""


def credit_notes_of(made: StatementDocument) -> CreditNotes:
    found: CreditNotes = {
        (note.project_id, note.model, note.corrects, note.reason): (note.corrections, note.amount.nanodollars)
        for note in made.credit_notes
    }
    assert len(found) == len(made.credit_notes), "two credit notes have the same label"
    return found


def recomputed_credit_notes(key: APIKey, month: Month) -> CreditNotes:
    """Return the credit notes of the corrections in the month, one correction after the other."""
    found: defaultdict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for row in entries_of(key, month).filter(kind=Kind.CORRECTION).select_related("corrects"):
        reason = "rerating" if row.is_rerating else "correction"
        charged_at: datetime = row.corrects.created_at
        label = (str(row.project_id), row.model, f"{charged_at:%Y-%m}", reason)
        found[label].append(row.amount_nanodollars)
    return {label: (len(amounts), sum(amounts)) for label, amounts in found.items()}


Tokens = dict[tuple[str, str], dict[str, int]]
"""By project and model."""


@pytest.mark.parametrize("owners", range(2), indirect=True)
def test_the_usage_api_and_the_exports_have_the_same_tokens(
    owners: list[list[APIKey]], tmp_path: Path
) -> None:
    for number, (key, _) in enumerate(owners):
        _, secret = keys.create_key(key.project, name="books", is_admin=True)
        for month in (JANUARY, FEBRUARY, MARCH):
            made = made_of(key, month)
            used = used_by_api(secret, month)
            assert sum(each.pop("requests") for each in used.values()) == made.totals.requests
            assert with_tokens(used) == stated(made)
            assert with_tokens(exported(key, month, tmp_path / f"{number} {month}")) == {
                label: {name: sums[name] for name in ("input", "output")}
                for label, sums in stated(made).items()
            }


def stated(made: StatementDocument) -> Tokens:
    """Return the tokens of the lines, with those that were read from the cache."""
    found: Tokens = {}
    for line in made.lines:
        sums = found.setdefault((line.project_id, line.model), {"input": 0, "output": 0, "cached": 0})
        sums["input" if line.kind in INPUTS else "output"] += line.tokens
        sums["cached"] += line.tokens if line.kind == "cached_input" else 0
    return found


def used_by_api(secret: str, month: Month) -> Tokens:
    """Return what `/v1/organization/usage/completions` says."""
    client = Client(headers={"authorization": f"Bearer {secret}"})
    asked: dict[str, Any] = {
        "start_time": int(month.start.timestamp()), "end_time": int(month.end.timestamp()),
        "group_by": ["project_id", "model"], "limit": 31,
    }  # fmt: skip
    found: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    answer = client.get("/v1/organization/usage/completions", asked).json()
    assert not answer["has_more"]
    for result in (each for bucket in answer["data"] for each in bucket["results"]):
        found[result["project_id"], result["model"]] += Counter(
            input=result["input_tokens"],
            output=result["output_tokens"],
            cached=result["input_cached_tokens"],
            requests=result["num_model_requests"],
        )
    return {
        label: {name: sums[name] for name in ("input", "output", "cached", "requests")}
        for label, sums in found.items()
    }


def exported(key: APIKey, month: Month, folder: Path) -> Tokens:
    """Return the tokens of the export of the month's ledger."""
    period = [f"--from={month.start.isoformat()}", f"--to={month.end.isoformat()}"]
    owner = f"--organization={key.project.organization.name}"
    call_command("exportusage", *period, owner, f"--output={folder}", "--format=ndjson")
    found: Tokens = {}
    for row in map(json.loads, (folder / "usage.ndjson").read_text().splitlines()):
        if row["kind"] in CHARGED:
            sums = found.setdefault((str(row["project_id"]), row["model"]), {"input": 0, "output": 0})
            sums["input"] += row["prompt_tokens"]
            sums["output"] += row["completion_tokens"]
    return found


def with_tokens(found: Tokens) -> Tokens:
    """Leave out projects and models whose requests used no tokens; they have no line."""
    return {label: sums for label, sums in found.items() if any(sums.values())}
