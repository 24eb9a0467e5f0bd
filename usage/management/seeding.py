"""Made-up usage in bulk: tenants, and months of their requests with everything that the books keep.

The same seed makes the same requests. Some organizations, keys and models are used far more than others;
nights and weekends are quieter; some requests fail, are cancelled or cost more than was held; some keys are
test keys.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any, NamedTuple

from django.db import connection, transaction

from accounts.models import APIKey, Organization, Project
from usage import pricing, rollups
from usage.books import prices
from usage.books.settlement import Attempt
from usage.database.sql import execute, fetch_all
from usage.models import SPENT, Budget, BudgetLimit, Discount, Generation, LedgerEntry, Period, Scope
from usage.models.budget_keys import BudgetKey, LimitKey
from usage.pricing import PRICE_COLUMNS, TOKEN_COLUMNS, Price, Tokens
from usage.statements import itemizing
from usage.verification import sum_checks

ORGANIZATIONS, KEYS_EACH = 20, 10
DISCOUNT_BASIS_POINTS = 2_000
MODELS = {
    "seed-small": Price(150_000_000, 75_000_000, 600_000_000),
    "seed-medium": Price(1_000_000_000, 250_000_000, 4_000_000_000, None, 1_250_000_000, 2_000_000_000),
    "seed-large": Price(2_500_000_000, 1_250_000_000, 10_000_000_000),
}
# The public part of a key has room for five digits.
MAX_SEED = 99_999
# No UUIDv7 has an earlier time.
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH, _MILLISECOND, _HOUR = datetime(1970, 1, 1), timedelta(milliseconds=1), timedelta(hours=1)
# Longer than any request takes: what was admitted so long before the end is settled by then.
_SLOWEST = timedelta(minutes=2)
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How many requests to make up, over how many days before which time."""

    generations: int
    days: int
    seed: int
    until: datetime

    @property
    def name(self) -> str:
        """Return the prefix of the organizations' names."""
        return f"Seed {self.seed}"

    @property
    def begin(self) -> datetime:
        return self.until - _SLOWEST - timedelta(days=self.days)


def seed(plan: Plan, progress: Progress) -> None:
    """Write tenants, prices, generations, ledger entries, budgets and rollups in one transaction, without
    seals.

    `progress` receives the number of generations written so far.
    """
    with transaction.atomic(), _without_time_limits():
        keys = _keys(plan)
        done = 0
        with _indexes_built_afterwards():
            for generations, entries in batches(plan, keys):
                _insert("usage_generation", GENERATION, generations)
                _insert("usage_ledgerentry", ENTRY, entries)
                done += len(generations)
                progress(done)
        # Closing the days joins both tables; without statistics it takes twice the time at 10^6 rows.
        analyze()
        _fill_budgets(plan)
        rollups.rebuild()
        itemizing.itemize_anew()


def analyze() -> None:
    """Update PostgreSQL's planner statistics, as autovacuum would within a minute."""
    if connection.vendor == "postgresql":
        with transaction.atomic():
            execute("SET LOCAL statement_timeout = 0", [])
            execute("ANALYZE", [])


@contextmanager
def _without_time_limits() -> Iterator[None]:
    """Lift PostgreSQL's time limits here, and for superusers the slow checks of foreign keys."""
    if connection.vendor != "postgresql":
        yield
        return
    execute("SET LOCAL statement_timeout = 0", [])
    execute("SET LOCAL idle_in_transaction_session_timeout = 0", [])
    _replicate("replica")
    yield
    _replicate("origin")


def _replicate(role: str) -> None:
    execute(
        f"""DO $$ BEGIN IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
        SET LOCAL session_replication_role = {role}; END IF; END $$""",  # noqa: S608  the text is ours
        [],
    )


@contextmanager
def _indexes_built_afterwards() -> Iterator[None]:
    """Fill empty tables of PostgreSQL before building their indexes, which halves the time again."""
    if connection.vendor != "postgresql" or Generation.objects.exists() or LedgerEntry.objects.exists():
        yield
        return
    indexes = fetch_all(
        """SELECT indexname, indexdef FROM pg_indexes AS i WHERE schemaname = current_schema()
        AND tablename IN ('usage_generation', 'usage_ledgerentry')
        AND NOT EXISTS (SELECT 1 FROM pg_constraint AS c WHERE c.conindid = CAST(i.indexname AS regclass))""",
        [],
    )
    for name, _ in indexes:
        execute(f"DROP INDEX {connection.ops.quote_name(name)}", [])
    yield
    execute("SET LOCAL maintenance_work_mem = '256MB'", [])
    for _, definition in indexes:
        execute(definition, [])


# ---- tenants


class Key(NamedTuple):
    """An API key with its owners and prices."""

    id: int
    project_id: int
    organization_id: int
    is_test: bool
    prices: dict[str, Price]


