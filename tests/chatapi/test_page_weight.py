"""Every page of the console and of the admin is small, asks little, has a landmark and a link to its content,
and a policy without scripts in the page.

The pages are those of the URL configuration, so that a new one is measured, too. They are full: each list has
more rows than one page of it, days are closed, models have prices, and the organization has a discount. An
operator and an owner read the admin, an owner the console.
"""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import product
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts import certificates, groups, keys, memberships
from accounts.models import (
    APIKey,
    Certificate,
    CertificateProject,
    Group,
    GroupMember,
    GroupProject,
    Member,
    Organization,
    Project,
    RateLimit,
    Role,
)
from accounts.models.organizations import MAX_PROJECTS
from chatapi import identity
from chatapi.models import Deployment, ServedModel
from tests import page_paths
from tests.admin_pages import client_of
from tests.cast import PRICE, Person, admit, join, run
from tests.chatapi import test_access_matrix, test_console_access
from tests.fake_stripe import Stripe
from usage.books import prices
from usage.insights import generation_list
from usage.models import BudgetLimit, Discount, Generation, HourlyUsage, Outcome
from usage.rollups import closing, refused_requests
from usage.rollups.refused_requests import Refusal

# Some hundred pages, one after the other, on a machine that has other work.
pytestmark = pytest.mark.timeout(180)
MAX_BYTES, MAX_QUERIES = 150_000, 12
# Groups that fill a chart, and those that no rollup has, with filters.
GROUPED = (
    *(f"days=90&group={group}&groups=1" for group in ("key", "project", "model")),
    "days=30&group=error&groups=1",
    "days=30&bucket=hour&group=key",
    "days=30&bucket=hour&group=metadata",
    *(
        f"days=30&group={group}&{owner}"
        for group in ("project", "model")
        for owner in ("project={project}", "key={key}")
    ),
    *(
        f"days=30&group={group}{narrowed}"
        for group in ("error", "metadata", "end_user")
        for narrowed in (
            "",
            "&project={project}",
            "&key={key}",
            "&project={project}&key={key}",
            "&model=model-1",
            "&outcome=failed",
            "&error=error_1",
            "&metadata={pair}",
            "&end_user={end_user}&organization={organization}",
            "&end_user={end_user}&key={key}",
            "&project={project}&error=error_1&metadata={pair}",
            "&project={project}&error=error_1&metadata={pair}&end_user={end_user}",
        )
    ),
)
# Queries of the pages that show more than their first view.
ADMIN_VIEWS = {
    "index": (
        "days=90&group=key",
        "days=30&bucket=hour&group=key",
        "group=error",
        "days=1&group=project",
        "group=outcome",
        "days=30&organization={organization}",
        "days=30&key={key}",
        "days=30&model=small",
        *GROUPED,
        # Owners that are not of each other.
        "days=30&group=error&organization={another}&project={project}",
        "days=30&group=error&organization={another}&key={key}",
        "days=30&group=error&organization={another}&project={another_project}&key={key}",
    ),
    "requests": ("outcome=any_error", "days=7&time=settled", "project={project}", "key={key}"),
}
CONSOLE_VIEWS = {
    "overview": (
        "project={project}",
        "group=key",
        "group=error",
        "days=90&group=key",
        "days=1&group=outcome",
        *GROUPED,
    ),
    "usage": ("project={project}", "key_kind=live&model=small", "days=90", "days=30&bucket=hour", *GROUPED),
    "requests": ("project={project}", "sort=cost", "outcome=any_error", "key_kind=live"),
    "search": ("q=e", "q=person+1", "q=e&project={project}", "q={end_user}", "q=2026-10", "q=zzz"),
    "model": ("project={project}",),
    "keys": ("project={project}",),
    "live": ("project={project}", "project={project}&end_user={end_user}"),
    "budgets": ("project={project}",),
    "rate_limits": ("project={project}",),
    "playground": ("project={project}",),
}


