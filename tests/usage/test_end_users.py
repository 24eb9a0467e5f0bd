"""Requests by end user: found by an index, and each tenant's own."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts import end_users
from accounts.models import Project
from tests import cast
from tests.admin_pages import client_of, downloaded, text
from tests.cast import Person, admit, run
from usage.insights import RequestFilters, requests_page
from usage.models import Generation
from usage.pricing import Tokens

pytestmark = pytest.mark.django_db

MANY = 20_000
"""Enough for both databases to prefer an index that fits; `ANALYZE` tells them the rest."""
NUMBERS = {
    "sqlite": f"(WITH RECURSIVE c(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM c LIMIT {MANY}) "
    "SELECT value FROM c) AS n",
    "postgresql": f"generate_series(1, {MANY}) AS n(value)",
}
FRESH_ID = {"sqlite": "lower(hex(randomblob(16)))", "postgresql": "gen_random_uuid()"}


def found(**filters: Any) -> list[Generation]:
    return requests_page(RequestFilters(**filters)).rows


def test_requests_of_one_end_user_are_found(alice: Person, charlie: Person) -> None:
    mine, other = admit(alice, end_user="ann"), admit(charlie, end_user="ann")
    hidden = admit(alice, end_user=end_users.digest("bob"))
    admit(alice)
    home = alice.project.organization_id
    assert found(organization_id=home, end_user="ann") == [mine]
    assert found(organization_id=home, end_user="bob") == [hidden]
    assert found(organization_id=home, end_user=hidden.end_user) == [hidden]
    assert found(project_id=charlie.project.pk, end_user="ann") == [other]
    assert found(api_key_id=alice.api_key.pk, end_user="ann") == [mine]


def test_the_page_shows_only_the_own_ones(alice: Person, charlie: Person) -> None:
    mine, other = admit(alice, end_user="ann"), admit(charlie, end_user="ann")
    browser = client_of(alice.user)
    page = browser.get(reverse("admin:requests"), {"end_user": "ann"}).text
    assert str(mine) in page
    assert str(other) not in page
    assert "end user: ann" in page
    assert ">ann</a>" in browser.get(reverse("admin:request", args=[str(mine)])).text
    exported = downloaded(browser, reverse("admin:requests") + "export.csv?end_user=ann")
    assert ",ann," in exported
    assert str(other) not in exported


def test_an_operator_says_whose_end_user_is_meant(admin_client: Client, alice: Person) -> None:
    page = admin_client.get(reverse("admin:requests"), {"end_user": "ann"})
    assert page.status_code == 400
    assert "Choose the organization" in page.text


def test_one_of_very_many_end_users_is_an_index_away(alice: Person) -> None:
    first = admit(alice)
    columns = {str(field.column): f"g.{field.column}" for field in Generation._meta.concrete_fields}
    columns |= {"id": FRESH_ID[connection.vendor], "end_user": "'user ' || n.value"}
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO usage_generation ({', '.join(columns)}) SELECT {', '.join(columns.values())} "
            f"FROM usage_generation AS g, {NUMBERS[connection.vendor]}"
        )
        cursor.execute("ANALYZE")
    with CaptureQueriesContext(connection) as queries:
        assert len(found(organization_id=first.organization_id, end_user="user 777")) == 1
    (sql,) = [query["sql"] for query in queries if "ORDER BY" in query["sql"]]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {'' if connection.vendor == 'postgresql' else 'QUERY PLAN '}{sql}")
        plan = str(cursor.fetchall())
    assert "end_user_generations" in plan


def test_requests_are_found_by_a_pair_of_their_metadata(alice: Person, charlie: Person) -> None:
    pairs = {"team": "Red", "7": "x", 'a"b': "c=d", "big": "é" * 512}
    mine, other = admit(alice, metadata=pairs), admit(charlie, metadata=pairs)
    admit(alice, metadata={"team": "red"})
    admit(alice)
    home = alice.project.organization_id
    for pair in pairs.items():
        assert found(organization_id=home, metadata=pair) == [mine]
    for pair in [("team", "x"), ("Team", "Red"), ("x", "Red"), ("0", "x"), ("team", "")]:
        assert found(organization_id=home, metadata=pair) == []
    browser = client_of(alice.user)
    page = browser.get(reverse("admin:requests"), {"metadata": 'a"b=c=d'}).text
    assert str(mine) in page
    assert str(other) not in page
    assert "metadata: a&quot;b=c=d" in page
    exported = downloaded(browser, reverse("admin:requests") + "export.csv?metadata=team%3DRed")
    assert '""team"": ""Red""' in exported
    assert ">team = Red</a>" in browser.get(reverse("admin:request", args=[str(mine)])).text
    assert browser.get(reverse("admin:requests"), {"metadata": "team"}).status_code == 400


# ---- the Overview


@pytest.fixture
def counted(alice: Person) -> Client:
    """Return a person whose project counts its end users: ann, bob (of another model), and requests without
    one.
    """
    Project.objects.filter(pk=alice.project.pk).update(counts_end_users=True)
    written = Tokens(1_000, 200, cached_tokens=400, cache_write_tokens=100)
    run(alice, end_user="ann", tokens=written)
    run(alice, end_user="ann")
    run(alice, end_user="bob", model="large")
    run(alice)
    return client_of(alice.user)


def test_the_overview_groups_by_end_user(counted: Client) -> None:
    page = counted.get(reverse("admin:index"), {"group": "end_user", "measure": "requests"})
    title, top = page.context["spenders"][0]
    assert title == "Top end users"
    legend = page.context["chart"].legend
    assert {(each.group.name, each.group.total) for each in legend} == {("ann", 2), ("bob", 1)}
    assert [(line.label, line.totals.requests) for line in top] == [("ann", 2), ("bob", 1), ("others", 1)]
    listed = counted.get(top[0].url)
    assert len(listed.context["page"].rows) == 2


def test_the_overview_of_one_end_user_has_all_kinds_of_tokens(counted: Client) -> None:
    page = counted.get(reverse("admin:index"), {"end_user": "ann", "measure": "cache_write"})
    assert sum(each.group.total for each in page.context["chart"].legend) == 100
    cards = {card.title: card for card in page.context["cards"]}
    assert list(cards) == ["Spend", "Requests", "Tokens"]
    assert cards["Requests"].value == "2"
    lines = {line.name: line.value for line in cards["Tokens"].lines}
    assert lines["uncached input"] == "1,100"
    assert (lines["cached input"], lines["cache write"], lines["output"]) == ("800", "100", "400")
    assert "1,100 uncached input, 800 cached input, 100 cache write, 400 output" in page.text
    assert counted.get(reverse("admin:index"), {"end_user": "eve"}).context["cards"][1].value == "0"
    exported = downloaded(counted, reverse("admin:index") + "overview.csv?group=end_user")
    assert "ann,ann,2," in exported
    assert "failed_requests" not in exported


NOON = datetime.now(UTC).replace(hour=12, minute=30, second=0, microsecond=0)


@pytest.fixture
def run_at(alice: Person, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Generation]:
    """Return a function that runs a request at a moment; it is noon, and Alice's project counts end users."""
    Project.objects.filter(pk=alice.project.pk).update(counts_end_users=True)
    monkeypatch.setattr(timezone, "now", lambda: NOON)

    def at(moment: datetime, **changes: Any) -> Generation:
        with monkeypatch.context() as patched:
            patched.setattr(cast, "database_now", lambda: moment)
            return run(alice, **changes)

    return at