def _keys(plan: Plan) -> list[Key]:
    """Make organizations with a project and keys that nobody can use: their digests fit no secret."""
    first = plan.until - timedelta(days=plan.days)
    for model, price in MODELS.items():
        prices.change(model, price, first)
    keys = []
    for number in range(ORGANIZATIONS):
        organization = Organization.objects.create(name=f"{plan.name} organization {number}")
        project = Project.objects.create(organization=organization)
        points = 0 if number % 4 else DISCOUNT_BASIS_POINTS
        if points:
            prices.add_discount(
                Discount(organization=organization, effective_from=first, basis_points=points)
            )
        own = {model: pricing.discounted(price, points) for model, price in MODELS.items()}
        keys += [_key(plan, project, number * KEYS_EACH + each, own) for each in range(KEYS_EACH)]
    # They are as old as their first requests, so that pages compare with the time before.
    owners = {each.organization_id for each in keys}
    Organization.objects.filter(pk__in=owners).update(created_at=first)
    APIKey.objects.filter(pk__in=[each.id for each in keys]).update(created_at=first)
    return keys


def _key(plan: Plan, project: Project, number: int, own: dict[str, Price]) -> Key:
    is_test = number % 20 == 19
    public = f"s{plan.seed:05}{number:06}"
    row = APIKey.objects.create(
        project=project, name=f"key {number}", public=public, digest="0" * 64, is_test=is_test
    )
    free = dict.fromkeys(own, pricing.FREE)
    return Key(row.pk, project.pk, project.organization_id, is_test, free if is_test else own)


# ---- requests: thousands are made up in full and repeated at other times, which is several times as fast

GENERATION = (
    "id", "budget_day", "admitted_at", "claimed_at", "settled_at", "lease_expires_at",
    "organization_id", "project_id", "api_key_id", "is_test", "model", "endpoint", "dialect", "is_stream",
    "max_output_tokens", *PRICE_COLUMNS, "reserved_nanodollars", "state", "fence", "worker", "outcome",
    "error_code", "finish_reason", "deployment", "attempts", "attempt_log", "usage_source", *TOKEN_COLUMNS,
    "is_waived", "amount_nanodollars", "first_token_ms", "last_token_ms",
)  # fmt: skip
ENTRY = (
    "generation_id", "budget_day", "created_at", "kind", "organization_id", "project_id", "api_key_id",
    "model", "outcome", *TOKEN_COLUMNS, "amount_nanodollars",
)  # fmt: skip
_CREATED_AT = ENTRY.index("created_at")
_TEMPLATES = 20_000
_BATCH = 20_000
_MAX_OUTPUT_TOKENS = 1_000
_OUTCOMES = ("completed", "client_cancelled", "failed", "worker_lost", "not_started")
_SHARES = (9_500, 300, 190, 9, 1)
_ERRORS = {"failed": "upstream_error", "worker_lost": "worker_lost", "not_started": "queue_timeout"}
_FAILED_ATTEMPT = json.dumps([asdict(Attempt("seed", _ERRORS["failed"], 1_000))])

Row = tuple[Any, ...]


class _Template(NamedTuple):
    """A request without its id and times: the columns after those in `GENERATION` and `ENTRY`."""

    length: timedelta
    is_claimed: bool
    generation: Row
    entries: list[Row]


def batches(plan: Plan, keys: Sequence[Key]) -> Iterator[tuple[list[Row], list[Row]]]:
    """Yield generations and their ledger entries by thousands, in the order of admission and settlement."""
    chance = random.Random(plan.seed)  # noqa: S311  it makes no secrets
    templates = [_template(chance, keys) for _ in range(min(_TEMPLATES, 10 * plan.generations))]
    generations: list[Row] = []
    entries: list[Row] = []
    for moment in _moments(plan):
        template = templates[int(len(templates) * chance.random())]
        generation_id, begun, ended = _id(moment, chance), str(moment), str(moment + template.length)
        claimed = begun if template.is_claimed else _NULL[connection.vendor]
        generations.append((generation_id, begun[:10], begun, claimed, ended, ended, *template.generation))
        entries += [(generation_id, begun[:10], ended, *entry) for entry in template.entries]
        if len(generations) >= _BATCH:
            yield generations, sorted(entries, key=lambda entry: entry[_CREATED_AT])
            generations, entries = [], []
    yield generations, sorted(entries, key=lambda entry: entry[_CREATED_AT])


def _moments(plan: Plan) -> Iterator[datetime]:
    """Yield the starts of requests in naive UTC: fewer at night and on weekends, more each week."""
    first = plan.begin.astimezone(UTC).replace(tzinfo=None)
    starts = [first + number * _HOUR for number in range(plan.days * 24)]
    busy = [(1 if 7 <= start.hour < 20 else 0.35) * (0.5 if start.weekday() >= 5 else 1) for start in starts]
    grown = [weight * (1 + number / len(busy)) for number, weight in enumerate(busy)]
    total, before = sum(grown), 0
    for start, reached in zip(starts, accumulate(grown), strict=True):
        until = round(plan.generations * reached / total)
        yield from (start + _HOUR * number / (until - before) for number in range(until - before))
        before = until


