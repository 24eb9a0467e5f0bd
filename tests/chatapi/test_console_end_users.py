"""End users on the console's Usage and Overview: groups, filters, files and links."""

import csv
import re
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.http import urlencode

from accounts import end_users
from accounts.models import APIKey, Project
from tests.admin_pages import body, client_of, text
from tests.cast import Person, run
from tests.chatapi.console_pages import url
from usage.insights import Filters, Range, generation_list, newest_settled
from usage.insights.speed import speeds
from usage.models import Generation, Outcome

pytestmark = pytest.mark.usefixtures("small")


def number(page: Any, title: str) -> str:
    (trend,) = [each for each in page.context["trends"] if each.title.startswith(title)]
    return str(trend.whole).removeprefix("typically ")


def groups(page: Any) -> list[tuple[str, int, int]]:
    """Return the groups of a page with their requests and failures."""
    return [
        (each.label, each.totals.requests, each.totals.failed_requests) for each in page.context["groups"]
    ]


def requests_of_people(person: Person) -> None:
    """Run requests: two of ann, one of which failed, one of bob, and one without an end user."""
    run(person, end_user="ann", first_token_ms=100)
    ending: dict[str, Any] = {
        "outcome": Outcome.FAILED,
        "error_code": "upstream_error",
        "first_token_ms": 900,
    }
    row = run(person, end_user="ann", **ending)
    Generation.objects.filter(pk=row.pk).update(metadata={"team": "red"})
    run(person, end_user="bob", first_token_ms=300)
    run(person, first_token_ms=500)


def test_usage_is_grouped_by_end_user_with_what_failed(alice: Person, charlie: Person) -> None:
    requests_of_people(alice)
    run(charlie, end_user="zoe")
    client = client_of(alice.user)
    page = client.get(url(alice, "usage?days=1&group=end_user"))
    assert sorted(groups(page)) == [("ann", 2, 1), ("bob", 1, 0), ("none", 1, 0)]
    assert (number(page, "Requests"), number(page, "Error rate")) == ("4", "25 %")
    assert "zoe" not in text(page)
    for each in page.context["groups"]:
        if each.label == "none":
            assert each.url == "", "no filter stands for it"
            continue
        assert number(client.get(each.url), "Requests") == str(each.totals.requests)
    assert '<th scope="col">End user</th>' in page.content.decode()
    assert "Full UTC" not in text(page), "hours are possible"


@pytest.mark.parametrize(
    ("query", "requests", "first"),
    [
        ("end_user=ann", "2", "100 ms"),
        ("end_user=ann&bucket=hour", "2", "100 ms"),
        ("end_user=ann&key={key}", "2", "100 ms"),
        ("end_user=ann&project={project}", "2", "100 ms"),
        ("end_user=ann&outcome=completed", "1", "100 ms"),
        ("end_user=ann&error=upstream_error", "1", "900 ms"),
        ("end_user=ann&metadata=team%3Dred", "1", "900 ms"),
        ("end_user=bob&model=small", "1", "300 ms"),
        ("end_user=zoe", "0", "–"),
    ],
)
def test_usage_is_filtered_by_end_user(
    alice: Person, charlie: Person, query: str, requests: str, first: str
) -> None:
    requests_of_people(alice)
    run(charlie, end_user="zoe")
    asked = query.format(key=alice.api_key.pk, project=alice.project.pk)
    page = client_of(alice.user).get(url(alice, f"usage?days=1&{asked}"))
    assert (number(page, "Requests"), number(page, "Time to")) == (requests, first)
    assert page.context["refusals"] is None, "they have no end user"
    codes = [code for code, _, _ in page.context["errors"]]
    has_failed = query.startswith("end_user=ann") and "completed" not in query
    assert codes == (["upstream_error"] if has_failed else [])
    assert f"end user: {query[9:12]}" in text(page)


@pytest.mark.parametrize("group", ["model", "key", "error", "metadata", "outcome"])
def test_groups_of_one_end_user_are_its_own(alice: Person, group: str) -> None:
    requests_of_people(alice)
    page = client_of(alice.user).get(url(alice, f"usage?days=1&group={group}&end_user=ann"))
    own = sum(requests for _, requests, _ in groups(page))
    assert (own, number(page, "Requests")) == (1 if group == "error" else 2, "2")


def test_a_file_has_the_end_users_of_the_page(alice: Person, charlie: Person) -> None:
    requests_of_people(alice)
    run(charlie, end_user="zoe")
    for query, expected in (
        ("group=end_user", {("ann", "2", "1"), ("bob", "1", "0"), ("none", "1", "0")}),
        ("end_user=ann", {("all", "2", "1")}),
        ("end_user=zoe", set()),
    ):
        answer: Any = client_of(alice.user).get(url(alice, f"usage.csv?days=1&{query}"))
        lines = csv.DictReader(body(answer).splitlines())
        found = {
            (line["group"], line["requests"], line["failed_requests"])
            for line in lines
            if line["requests"] != "0"
        }
        assert found == expected, query


def test_names_may_be_digests_and_hold_anything(alice: Person) -> None:
    names = ["x" * 128, 'a&b="<i>', "=1+1", "müller@example.com"]
    for name in names:
        run(alice, end_user=name)
    run(alice, end_user=end_users.digest("eve"), first_token_ms=700)
    client = client_of(alice.user)
    page = client.get(url(alice, "usage?days=1&group=end_user"))
    assert {label for label, _, _ in groups(page)} == {*names, end_users.digest("eve")}
    for each in page.context["groups"]:
        assert number(client.get(each.url), "Requests") == "1", each.label
    by_name = client.get(url(alice, "usage?days=1&end_user=eve"))
    assert (number(by_name, "Requests"), number(by_name, "Time to")) == ("1", "700 ms")
    long = client.get(url(alice, f"usage?end_user={'x' * 513}"))
    assert (long.status_code, "End user: Ensure" in long.text) == (400, True)