@pytest.mark.parametrize("query", ["group=end_user", "end_user=ann", "group=model"])
def test_all_numbers_about_end_users_are_of_the_same_days(
    run_at: Callable[..., Generation], alice: Person, query: str
) -> None:
    run_at(NOON - timedelta(hours=8), end_user="ann")
    run_at(NOON, end_user="ann")
    last_hour = f"start={NOON - timedelta(hours=1):%Y-%m-%dT%H:00}"
    browser = client_of(alice.user)
    page = browser.get(
        f"{reverse('admin:index')}?{query}&{last_hour}&project={alice.project.pk}&measure=requests"
    )
    counted = {card.title: card for card in page.context["cards"]}["Requests"]
    tops = [line.totals.requests for _, lines in page.context["spenders"] for line in lines]
    listed = browser.get(counted.url).context["page"].rows
    drawn = sum(each.group.total for each in page.context["chart"].legend)
    assert {int(counted.value), *tops, len(listed)} == {drawn}


@pytest.mark.parametrize("hours", [0, 11])
def test_a_part_of_an_end_users_day_is_not_compared_with_a_whole_one(
    run_at: Callable[..., Generation], alice: Person, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    for moment in (NOON - timedelta(hours=16), NOON - timedelta(days=1), NOON):
        run_at(moment, end_user="ann")
    # Also in the last hour of the day, with which the range ends.
    monkeypatch.setattr(timezone, "now", lambda: NOON + timedelta(hours=hours))
    browser, page = client_of(alice.user), reverse("admin:index")
    today = browser.get(page, {"end_user": "ann", "days": "1"})
    assert [card.change for card in today.context["cards"]] == [None] * 3
    assert "Compared with" not in today.text
    days = {"start": f"{NOON - timedelta(days=1):%Y-%m-%d}", "end": f"{NOON - timedelta(days=1):%Y-%m-%d}"}
    run_at(NOON - timedelta(days=2), end_user="ann")
    changes = [card.change for card in browser.get(page, {"end_user": "ann", **days}).context["cards"]]
    assert [change and change.text for change in changes] == ["+100 %"] * 3


def test_end_users_of_hashed_names_are_found_by_name(alice: Person) -> None:
    Project.objects.filter(pk=alice.project.pk).update(counts_end_users=True)
    run(alice, end_user=end_users.digest("ann"))
    page = client_of(alice.user).get(reverse("admin:index"), {"end_user": "ann"})
    assert page.context["cards"][1].value == "1"


@pytest.mark.parametrize(
    ("query", "title", "expected"),
    [
        (
            {"group": "end_user", "outcome": "completed"},
            "Top end users",
            [("ann", 2), ("none", 1), ("bob", 1)],
        ),
        ({"group": "end_user", "key": "alice"}, "Top end users", [("ann", 2), ("none", 1), ("bob", 1)]),
        ({"group": "key", "end_user": "ann"}, "Top keys", [("alice", 2)]),
        ({"group": "outcome", "end_user": "ann"}, "Top outcomes", [("completed", 2)]),
    ],
)
def test_what_the_rollup_lacks_is_counted_from_requests(
    counted: Client, query: dict[str, str], title: str, expected: list[tuple[str, int]]
) -> None:
    page = counted.get(reverse("admin:index"), query)
    ((shown_title, lines),) = page.context["spenders"]
    found = [(line.label.split(" (")[0].lower(), line.totals.requests) for line in lines]
    assert (shown_title, found) == (title, expected)
    assert "Error rate" in [card.title for card in page.context["cards"]]
    assert len(counted.get(lines[0].url).context["page"].rows) == expected[0][1]
    exported = downloaded(counted, f"{reverse('admin:index')}overview.csv?{urlencode(query)}")
    assert "failed_requests" in exported


def test_other_tenants_end_users_are_unknown(counted: Client, alice: Person, charlie: Person) -> None:
    other = client_of(charlie.user)
    page = other.get(reverse("admin:index"), {"group": "end_user"})
    assert page.status_code == 400
    assert "No project counts its end users" in page.text
    asked = other.get(reverse("admin:index"), {"group": "end_user", "project": str(alice.project.pk)})
    assert asked.status_code in (400, 404)
    assert "ann" not in text(asked, asked.status_code)


def test_requests_are_listed_by_endpoint(alice: Person) -> None:
    mine = admit(alice)
    assert found(organization_id=alice.project.organization_id, endpoint=mine.endpoint) == [mine]
    assert found(organization_id=alice.project.organization_id, endpoint="embeddings") == []
