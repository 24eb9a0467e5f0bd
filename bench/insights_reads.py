"""Fills the configured database with made-up usage and times the pages and reports of operators, owners and
members who are limited to a project; runs inside Django.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection, reset_queries, transaction
from django.http import HttpResponse
from django.test import Client, override_settings

from accounts import keys, memberships
from accounts.models import APIKey, Member, Organization, Project, Role
from bench import page_routes
from chatapi import identity
from usage import insights
from usage.books import ledger
from usage.database.clock import database_now
from usage.insights import Range, RequestFilters
from usage.models import ClosedDay, DailyTotals, DailyUsage, HourlyUsage
from usage.pricing import Price

OPEN_GENERATIONS = 1_000
REPEATS = 3
# The bounds of each page and route; the weight is bounded for pages only, and counts without compression.
BOUND_MS, BOUND_QUERIES, BOUND_KB = 1_000, 12, 150
# With Stripe the page of credit has its form and its payments; opening it does not call Stripe.
STRIPE = {"STRIPE_API_KEY": "sk_test_bench", "STRIPE_WEBHOOK_SECRET": "whsec_bench"}

Read = Callable[[], Any]


class Cost(NamedTuple):
    """The cost of an answer: the median of its times, its queries and its weight."""

    ms: float
    queries: int
    kb: float
    is_page: bool

    @property
    def beyond(self) -> list[str]:
        """Return the figures that exceed their bounds, with their units."""
        bounds = {
            f"{self.ms:.0f} ms": self.ms > BOUND_MS,
            f"{self.queries} queries": self.queries > BOUND_QUERIES,
            f"{self.kb:.0f} kB": self.is_page and self.kb > BOUND_KB,
        }
        return [text for text, is_beyond in bounds.items() if is_beyond]


def measure(generations: int) -> bool:
    """Fill the database and print the cost of each read: median and worst time, queries and weight; return
    whether every page and route is within the bounds.
    """
    call_command("migrate", verbosity=0)
    began = time.perf_counter()
    # No page shows seals, and ten million entries take longer to seal than to make.
    call_command("seedusage", generations=generations, unsealed=True)
    _open_some()
    seconds = time.perf_counter() - began
    print(
        f"\n## {connection.vendor}: {generations:,} generations, filled in {seconds:.0f} s; "
        "rows of the rollups: ",
        end="",
    )
    tables = (HourlyUsage, DailyUsage, DailyTotals, ClosedDay)
    print(", ".join(f"{table.objects.count():,} {table._meta.verbose_name_plural}" for table in tables))
    print("\n| read | median ms | worst ms | queries | kB |\n|---|---|---|---|---|")
    connection.force_debug_cursor = True
    with override_settings(ALLOWED_HOSTS=["*"], **STRIPE):
        reads = [*pages(), *routes()]
        costs = [(name, timed(name, read)) for name, read in reads]
        for walk_name, read in walks():
            timed(walk_name, read)
    return judged(costs)


def judged(costs: Sequence[tuple[str, Cost]]) -> bool:
    """Print the largest costs and those that exceed a bound; return whether none does.

    A page that several readers open has a cost for each.
    """
    slowest, slowest_cost = max(costs, key=lambda found: found[1].ms)
    most, most_cost = max(costs, key=lambda found: found[1].queries)
    heaviest, heaviest_cost = max(costs, key=lambda found: found[1].is_page and found[1].kb)
    print(f"\nThe slowest page or route: {slowest}, {slowest_cost.ms:.0f} ms of at most {BOUND_MS}.")
    print(f"The most queries: {most}, {most_cost.queries} of at most {BOUND_QUERIES}.")
    print(f"The heaviest page: {heaviest}, {heaviest_cost.kb:.0f} kB of at most {BOUND_KB}.")
    beyond = [(name, cost.beyond) for name, cost in costs if cost.beyond]
    for name, texts in beyond:
        print(f"BEYOND the bounds: {name}, {', '.join(texts)}.")
    return not beyond


def timed(name: str, read: Read, repeats: int = REPEATS) -> Cost:
    """Measure a read, print its line and return its cost."""
    times = []
    for _ in range(repeats):
        reset_queries()
        began = time.perf_counter()
        answer = read()
        times.append((time.perf_counter() - began) * 1_000)
    weight, is_page = 0.0, False
    if isinstance(answer, HttpResponse):
        weight, is_page = len(answer.content) / 1_000, answer["content-type"].startswith("text/html")
    cost = Cost(statistics.median(times), len(connection.queries), weight, is_page)
    print(f"| {name} | {cost.ms:.1f} | {max(times):.1f} | {cost.queries} | {cost.kb:.0f} |", flush=True)
    return cost


# ---- what is measured, by name


def pages() -> Iterator[tuple[str, Read]]:
    """Yield every page of admin and console, as its reader gets it: the whole request, rendered."""
    project, key = busiest_key()
    operator, owner = User.objects.create_superuser("bench"), User.objects.create_user("bench-owner")
    page_routes.furnish(project, owner)
    limited = User.objects.create_user("bench-limited")
    memberships.join(Member(organization=project.organization, user=limited, role=Role.MEMBER), [project], [])
    of_console = page_routes.of_console
    for reader, found in (
        (operator, page_routes.of_admin(key)),
        (owner, of_console(key)),
        (limited, of_console(key)),
    ):
        client = Client()
        client.force_login(reader)
        for path, queries in found:
            # Left out: routes that only take a form, redirect, or are not for this reader.
            if client.get(path).status_code not in (302, 403, 404, 405):
                for url in (path, *(f"{path}?{query}" for query in queries)):
                    yield url, partial(get, client, url)


def routes() -> Iterator[tuple[str, Read]]:
    """Yield the routes of the organization, read with its admin key."""
    busiest, _ = busiest_key()
    _, secret = keys.create_key(busiest, name="bench", is_admin=True)
    client = Client(headers={"authorization": f"Bearer {secret}"})
    end = database_now().replace(hour=0, minute=0, second=0, microsecond=0)
    asked = (
        ("usage/completions", "1m", 1_440, ("api_key_id", "model")),
        ("usage/completions", "1h", 168, ("api_key_id", "model")),
        ("usage/completions", "1d", 31, ("api_key_id", "model")),
        ("costs", "1d", 180, ("line_item", "project_id", "api_key_id")),
    )
    lengths = {"1m": timedelta(minutes=1), "1h": timedelta(hours=1), "1d": timedelta(days=1)}
    for route, width, limit, group_by in asked:
        start = int((end - limit * lengths[width]).timestamp())
        query = {"start_time": start, "bucket_width": width, "limit": limit, "group_by": group_by}
        yield (
            f"/v1/organization/{route} {limit} × {width}",
            partial(get, client, f"/v1/organization/{route}", **query),
        )


def walks() -> Iterator[tuple[str, Read]]:
    """Yield slow reads without bounds: another time zone, and many pages in a row."""
    # There are no daily sums for days of other time zones: their hours are read.
    elsewhere = Range.last(31, database_now(), "Asia/Kolkata")
    yield "31 days by the day of another time zone", partial(insights.series, elsewhere, "model")
    yield "100 pages of requests", partial(walk, RequestFilters(), 100)
    yield "all of one rare outcome, to the end", partial(walk, RequestFilters(outcome="not_started"), 1_000)


def walk(filters: Any, pages: int) -> None:
    """Read this number of pages, each after the one before."""
    cursor = None
    for _ in range(pages):
        cursor = insights.requests_page(filters, cursor).next_cursor
        if cursor is None:
            return


def get(client: Client, path: str, **query: Any) -> Any:
    """Return the answer of a page or a route; fail unless it is 200."""
    response = client.get(f"{path}?{urlencode(query, doseq=True)}" if query else path)
    status = response.status_code
    assert status == 200, f"{path} {query}: {status} {response.content[:200]!r}"
    return response


def busiest_key() -> tuple[Project, APIKey]:
    """Return the project of the key that is used most, and the key."""
    key = APIKey.objects.filter(project__organization=Organization.objects.order_by("id")[0]).order_by("id")[
        0
    ]
    return key.project, key


def admission_terms() -> dict[str, Any]:
    """Return the arguments of a free admission for the busiest key, without an id."""
    project, key = busiest_key()
    return {
        "organization_id": project.organization_id, "project_id": project.pk, "api_key_id": key.pk,
        "time_zone": "UTC", "is_test": False, "model": "seed-small", "endpoint": "chat.completions",
        "dialect": "openai", "is_stream": True, "choices_count": 1, "sampled_count": 1,
        "max_output_tokens": 1_000, "prompt_tokens_bound": 100, "price": Price(0, 0, 0),
        "queue_ttl_ms": 86_400_000,
    }  # fmt: skip


def _open_some() -> None:
    """Admit `OPEN_GENERATIONS` requests that may wait for a worker for a day."""
    asked = admission_terms()
    for _ in range(0, OPEN_GENERATIONS, 100):
        with transaction.atomic():
            ledger.admit(
                database_now(), [ledger.Admission(id=identity.new_id(), **asked) for _ in range(100)]
            )