def _template(chance: random.Random, keys: Sequence[Key]) -> _Template:
    draw = chance.random
    key = keys[int(len(keys) * draw() ** 3)]
    model = tuple(MODELS)[int(len(MODELS) * draw() ** 2)]
    (outcome,) = chance.choices(_OUTCOMES, _SHARES)
    has_answer = outcome in ("completed", "client_cancelled") or (outcome != "not_started" and draw() < 0.5)
    prompt, completion = (
        (10 + int(4_000 * draw() ** 2), 1 + int(_MAX_OUTPUT_TOKENS * draw() ** 2)) if has_answer else (0, 0)
    )
    cached = prompt // 3 if draw() < 0.4 else 0
    tokens = Tokens(prompt, completion, cached, cache_write_tokens=cached // 2)
    price = key.prices[model]
    amount = pricing.amount(tokens, price)
    # One in a thousand costs more than was held: its upstream exceeded the cap.
    held = amount // 2 if draw() < 0.001 else pricing.upper_bound(4 * prompt + 40, _MAX_OUTPUT_TOKENS, price)
    first_token_ms = int(80 * 20 ** draw()) if has_answer else None
    last_token_ms = first_token_ms + 30 * completion if first_token_ms is not None else None
    failed = has_answer and outcome == "failed"
    generation = (
        key.organization_id, key.project_id, key.id, key.is_test, model, "chat.completions", "openai", True,
        _MAX_OUTPUT_TOKENS, *price.columns().values(), held, "settled", 1, "worker-1", outcome,
        _ERRORS.get(outcome, ""), "stop" if outcome == "completed" else "", "seed" if has_answer else "",
        int(has_answer), _FAILED_ATTEMPT if failed else None, "upstream" if has_answer else "none",
        *tokens.columns().values(), not completion, amount, first_token_ms, last_token_ms,
    )  # fmt: skip
    shared = (key.organization_id, key.project_id, key.id, model, outcome)
    counts = [count or 0 for count in tokens.columns().values()]
    entries = [("charge", *shared, *counts, min(amount, held))]
    entries += [("overage", *shared, *[0] * len(counts), amount - held)] if amount > held else []
    length = timedelta(milliseconds=5 + (last_token_ms or 1_000))
    return _Template(
        length, outcome != "not_started", _adapted(generation), [_adapted(entry) for entry in entries]
    )


_NULL = {"sqlite": None, "postgresql": "\\N"}


def _adapted(row: Row) -> Row:
    """Return the row as the database takes it: PostgreSQL's COPY takes text."""
    if connection.vendor != "postgresql":
        return row
    return tuple(_NULL["postgresql"] if value is None else str(value) for value in row)


def _id(moment: datetime, chance: random.Random) -> str:
    """Return a UUIDv7 of that time (RFC 9562, section 5.7) in hexadecimal."""
    bits = chance.getrandbits(74)
    return f"{(moment - _EPOCH) // _MILLISECOND:012x}7{bits >> 62:03x}{2 << 62 | bits & ((1 << 62) - 1):016x}"


# ---- budgets and limits


def _fill_budgets(plan: Plan) -> None:
    """Write the budgets of the new organizations, and limits that some of them have nearly reached."""
    spent = LedgerEntry.objects.filter(
        organization__name__startswith=f"{plan.name} organization", kind__in=SPENT
    )
    posted = sum_checks.by_budget(spent, "amount_nanodollars")
    rows = [
        Budget.new(BudgetKey.parse(each), id=each, posted_nanodollars=amount)
        for each, amount in sorted(posted.items())
        if amount
    ]
    Budget.objects.bulk_create(rows, batch_size=500)
    _limit(rows)


def _limit(rows: Sequence[Budget]) -> None:
    """Give each organization, project and key a monthly limit that it has not reached, and each project one
    of the week; some are close.
    """
    spent = Counter({row.key: row.posted_nanodollars for row in rows if row.period == Period.MONTH})
    for row in rows:
        if (row.scope, row.period) == (Scope.PROJECT, Period.DAY):
            week = BudgetKey.at(Scope.PROJECT, row.scope_id, Period.WEEK, row.period_start)
            spent[week] += row.posted_nanodollars
    most: dict[LimitKey, int] = {}
    for key, amount in spent.items():
        most[LimitKey.of(key)] = max(most.get(LimitKey.of(key), 0), amount)
    BudgetLimit.objects.bulk_create(
        BudgetLimit.new(key, limit_nanodollars=amount * (21 + at % 20) // 20)
        for at, (key, amount) in enumerate(most.items())
    )


def _insert(table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Insert in the fastest way of each database."""
    names = ", ".join(columns)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            with cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
                copy.write("".join(["\t".join(row) + "\n" for row in rows]))
            return
        values = ", ".join(["%s"] * len(columns))
        # No part of the statement comes from a client; its values are parameters.
        cursor.executemany(f"INSERT INTO {table} ({names}) VALUES ({values})", rows)  # noqa: S608
