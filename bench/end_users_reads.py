"""Fills the configured database with end users and times admissions, pages and reports; runs inside Django.

Each end user has a row, usage of one model on one day, and the budgets that its first request makes.
"""

import math
import time
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import OperationalError, connection, transaction
from django.test import Client, override_settings
from django.urls import reverse

from accounts import keys
from accounts.models import EndUser, Project
from bench.insights_reads import BOUND_MS, Read, admission_terms, get, timed
from chatapi import identity
from usage.books import ledger
from usage.database.clock import database_now
from usage.insights.end_user_ranking import MAX_ROWS
from usage.models import BudgetLimit, HourlyUsage, Period, Scope
from usage.pricing import Price

DAYS = 40
"""The number of days over which the usage is spread."""
ADMISSIONS = 100
LIMIT_NANODOLLARS = 10**12
_BETWEEN = "WHERE project_id = %s AND id > %s"


def measure(*sizes: int) -> bool:
    """Print the times with each number of end users; return whether all are within the bound."""
    call_command("migrate", verbosity=0)
    project = keys.get_or_create_project("Bench", "people")
    Project.objects.filter(pk=project.pk).update(counts_end_users=True)
    keys.create_key(project, name="busiest")
    for period in (Period.DAY, Period.MONTH):
        limit = {"scope": Scope.PROJECT_END_USERS, "scope_id": project.pk, "period": period}
        BudgetLimit.objects.create(**limit, limit_nanodollars=LIMIT_NANODOLLARS)
    user = User.objects.create_superuser("bench")
    _, secret = keys.create_key(project, name="admin", is_admin=True)
    slowest = 0.0
    connection.force_debug_cursor = True
    for end_users in sizes:
        began = time.perf_counter()
        fill(project, end_users)
        seconds = time.perf_counter() - began
        print(f"\n## {connection.vendor}: {end_users:,} end users, filled in {seconds:.0f} s")
        print("\n| | median ms | worst ms | queries |\n|---|---|---|---|")
        for name, read in admissions(end_users):
            timed(name, read, ADMISSIONS)
        with override_settings(ALLOWED_HOSTS=["*"]):
            reads = [*pages(project, user), *routes(secret)]
            slowest = max(slowest, *(_timed_or_failed(name, read) for name, read in reads))
    verdict = "within" if slowest <= BOUND_MS else "BEYOND"
    print(f"\nThe slowest page or route: {slowest:.0f} ms, {verdict} {BOUND_MS} ms.")
    return slowest <= BOUND_MS


def _timed_or_failed(name: str, read: Read) -> float:
    """Return the median in milliseconds; infinite if a statement fails, such as by a timeout."""
    try:
        return timed(name, read).ms
    except OperationalError as error:
        print(f"| {name} | failed: {str(error).splitlines()[0]} | | |", flush=True)
        return math.inf


# ---- rows