def fill(acme: Organization, alice: Person) -> None:
    """Give the organization and the installation more of everything than a page of a list has."""
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    # In each of the most columns that a chart of 30 days has.
    hours = [now - timedelta(hours=n) for n in (*range(6, 720, 12), 960)]
    Discount.objects.create(organization=acme, basis_points=1_000, effective_from=now)
    # With those of the persons, about as many as there may be.
    Project.objects.bulk_create(
        Project(organization=acme, name=f"spare {number}") for number in range(MAX_PROJECTS - 50)
    )
    for number in range(45):
        project = Project.objects.create(organization=acme, name=f"project {number}")
        RateLimit.objects.create(project=project, requests_per_minute=number)
        BudgetLimit.objects.create(
            scope="project", scope_id=project.pk, period="month", limit_nanodollars=10**9
        )
        Organization.objects.create(name=f"organization {number}")
        model = ServedModel.objects.create(id=f"model-{number}", context_window=1, max_output_tokens=1)
        Deployment.objects.create(model=model, name="sandbox", engine="sandbox")
        prices.change(model.id, PRICE)
    for number in range(30):
        person = join(f"person {number}", Role.MEMBER, acme, f"project {number}")
        APIKey.objects.filter(pk=person.api_key.pk).update(name=f"key {number} ".ljust(100, "x"))
        for outcome in (Outcome.COMPLETED, Outcome.COMPLETED if number % 5 else Outcome.FAILED):
            run(person, outcome=outcome, model=f"model-{number}")
        refused_requests.add(timezone.now(), [{Refusal(person.api_key.pk, 429, f"code_{number}"): 1}])
        owner = {"organization": acme, "project": person.project, "api_key": person.api_key}
        HourlyUsage.objects.bulk_create(
            HourlyUsage(hour=hour, model=f"model-{number}", outcome="completed", requests=1, **owner)
            for hour in hours
        )
    BudgetLimit.objects.create(
        scope="organization", scope_id=acme.pk, period="month", limit_nanodollars=10**9
    )
    for number in range(80):
        keys.create_key(alice.project, name=f"further key {number} ".ljust(100, "x"))
        user = User.objects.create(username=f"member {number} ".ljust(100, "x"), email="m@example.com")
        Member.objects.create(organization=acme, user=user, role=Role.MEMBER)
    make_groups(acme)
    make_certificates(acme)
    run(alice)
    repeat(run(alice, outcome=Outcome.FAILED), hours)
    for number in range(100):
        admit(alice, end_user=person_of(number))
    while closing.close_next():
        pass
    Organization.objects.update(created_at=timezone.now() - timedelta(days=90))


def make_groups(acme: Organization) -> None:
    """Make as many groups as there may be, each with many people, and the most projects that it may have."""
    rows = [
        Group(organization=acme, name=f"group {number} ".ljust(100, "x"))
        for number in range(groups.MAX_GROUPS - acme.groups.count())
    ]
    Group.objects.bulk_create(rows)
    people = Member.objects.filter(organization=acme).order_by("-pk")[:90]
    projects = list(Project.objects.filter(organization=acme).order_by("-name"))
    given = [(row, projects[9 * number :][: groups.MAX_PROJECTS]) for number, row in enumerate(rows)]
    GroupMember.objects.bulk_create(GroupMember(group=g, member=m) for g, m in product(rows, people))
    GroupProject.objects.bulk_create(
        GroupProject(group=g, project=each) for g, some in given for each in some
    )
    Member.objects.filter(pk__in=[row.pk for row in people[:45]]).update(is_limited=True)


def make_certificates(acme: Organization) -> None:
    """Make as many certificates as there may be, each active for the most projects."""
    now = timezone.now()
    rows = Certificate.objects.bulk_create(
        Certificate(
            organization=acme, name=f"certificate {number} ".ljust(100, "x"), fingerprint=f"{number:064}",
            valid_at=now, expires_at=now,
        )
        for number in range(certificates.MAX_CERTIFICATES)
    )  # fmt: skip
    projects = Project.objects.filter(organization=acme).order_by("-name")[: certificates.MAX_PROJECTS]
    CertificateProject.objects.bulk_create(
        CertificateProject(certificate=row, project=each) for row, each in product(rows, projects)
    )


def repeat(failed: Generation, hours: Sequence[datetime]) -> None:
    """Copy the request into these hours, with several teams, end users and errors."""
    values = {field.attname: getattr(failed, field.attname) for field in Generation._meta.concrete_fields}
    for hour, number in product(hours, range(10)):
        own = {"error_code": f"error_{number}", "metadata": {"team": team_of(number)}}
        own |= {"end_user": person_of(number)}
        times = {"admitted_at": hour, "settled_at": hour}
        Generation.objects.bulk_create([Generation(**values | times | own | {"id": identity.new_id()})])


