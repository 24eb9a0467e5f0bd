"""A key of one organization, and requests of it, for the stories about money."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from accounts.models import APIKey, Organization, Project
from chatapi import identity
from usage.books import ledger
from usage.database.group_commit import GroupCommit
from usage.models import BudgetLimit, Outcome, UsageSource
from usage.pricing import Price, Tokens

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
DOLLAR = 1_000_000_000
PRICE = Price(
    input_per_mtok_nanodollars=DOLLAR,
    cached_input_per_mtok_nanodollars=DOLLAR // 2,
    output_per_mtok_nanodollars=2 * DOLLAR,
)
"""A prompt token costs 1,000 n$, a cached one 500, a completion token 2,000."""


@pytest.fixture
def key(db: None) -> APIKey:
    """Return a key in its own project and organization, in UTC."""
    organization = Organization.objects.create(name="Ledger stories")
    project = Project.objects.create(organization=organization)
    return APIKey.objects.create(project=project, public="storystory12", digest="0" * 64)


@pytest.fixture
def ask(key: APIKey) -> Callable[..., ledger.Admission]:
    """Make the admission of a request: 10 prompt tokens at most, 20 completion tokens at most, so 50,000 n$
    are held.
    """

    def make(**changes: Any) -> ledger.Admission:
        usual = ledger.Admission(
            id=identity.new_id(),
            organization_id=key.project.organization_id,
            project_id=key.project_id,
            api_key_id=key.pk,
            time_zone="UTC",
            is_test=False,
            model="story",
            endpoint="chat.completions",
            dialect="openai",
            is_stream=True,
            choices_count=1,
            sampled_count=1,
            max_output_tokens=20,
            prompt_tokens_bound=10,
            price=PRICE,
            queue_ttl_ms=60_000,
        )
        return replace(usual, **changes)

    return make


def limit(scope: str, scope_id: int, period: str, nanodollars: int) -> None:
    """Set a budget's limit."""
    BudgetLimit.objects.create(scope=scope, scope_id=scope_id, period=period, limit_nanodollars=nanodollars)


def run(admission: ledger.Admission, now: datetime = NOW) -> ledger.Claimed:
    """Claim an admitted request."""
    (claimed,) = ledger.claim(now, [ledger.Claim(admission.id, "story worker", 6_000)])
    assert isinstance(claimed, ledger.Claimed)
    return claimed


def completed(
    claimed: ledger.Claimed, prompt: int = 10, completion: int = 20, **changes: Any
) -> ledger.Settlement:
    """Return the settlement of a run that was completed."""
    usual = ledger.Settlement(
        claimed.id, claimed.fence, Outcome.COMPLETED, Tokens(prompt, completion), UsageSource.UPSTREAM
    )
    return replace(usual, **changes)


async def admit_by_two(admissions: Sequence[ledger.Admission]) -> list[UUID | BaseException]:
    """Admit over two doors by turns, like two processes; return each result or exception."""
    doors = [GroupCommit(), GroupCommit()]
    try:
        asked = [
            doors[number % 2].write(ledger.admit, admission) for number, admission in enumerate(admissions)
        ]
        return await asyncio.gather(*asked, return_exceptions=True)
    finally:
        for door in doors:
            await door.close()


def plan(sql: str) -> str:
    """Return how the database would run a statement: on PostgreSQL, along an index that has the rows in their
    order, if there is one, because of so few rows any other way is as good.
    """
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            for way in ("seqscan", "bitmapscan", "sort"):
                cursor.execute(f"SET LOCAL enable_{way} = off")
        cursor.execute(("EXPLAIN " if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN ") + sql)
        return "\n".join(str(row[-1]) for row in cursor.fetchall())
