"""Tokens written to a prompt cache, from admission to every sum."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from django.db import transaction

from tests.usage.conftest import NOW, completed, run
from usage.books import ledger, receipts
from usage.database.sql import insert
from usage.insights import buckets
from usage.models import Generation, HourlyUsage, LedgerEntry
from usage.pricing import Price, Tokens, from_usd, to_usd
from usage.verification import verify

Ask = Callable[..., ledger.Admission]
COLUMNS = ("cache_write_tokens", "cache_write_1h_tokens")


def price(*usd: str) -> Price:
    first, output, write = map(from_usd, usd)
    return Price(first, first, output, None, write)


def settle(admission: ledger.Admission, tokens: Tokens) -> Generation:
    with transaction.atomic():
        ledger.admit(NOW, [admission])
        ledger.settle(NOW, [completed(run(admission), tokens=tokens)])
    return Generation.objects.get(pk=admission.id)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("usd", "uncached", "written", "output", "bill"),
    [
        (("3", "15", "3.75"), 3, 12_304, 550, "0.054399"),
        (("5", "25", "6.25"), 6, 159_217, 2_745, "1.06376125"),
    ],
)
def test_a_real_bill_is_charged_to_the_nanodollar(
    ask: Ask, usd: tuple[str, ...], uncached: int, written: int, output: int, bill: str
) -> None:
    prompt = uncached + written
    admission = ask(prompt_tokens_bound=prompt, max_output_tokens=output, price=price(*usd))
    row = settle(admission, Tokens(prompt, output, 0, None, written, 0))
    assert to_usd(row.amount_nanodollars) == bill
    lines = {line.name: line.tokens for line in receipts.line_items(row)}
    assert lines == {"input": uncached, "cache_write": written, "output": output}
    entry, hour = LedgerEntry.objects.get(), HourlyUsage.objects.get()
    for sums in (entry, hour):
        assert (sums.prompt_tokens, sums.cache_write_tokens, sums.cache_write_1h_tokens) == (
            prompt,
            written,
            0,
        )
        assert to_usd(sums.amount_nanodollars) == bill
    assert verify().differences == []


@pytest.mark.django_db
def test_the_hold_covers_the_most_expensive_kind_of_input(ask: Ask) -> None:
    dear = Price(from_usd("3"), 0, 0, None, from_usd("3.75"), from_usd("6"))
    admission = ask(price=dear, prompt_tokens_bound=1_000)
    row = settle(admission, Tokens(1_000, 0, 0, None, 1_000, 1_000))
    assert row.reserved_nanodollars == row.amount_nanodollars == 1_000 * 6_000
    assert LedgerEntry.objects.count() == 1, "nothing is beyond the hold"


@pytest.mark.django_db
def test_a_bucket_has_the_kinds_of_input(ask: Ask) -> None:
    row = settle(ask(), Tokens(10, 1, 2, None, 5, 1))
    query = buckets.BucketQuery(
        row.organization_id,
        "hour",
        datetime(2026, 11, 21, 12, tzinfo=UTC),
        datetime(2026, 11, 21, 13, tzinfo=UTC),
    )
    (bucket,) = buckets.buckets(query)
    (sums,) = bucket.sums
    assert (sums.prompt_tokens, sums.cached_tokens, sums.cache_write_tokens) == (10, 2, 5)


@pytest.mark.django_db
def test_entries_and_hours_of_an_older_process_have_no_cache_writes(ask: Ask) -> None:
    """An older process names only the columns that it knows; a newer one adds to the same hour."""
    settle(ask(), Tokens(10, 20, 4))
    hour = HourlyUsage.objects.values().get()
    older = {name: value for name, value in hour.items() if name not in (*COLUMNS, "id")}
    HourlyUsage.objects.all().delete()
    insert("usage_hourlyusage", list(older), [list(older.values())])
    settle(ask(), Tokens(10, 20, 0, None, 6, 2))
    row = HourlyUsage.objects.get()
    assert (row.requests, row.cache_write_tokens, row.cache_write_1h_tokens) == (2, 6, 2)
    assert verify().differences == []
