"""The chart above the list of requests: its numbers are those of the rows to which its columns lead."""

from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from accounts.models import Organization
from tests.admin_pages import client_of, text
from tests.cast import Person, admit, run
from tests.chatapi.console_pages import url
from usage.database.clock import database_now
from usage.insights import generation_list
from usage.models import HourlyUsage, Outcome
from usage.pages import requests_chart

pytestmark = pytest.mark.usefixtures("small")


def made(alice: Person, bob: Person) -> None:
    run(alice)
    run(alice, outcome=Outcome.FAILED, error_code="upstream_timeout", end_user="eve")
    run(bob, model="other")
    admit(alice)  # it has not finished


def shown(person: Person, query: str) -> Any:
    page = client_of(person.user).get(url(person, f"requests?{query}"))
    assert page.status_code == 200, page.content
    return page


def columns(page: Any) -> list[list[str]]:
    return [list(column.cells) for column in page.context["chart"].trend.columns]


@pytest.mark.parametrize(
    ("query", "last", "whole"),
    [
        ({}, ["3", "1"], "3, 1 failed"),
        ({"model": "small"}, ["2", "1"], "2, 1 failed"),
        ({"key": "bob"}, ["1", "0"], "1, 0 failed"),
        ({"project": "research"}, ["1", "0"], "1, 0 failed"),
        ({"key_kind": "live"}, ["3", "1"], "3, 1 failed"),
        ({"outcome": "any_error"}, ["1"], "1"),
        ({"outcome": "completed"}, ["2"], "2"),
        ({"sort": "cost", "time": "settled"}, ["3", "1"], "3, 1 failed"),
        ({"error": "upstream_timeout"}, ["1", "1"], "1, 1 failed"),
        ({"end_user": "eve"}, ["1", "1"], "1, 1 failed"),
        ({"end_user": "eve", "key": "alice"}, ["1", "1"], "1, 1 failed"),
        ({"min": "0.000001", "model": "other"}, ["1", "0"], "1, 0 failed"),
        ({"endpoint": "embeddings"}, ["0", "0"], "0, 0 failed"),
    ],
)
def test_each_column_leads_to_the_requests_that_it_counts(
    alice: Person, bob: Person, charlie: Person, query: dict[str, str], last: list[str], whole: str
) -> None:
    made(alice, bob)
    run(charlie)
    page = shown(alice, urlencode(query | {"days": "7"}))
    trend = page.context["chart"].trend
    assert (columns(page)[-1], trend.whole, len(trend.columns)) == (last, whole, 7)
    narrowed = page.client.get(trend.columns[-1].bucket.url)
    assert len(narrowed.context["page"].rows) == int(last[0])
    assert narrowed.context["chart"].trend.whole == whole
    assert not page.context["chart"].since
    if last[0] != "0":
        assert page.content.decode().count(trend.columns[-1].bucket.url.replace("&", "&amp;")) == 2


def test_rollups_answer_where_they_can(alice: Person, bob: Person) -> None:
    """More than the list could read: hours without their requests."""
    hour = database_now().replace(minute=0, second=0, microsecond=0) - timedelta(days=3)
    owner = {"organization": alice.project.organization, "project": alice.project, "api_key": alice.api_key}
    for outcome, requests in (("completed", 10**7), ("failed", 5)):
        HourlyUsage.objects.create(**owner, hour=hour, model="small", outcome=outcome, requests=requests)
    made(alice, bob)
    assert columns(shown(alice, "days=7&model=small"))[3] == ["10M", "5"]
    assert columns(shown(alice, "days=7&outcome=any_error"))[3] == ["5"]
    assert columns(shown(alice, "days=7&error=upstream_timeout"))[3] == ["0", "0"]