def measure(client: Client, paths: dict[str, str]) -> list[str]:
    """Open all pages, and return what is wrong with each."""
    wrong = []
    # Django asks SQLite for it once per connection, with three queries.
    assert connection.features.supports_json_field
    for name, path in paths.items():
        with CaptureQueriesContext(connection) as asked:
            response: Any = client.get(path)
        count = len(asked)
        is_page = not response.streaming and "text/html" in response.headers.get("content-type", "text/html")
        # A file is written into the audit log, too.
        if count > MAX_QUERIES + (not is_page):
            wrong.append(f"{name}: {count} queries")
        if not is_page:
            continue
        scripts = re.search(r"script-src ([^;]*)", response.headers["content-security-policy"])
        if scripts is None or "'unsafe-" in scripts[1]:
            wrong.append(f"{name}: a policy that allows scripts in the page or the evaluation of text")
        if len(response.content) > MAX_BYTES:
            wrong.append(f"{name}: {len(response.content):,} bytes")
        html = response.content.decode()
        landmarks = re.findall(r"<main\b", html) if 'href="#main">Skip to the content' in html else []
        if response.status_code == 200 and path != page_paths.PART and len(landmarks) != 1:
            wrong.append(f"{name}: no landmark")
    return wrong


def owners_of(alice: Person) -> dict[str, object]:
    """Return the values of the views' parameters."""
    pair = urlencode({"": f"team={team_of(1)}"})[1:]
    another = Project.objects.exclude(organization=alice.project.organization_id).earliest("pk")
    return {
        "organization": alice.project.organization_id,
        "project": alice.project.pk,
        "key": alice.api_key.pk,
        "pair": pair,
        "end_user": urlencode({"": person_of(1)})[1:],
        "another": another.organization_id,
        "another_project": another.pk,
    }


def team_of(number: int) -> str:
    """Return a value of metadata that is as long as values can be."""
    return f"team {number} ".ljust(512, "x")


def person_of(number: int) -> str:
    """Return a name of an end user that is as long as names can be."""
    return f"person {number} ".ljust(128, "x")


@pytest.mark.usefixtures("charlie")
@pytest.mark.parametrize("who", ["operator", "owner"])
def test_every_page_of_the_admin_is_small_and_asks_little(
    acme: Organization, alice: Person, bob: Person, small: ServedModel, root: Client, who: str
) -> None:
    house = test_access_matrix.House(acme, alice, bob, small)
    fill(acme, alice)
    paths = page_paths.of_admin(house)
    client = root if who == "operator" else client_of(alice.user)
    wrong = measure(client, page_paths.views(paths, ADMIN_VIEWS, **owners_of(alice)))
    assert not wrong, "\n".join(wrong)


def test_every_page_of_the_console_is_small_and_asks_little(
    stripe: Stripe, acme: Organization, alice: Person, charlie: Person, small: ServedModel
) -> None:
    house = test_console_access.House(acme, alice, charlie)
    fill(acme, alice)
    Member.objects.filter(user=alice.user).update(role=Role.OWNER)
    paths = page_paths.of_console(house)
    of_all = BudgetLimit.objects.get(scope="organization", scope_id=acme.pk)
    paths["budget of the organization"] = f"/console/{acme.pk}/budgets/{of_all.pk}"
    wrong = measure(client_of(alice.user), page_paths.views(paths, CONSOLE_VIEWS, **owners_of(alice)))
    assert not wrong, "\n".join(wrong)


def test_every_page_of_a_limited_member_is_small_and_asks_little(
    stripe: Stripe, acme: Organization, alice: Person, charlie: Person, small: ServedModel
) -> None:
    house = test_console_access.House(acme, alice, charlie)
    fill(acme, alice)
    projects = Project.objects.filter(organization=acme).exclude(pk=alice.project.pk)
    most = [alice.project, *projects[: memberships.MAX_PROJECTS_OF_LIMIT - 1]]
    eve = User.objects.create_user("eve")
    memberships.join(Member(organization=acme, user=eve, role=Role.MEMBER), most, acme.groups.all())
    open_paths = {
        name: path for name, path in page_paths.of_console(house).items()
        if name in test_console_access.OF_PROJECTS
    }  # fmt: skip
    wrong = measure(client_of(eve), page_paths.views(open_paths, CONSOLE_VIEWS, **owners_of(alice)))
    assert not wrong, "\n".join(wrong)


@pytest.mark.usefixtures("charlie")
@pytest.mark.parametrize("role", Role.values)
def test_a_search_that_stops_early_asks_little(
    acme: Organization, alice: Person, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    monkeypatch.setattr(generation_list, "SEARCHED", 5)
    for _ in range(10):
        run(alice)
    Member.objects.filter(user=alice.user).update(role=role)
    paths = {"requests": "/admin/requests/", "console": f"/console/{acme.pk}/requests"}
    searches = tuple(
        f"days=7&time=settled&{owner}{narrowed}"
        for owner in ("", "project={project}", "key={key}", "project={project}&key={key}")
        for narrowed in ("", "&error=error_1", "&outcome=failed&end_user=somebody")
    )
    found = page_paths.views(paths, dict.fromkeys(paths, searches), **owners_of(alice))
    wrong = measure(client_of(alice.user), found)
    assert not wrong, "\n".join(wrong)
