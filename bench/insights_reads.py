"""Fills the configured database with many requests by plain SQL and times the operator's reads; runs inside Django."""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any
from uuid import UUID

from django.core.management import call_command
from django.db import connection, reset_queries, transaction
from django.db.models import F

from accounts.models import APIKey, Organization, Project
from usage import budgets, insights
from usage.clock import database_now
from usage.insights import Filters, Range, RequestFilters
from usage.insights_buckets import BucketQuery, buckets
from usage.insights_starts import Width
from usage.models import Budget, BudgetLimit, HourlyUsage
from usage.sql import db_value

DAYS = 90
ORGANIZATIONS, KEYS_EACH = 20, 10
OPEN_GENERATIONS = 1_000
REPEATS = 5

Read = Callable[[], Any]


def measure(generations: int) -> None:
    """Fill the database and print each read's median and worst time, and how many queries it takes."""
    call_command("migrate", verbosity=0)
    began = time.perf_counter()
    fill(generations)
    seconds = time.perf_counter() - began
    print(f"\n## {connection.vendor}: {generations:,} generations in {DAYS} days, {HourlyUsage.objects.count():,} rows in the rollup")
    print(f"filled in {seconds:.0f} s\n\n| read | median ms | worst ms | queries |\n|---|---|---|---|")
    connection.force_debug_cursor = True
    for name, read in reads():
        times = []
        for _ in range(REPEATS):
            reset_queries()
            began = time.perf_counter()
            read()
            times.append((time.perf_counter() - began) * 1_000)
        print(f"| {name} | {statistics.median(times):.1f} | {max(times):.1f} | {len(connection.queries)} |", flush=True)


def reads() -> Iterator[tuple[str, Read]]:
    """What is measured, by name."""
    now = database_now()
    largest, smallest = Organization.objects.order_by("pk")[0].pk, Organization.objects.order_by("-pk")[0].pk
    key = APIKey.objects.order_by("pk")[0].pk
    for days in (1, 7, 30, 90):
        over = Range.last(days, now)
        yield f"totals, {days} days", partial(insights.totals, over)
        yield f"series by model, {days} days", partial(insights.series, over, "model")
        yield f"top keys, {days} days", partial(insights.top, over, "key")
    over = Range.last(90, now)
    yield "series by key of one organization, 90 days", partial(insights.series, over, "key", Filters(organization_id=largest))
    yield "time to first token, 90 days", partial(insights.first_token_ms, over)
    yield "time to first token of one key, 90 days", partial(insights.first_token_ms, over, Filters(api_key_id=key))
    yield "budgets near their limit", insights.budgets_near_limit
    yield f"running ({OPEN_GENERATIONS:,})", insights.running
    yield "health", insights.health
    midnight = over.end.replace(hour=0)
    longest: dict[Width, timedelta] = {"minute": timedelta(days=1), "hour": timedelta(days=7), "day": timedelta(days=31)}
    for width, length in longest.items():
        query = BucketQuery(largest, width, midnight - length, midnight, ("api_key_id", "model"))
        yield f"usage API, {length.days} days by the {width}, key and model", partial(buckets, query)
    yield "requests, first page", partial(insights.requests_page, RequestFilters())
    yield "requests, a page in the middle", partial(insights.requests_page, RequestFilters(until=over.start + (over.end - over.start) / 2))
    yield "requests, 100 pages", partial(walk, RequestFilters(), 100)
    for label, organization in (("largest", largest), ("smallest", smallest)):
        filters = RequestFilters(organization_id=organization)
        yield f"requests of the {label} organization", partial(insights.requests_page, filters)
    yield "requests that were lost (rare)", partial(insights.requests_page, RequestFilters(outcome="worker_lost"))
    yield "requests that nobody made (searches)", partial(insights.requests_page, RequestFilters(model="nothing"))
    yield "all of one rare outcome, to the end", partial(walk, RequestFilters(outcome="not_started"), 1_000)


def walk(filters: Any, pages: int) -> None:
    """So many pages, each after the one before."""
    cursor = None
    for _ in range(pages):
        cursor = insights.requests_page(filters, cursor).next_cursor
        if cursor is None:
            return


# ---- data: always the same; some organizations, keys and models are used far more than others


def fill(generations: int) -> None:
    """Tenants, settled generations with their ledger entries and hours, open ones, and budgets with limits."""
    is_postgresql = connection.vendor == "postgresql"
    if is_postgresql:
        # The service's limits are for its own statements; the reads are measured under them.
        _run("SET statement_timeout = 0")
        _run("SET idle_in_transaction_session_timeout = 0")
    with transaction.atomic():
        keys = _keys()
        _insert("usage_generation", _COLUMNS, _generations(generations, keys, database_now()))
        _run(_LEDGER)
        _run(_HOURS.format(hour="date_trunc('hour', created_at)" if is_postgresql else "substr(created_at, 1, 13) || ':00:00'"))
        _budgets(keys)
    _run("VACUUM ANALYZE" if is_postgresql else "ANALYZE")
    if is_postgresql:
        _run("RESET statement_timeout")