def test_it_says_how_far_back_the_newest_requests_reach(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(alice, bob)
    monkeypatch.setattr(generation_list, "SEARCHED", 3)
    page = shown(alice, "days=1&error=upstream_timeout")
    assert page.context["chart"].since
    assert "the newest 20,000 requests of this time, back to" in text(page)
    exact = shown(alice, "days=1")
    assert (exact.context["chart"].since, exact.context["chart"].trend.whole) == (None, "3, 1 failed")


@pytest.mark.parametrize("list_of", ["requests", "/admin/requests/"])
def test_a_sorted_list_says_that_older_requests_were_not_searched(
    alice: Person, monkeypatch: pytest.MonkeyPatch, list_of: str
) -> None:
    for model in ("small", "other", "small"):
        run(alice, model=model)
    path = url(alice, list_of) if list_of == "requests" else list_of
    monkeypatch.setattr(generation_list, "SORTED", 2)
    page = client_of(alice.user).get(f"{path}?sort=cost&model=small&days=1")
    assert len(page.context["page"].rows) == 1  # the other one is older
    assert "were searched and sorted. Choose a range that ends earlier for older ones." in text(page)


def test_a_list_without_a_range_has_the_columns_of_seven_days(alice: Person) -> None:
    row = run(alice)
    page = shown(alice, "")
    assert page.context["chart"].trend.title == "Requests by day, last 7 days"
    assert len(columns(page)) == 7
    assert [str(each) for each in page.context["page"].rows] == [str(row)]


def test_long_ranges_have_several_days_in_a_column(alice: Person) -> None:
    run(alice)
    page = shown(alice, "days=400")
    assert len(columns(page)) <= requests_chart._MAX_COLUMNS
    assert page.context["chart"].trend.title == "Requests by 9 days"
    assert columns(page)[-1] == ["1", "0"]
    narrowed = page.client.get(page.context["chart"].trend.columns[-1].bucket.url)
    assert narrowed.context["chart"].trend.whole == "1, 0 failed"


def test_two_days_have_their_hours_in_the_organizations_zone(alice: Person) -> None:
    Organization.objects.update(time_zone="Asia/Kolkata")
    row = run(alice)
    page = shown(alice, "days=2")
    last = page.context["chart"].trend.columns[-1]
    assert page.context["chart"].unit == "hour"
    assert sum(int(cells[0]) for cells in columns(page)) == 1
    (counted,) = [each for each in page.context["chart"].trend.columns if each.cells[0] == "1"]
    found = page.client.get(counted.bucket.url).context["page"].rows
    assert [str(each) for each in found] == [str(row)]
    assert last.bucket.label.count(":") == 1


def test_a_search_for_an_id_has_no_chart(alice: Person) -> None:
    run(alice)
    page = shown(alice, "id=chatcmpl-01980000000070008000000000000000")
    assert page.context["chart"] is None
    assert "No request matches" in text(page)


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL's own limit is its server's")
def test_a_chart_that_takes_too_long_leaves_the_list(
    alice: Person, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = run(alice)
    hour = HourlyUsage.objects.get()
    HourlyUsage.objects.bulk_create(
        HourlyUsage(
            organization_id=hour.organization_id,
            project_id=hour.project_id,
            api_key_id=hour.api_key_id,
            model=f"other-{number}",
            outcome=hour.outcome,
            hour=hour.hour,
            requests=1,
        )
        for number in range(3_000)
    )
    settings.DATABASE_TIMEOUT_MS = 1
    monkeypatch.setattr("usage.database.time_limit._STEPS", 20_000)
    page = shown(alice, "")
    assert page.context["chart"] is None
    assert [str(each) for each in page.context["page"].rows] == [str(row)]
    assert "The chart takes too long for this range: choose a shorter one." in text(page)
    settings.DATABASE_TIMEOUT_MS = 5_000
    assert columns(shown(alice, ""))[-1] == ["3,001", "0"]


def test_a_list_without_requests_has_no_chart(alice: Person) -> None:
    assert "None finished" not in text(shown(alice, ""))