def test_a_name_is_found_as_the_chosen_project_has_it(alice: Person) -> None:
    row = run(alice, end_user="ann")
    hashing = Project.objects.create(
        organization=alice.project.organization, name="hashing", hashes_end_users=True
    )
    run(alice, end_user="ann")
    Generation.objects.filter(pk=row.pk).update(project=hashing, end_user=end_users.digest("ann"))
    client = client_of(alice.user)
    for project in (hashing, alice.project):
        for query in ("end_user=ann", f"end_user={end_users.digest('ann')}")[
            : 2 if project == hashing else 1
        ]:
            page = client.get(url(alice, f"usage?days=1&{query}&project={project.pk}"))
            assert number(page, "Requests") == "1"


def test_the_page_says_how_far_back_the_sums_of_end_users_reach(
    alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests_of_people(alice)
    monkeypatch.setattr(generation_list, "SEARCHED", 1)
    client = client_of(alice.user)
    page = client.get(url(alice, "usage?days=1&group=end_user"))
    assert number(page, "Requests") == "4", "all of the range"
    assert sum(requests for _, requests, _ in groups(page)) == 1
    assert "The groups by end user cover only the newest" in text(page)
    one = client.get(url(alice, "usage?days=1&end_user=ann"))
    assert number(one, "Requests") == "1", "of its own requests, not of all"
    assert "These sums cover only the newest" in text(one)


def test_a_seldom_end_user_is_found_by_its_index(alice: Person) -> None:
    rare = run(alice, end_user="rare", first_token_ms=42)
    values = {field.attname: getattr(rare, field.attname) for field in Generation._meta.concrete_fields}
    Generation.objects.bulk_create(
        Generation(**values | {"id": f"{at + 1:032x}", "end_user": "often", "first_token_ms": 900})
        for at in range(400)
    )
    over = Range.last(1, timezone.now())
    filters = Filters(organization_id=alice.project.organization_id, end_user="rare", is_by_request=True)
    (speed,) = speeds([(over.start, over.end)], filters).columns
    assert speed.first_p50_ms == 42
    with CaptureQueriesContext(connection) as asked:
        list(newest_settled(over, filters).rows)
    plans = [_plan(each["sql"]) for each in asked.captured_queries if "usage_generation" in each["sql"]]
    assert plans
    if connection.vendor == "sqlite":  # PostgreSQL reads a table of 400 rows as a whole
        assert all("end_user_generations" in plan for plan in plans), plans


def _plan(statement: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(("EXPLAIN QUERY PLAN " if connection.vendor == "sqlite" else "EXPLAIN ") + statement)
        return str(cursor.fetchall())


def test_a_view_of_end_users_is_kept_by_its_links(alice: Person) -> None:
    Project.objects.filter(pk=alice.project.pk).update(counts_end_users=True)
    requests_of_people(alice)
    client = client_of(alice.user)
    query = {"days": "1", "project": str(alice.project.pk), "end_user": "ann", "group": "model"}
    page = client.get(url(alice, f"overview?{urlencode(query)}"))
    (link,) = re.findall(r'href="([^"]*)">Usage over time<', page.content.decode())
    usage = client.get(unescape(link))
    assert (number(usage, "Requests"), groups(usage)) == ("2", [("small", 2, 1)])
    shown = usage.content.decode()
    for title in ("Yesterday", "Hours", "CSV", "Key"):
        (found,) = re.findall(rf'href="([^"]*)"[^>]*>{title}<', shown)
        assert "end_user=ann" in found, title
    assert re.search(r'<input type="text" name="end_user" value="ann"', shown)
    assert '<span id="view-url" hidden>' in shown
    assert "end_user=ann" in usage.context["view_url"]


def test_the_overview_groups_by_end_user_of_the_rollup(alice: Person) -> None:
    Project.objects.filter(pk=alice.project.pk).update(counts_end_users=True)
    run(alice, end_user="customer-1")
    client, query = client_of(alice.user), f"overview?project={alice.project.pk}"
    assert "End user</a>" in client.get(url(alice, query)).content.decode()
    page = client.get(url(alice, f"{query}&group=end_user"))
    assert "customer-1" in text(page)
    assert "Full UTC" in text(page)


def test_the_overview_of_errors_has_end_users_of_any_project(alice: Person) -> None:
    requests_of_people(alice)
    client = client_of(alice.user)
    assert client.get(url(alice, "overview?group=end_user")).status_code == 400, "no project counts them"
    narrowed = client.get(url(alice, "overview?error=upstream_error"))
    (link,) = re.findall(r'href="([^"]*)"[^>]*>End user<', narrowed.content.decode())
    page = client.get(unescape(link))
    assert groups(page) == [("ann", 1, 1)]
    assert [card.title for card in page.context["cards"]] == ["Spend", "Requests", "Tokens", "Error rate"]


def test_end_users_of_others_are_not_found(alice: Person, charlie: Person) -> None:
    requests_of_people(alice)
    key = APIKey.objects.get(pk=alice.api_key.pk)
    client = client_of(charlie.user)
    for page in ("usage", "usage.csv", "overview"):
        for query in (f"project={alice.project.pk}", f"key={key.pk}"):
            asked = f"{page}?group=end_user&error=upstream_error&{query}"
            assert client.get(url(charlie, asked)).status_code == 404, asked
            assert client.get(url(alice, asked)).status_code == 404, asked
    own = client.get(url(charlie, "usage?days=1&end_user=ann"))
    assert number(own, "Requests") == "0"
