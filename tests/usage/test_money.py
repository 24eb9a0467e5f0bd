"""I7, I13: for any usage at any price, each row explains its amount, and the sums of the ledger are
the rollups.
"""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounts.models import APIKey
from tests.usage.conftest import NOW, run
from usage import pricing, rollups
from usage.books import ledger
from usage.books.ledger import Settlement
from usage.database.clock import hour_of
from usage.models import Generation, HourlyUsage, LedgerEntry, Outcome, UsageSource
from usage.pricing import Price, Tokens
from usage.verification import verify

Ask = Callable[..., ledger.Admission]

per_mtok = st.integers(0, 10**12)
maybe = st.none() | per_mtok
prices = st.builds(Price, per_mtok, per_mtok, per_mtok, maybe, maybe, maybe)
counts = st.integers(0, 2**31 - 1)
some = st.none() | counts


class Use(NamedTuple):
    """One request, and how many minutes after noon it was settled."""

    price: Price
    tokens: Tokens
    outcome: Outcome
    minutes: int
    model: str


usages = st.builds(
    Use,
    prices,
    st.builds(Tokens, counts, counts, some, some, some, some),
    st.sampled_from(Outcome),
    st.integers(0, 180),
    st.sampled_from(["small", "big"]),
)


@pytest.fixture
def keys(key: APIKey) -> list[APIKey]:
    """Return two keys of one project."""
    return [key, APIKey.objects.create(project=key.project, public="storystory34", digest="0" * 64)]


@given(st.lists(usages, min_size=1, max_size=12))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_explain_their_amounts_and_sums_are_the_rollups(
    keys: list[APIKey], ask: Ask, used: list[Use]
) -> None:
    with transaction.atomic():
        for number, use in enumerate(used):
            _run(use, ask(api_key_id=keys[number % 2].pk, price=use.price, model=use.model))
        for row in Generation.objects.all():
            charged = 0 if row.is_waived else pricing.amount(Tokens.of(row), row.price)
            assert row.amount_nanodollars == charged
        for by in ("api_key_id", "model", "hour"):
            assert _ledger_by(by) == _rollup_by(by)
        before = list(
            HourlyUsage.objects.order_by("hour", "api_key", "model", "outcome").values_list(*ROLLUP)
        )
        rollups.rebuild()
        assert (
            list(HourlyUsage.objects.order_by("hour", "api_key", "model", "outcome").values_list(*ROLLUP))
            == before
        )
        assert verify().differences == []
        transaction.set_rollback(True)


ROLLUP = (
    "hour",
    "api_key",
    "model",
    "outcome",
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "cache_write_tokens",
    "cache_write_1h_tokens",
    "amount_nanodollars",
)


def _run(use: Use, admission: ledger.Admission) -> None:
    now = NOW + timedelta(minutes=use.minutes)
    assert ledger.admit(now, [admission]) == [admission.id]
    claimed = run(admission, now)
    ledger.settle(
        now, [Settlement(admission.id, claimed.fence, use.outcome, use.tokens, UsageSource.UPSTREAM)]
    )


def _ledger_by(name: str) -> dict[object, int]:
    sums: Counter[object] = Counter()
    for entry in LedgerEntry.objects.all():
        sums[hour_of(entry.created_at) if name == "hour" else getattr(entry, name)] += (
            entry.amount_nanodollars
        )
    return dict(sums)


def _rollup_by(name: str) -> dict[object, int]:
    sums: Counter[object] = Counter()
    for row in HourlyUsage.objects.all():
        sums[getattr(row, name)] += row.amount_nanodollars
    return dict(sums)