def fill(project: Project, end_users: int) -> None:
    """Add end users up to this number, in SQL, because a million rows made by Python take long."""
    known = EndUser.objects.filter(name__startswith="person-").count()
    newest = EndUser.objects.order_by("-id").values_list("id", flat=True).first() or 0
    named = "'person-' || n"
    with transaction.atomic(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute(
            f"""INSERT INTO accounts_enduser (project_id, name)
            WITH RECURSIVE numbers(n) AS (
                SELECT CAST(%s AS bigint) UNION ALL SELECT n + 1 FROM numbers WHERE n < %s)
            SELECT CAST(%s AS bigint), {named} FROM numbers""",
            [known + 1, end_users, project.pk],
        )
        today = database_now().date()
        for day in range(DAYS):
            _use(cursor, project, newest, day, today - timedelta(days=day))
        for period in Period:
            _spend(cursor, project, newest, period, period.start(today))
        _use_by_hour(cursor, project)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def _use(cursor: Any, project: Project, newest: int, number: int, day: date) -> None:
    cursor.execute(
        f"""INSERT INTO usage_dailyenduserusage (organization_id, project_id, end_user_id, day, model,
            requests, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, amount_nanodollars)
        SELECT %s, project_id, id, %s, 'seed-small', 3, 300, 0, 60, 0, 420000 FROM accounts_enduser
        {_BETWEEN} AND id %% {DAYS} = %s""",
        [project.organization_id, day, project.pk, newest, number],
    )


def _use_by_hour(cursor: Any, project: Project) -> None:
    """Write the hourly usage that the daily usage sums up."""
    HourlyUsage.objects.all().delete()
    hour = {"sqlite": "day || ' 00:00:00'", "postgresql": "day::timestamp AT TIME ZONE 'UTC'"}
    sums = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
    cursor.execute(
        f"""INSERT INTO usage_hourlyusage (organization_id, project_id, api_key_id, model, outcome, hour,
            {", ".join(sums)}, amount_nanodollars)
        SELECT organization_id, project_id, %s, model, 'completed', {hour[connection.vendor]},
            {", ".join(f"SUM({name})" for name in sums)}, SUM(amount_nanodollars)
        FROM usage_dailyenduserusage GROUP BY organization_id, project_id, model, day""",
        [project.api_keys.order_by("id")[0].pk],
    )


def _spend(cursor: Any, project: Project, newest: int, period: Period, start: date) -> None:
    cursor.execute(
        f"""INSERT INTO usage_budget (id, scope, scope_id, period, period_start, posted_nanodollars,
            pending_nanodollars)
        SELECT 'end_user/' || id || '/{period.value}/{start}', 'end_user', id, '{period.value}', %s, 420000, 0
        FROM accounts_enduser {_BETWEEN}""",
        [start, project.pk, newest],
    )


# ---- what is measured, by name


def admissions(end_users: int) -> Iterator[tuple[str, Read]]:
    """Yield admissions of one request, each in a transaction of its own."""
    strangers = count()
    yield "admission, no end user", partial(admit, None)
    # Steps of a prime number visit all end users, in no order.
    known = (f"person-{step * 7_919 % end_users + 1}" for step in count())
    yield "admission of a known end user", lambda: admit(next(known))
    yield "admission of an end user's first request", lambda: admit(f"stranger-{end_users}-{next(strangers)}")


def admit(name: str | None) -> None:
    """Admit one request of this end user."""
    terms = admission_terms() | {"price": Price(1_000, 1_000, 2_000)}
    admission = ledger.Admission(
        id=identity.new_id(), end_user=name, counts_end_user=name is not None, **terms
    )
    with transaction.atomic():
        (result,) = ledger.admit(database_now(), [admission])
    assert isinstance(result, UUID), result


def pages(project: Project, user: User) -> Iterator[tuple[str, Read]]:
    """Yield reads of the pages that show end users."""
    client = Client()
    client.force_login(user)
    people = {"days": 30, "project": project.pk}
    today = database_now().date()
    last_month = today.replace(day=1) - timedelta(days=1)
    months = {
        "this month": {"start": today.replace(day=1), "end": today},
        "last month": {"start": last_month.replace(day=1), "end": last_month},
    }
    overview, requests = reverse("admin:index"), reverse("admin:requests")
    for name, month in months.items():
        by_end_user = partial(get, client, overview, group="end_user", project=project.pk, **month)
        yield f"/admin/ {name} by end user", by_end_user
    yield "/admin/ 30 days by end user, refused if many", partial(refused_if_many, client, project)
    yield "/admin/ 30 days of the project", partial(get, client, overview, **people)
    yield "/admin/ 30 days, of one end user", partial(get, client, overview, end_user="person-77", **people)
    yield "/admin/requests/ of one end user", partial(get, client, requests, end_user="person-77", **people)
    budget_list = reverse("admin:usage_budget_changelist")
    yield "/admin/ Budgets", partial(get, client, budget_list)
    yield "/admin/ Budgets, of end users", partial(get, client, budget_list, scope__exact="end_user")
    yield "/admin/ Budget limits", partial(get, client, reverse("admin:usage_budgetlimit_changelist"))
    yield "/admin/ Rate limits", partial(get, client, reverse("admin:accounts_ratelimit_changelist"))


def refused_if_many(client: Client, project: Project) -> None:
    """Open the Overview of 30 days by end user; fail unless it is refused (400) if there are too many."""
    query = {"days": 30, "group": "end_user", "project": project.pk}
    status = client.get(f"{reverse('admin:index')}?{urlencode(query)}").status_code
    assert status == (400 if EndUser.objects.count() > MAX_ROWS else 200), status


def routes(secret: str) -> Iterator[tuple[str, Read]]:
    """Yield reads of the organization's routes, grouped by end user or for two end users."""
    client = Client(headers={"authorization": f"Bearer {secret}"})
    end = datetime.combine(database_now().date(), datetime.min.time(), database_now().tzinfo)
    asked = {"start_time": int((end - timedelta(days=30)).timestamp()), "bucket_width": "1d", "limit": 31}
    for route in ("usage/completions", "costs"):
        path = f"/v1/organization/{route}"
        yield f"{path} 31 days by end user", partial(get, client, path, group_by="end_user", **asked)
        yield (
            f"{path} 31 days of two end users",
            partial(get, client, path, **asked, **{"end_users[]": ["person-77", "person-78"]}),
        )