_COLUMNS = (
    "id", "organization_id", "project_id", "api_key_id", "is_test", "model", "endpoint", "dialect", "is_stream", "max_output_tokens",
    "input_per_mtok_nanodollars", "cached_input_per_mtok_nanodollars", "output_per_mtok_nanodollars", "reserved_nanodollars",
    "budget_day", "state", "lease_expires_at", "worker", "admitted_at", "claimed_at", "settled_at", "outcome", "usage_source",
    "prompt_tokens", "cached_tokens", "completion_tokens", "amount_nanodollars", "first_token_ms", "last_token_ms",
)  # fmt: skip
_LEDGER = """INSERT INTO usage_ledgerentry (kind, generation_id, organization_id, project_id, api_key_id, model, outcome, budget_day,
    created_at, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, amount_nanodollars)
    SELECT 'charge', id, organization_id, project_id, api_key_id, model, outcome, budget_day, settled_at, prompt_tokens, cached_tokens,
    completion_tokens, 0, amount_nanodollars FROM usage_generation WHERE state = 'settled' ORDER BY id"""
_HOURS = """INSERT INTO usage_hourlyusage (organization_id, hour, project_id, api_key_id, model, outcome, requests, prompt_tokens,
    cached_tokens, completion_tokens, reasoning_tokens, amount_nanodollars)
    SELECT organization_id, {hour} AS start, project_id, api_key_id, model, outcome, COUNT(*), SUM(prompt_tokens), SUM(cached_tokens),
    SUM(completion_tokens), 0, SUM(amount_nanodollars) FROM usage_ledgerentry
    GROUP BY organization_id, start, project_id, api_key_id, model, outcome ORDER BY start"""


def _keys() -> list[Any]:
    keys = []
    for number in range(ORGANIZATIONS):
        project = Project.objects.create(organization=Organization.objects.create(name=f"Organization {number}"))
        rows = [APIKey(project=project, name=f"key {each}", public=f"b{number:03}{each:08}", digest="0" * 64) for each in range(KEYS_EACH)]
        keys += APIKey.objects.bulk_create(rows)
    return keys


def _generations(count: int, keys: list[Any], last: datetime) -> Iterator[tuple[Any, ...]]:
    """Settled ones, evenly over the days, in the order of their ids; the last ones are still open."""
    chance = random.Random(1)
    first, step = last - timedelta(days=DAYS), timedelta(days=DAYS) / count
    outcomes = chance.choices(["completed", "client_cancelled", "failed", "worker_lost", "not_started"], [9_500, 300, 190, 9, 1], k=10_000)
    for number in range(count):
        admitted_at = first + number * step
        key = keys[int(len(keys) * chance.random() ** 3)]
        is_open = number >= count - OPEN_GENERATIONS
        prompt, completion = chance.randrange(10, 4_000), chance.randrange(1, 1_000)
        outcome = "" if is_open else chance.choice(outcomes)
        has_answer = outcome not in ("not_started", "")
        yield (
            _id(admitted_at, chance), key.project.organization_id, key.project_id, key.pk, False, f"model-{int(5 * chance.random() ** 2)}",
            "chat.completions", "openai", True, 1_000, 150_000_000, 75_000_000, 600_000_000, 1_200_000, admitted_at.date(),
            "running" if is_open else "settled", admitted_at + timedelta(seconds=6), "worker-1", admitted_at, admitted_at,
            None if is_open else admitted_at + timedelta(seconds=9), outcome, "upstream" if has_answer else "none", prompt, prompt // 3,
            completion, prompt * 125 + completion * 600 if has_answer else 0, chance.randrange(50, 900) if has_answer else None, 8_000,
        )  # fmt: skip


def _id(moment: datetime, chance: random.Random) -> UUID:
    """A UUIDv7 of that moment (RFC 9562, section 5.7)."""
    milliseconds = int(moment.timestamp() * 1_000)
    return UUID(int=milliseconds << 80 | 7 << 76 | chance.getrandbits(12) << 64 | 2 << 62 | chance.getrandbits(62))


def _budgets(keys: list[Any]) -> None:
    ids = {each for key in keys for each in budgets.ids_for(key.project.organization_id, key.project_id, key.pk, database_now().date())}
    budgets.ensure(ids)
    rows = Budget.objects.all()
    BudgetLimit.objects.bulk_create(
        BudgetLimit(scope=row.scope, scope_id=row.scope_id, period=row.period, limit_nanodollars=10**9 + row.scope_id) for row in rows
    )
    rows.update(posted_nanodollars=F("scope_id") * 1_000_000)


def _insert(table: str, columns: Sequence[str], rows: Iterator[tuple[Any, ...]]) -> None:
    """The fastest way into each database."""
    names = ", ".join(columns)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            with cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
            return
        values = ", ".join(["%s"] * len(columns))
        while batch := [tuple(map(db_value, row)) for row in islice(rows, 10_000)]:
            cursor.executemany(f"INSERT INTO {table} ({names}) VALUES ({values})", batch)


def _run(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)
