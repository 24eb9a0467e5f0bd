"""Sums by error code and by metadata: those of the newest requests, grouped and filtered."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts.models import Project
from tests.admin_pages import client_of, downloaded, shown
from tests.cast import Person, run
from usage import insights
from usage.database.clock import database_now
from usage.insights import Filters, Range, generation_list
from usage.models import Generation, Outcome
from usage.rollups import refused_requests
from usage.rollups.refused_requests import Refusal


@pytest.fixture
def of_teams(alice: Person) -> Callable[..., Generation]:
    """Return a function that runs a request with this metadata."""
    Project.objects.update(stores_metadata=True)

    def make(pairs: dict[str, str] | None = None, **ending: Any) -> Generation:
        row = run(alice, **ending)
        Generation.objects.filter(pk=row.pk).update(metadata=pairs)
        return row

    return make


def week() -> Range:
    return Range.last(7, database_now())


def failed(person: Person, code: str, **named: Any) -> Generation:
    return run(person, outcome=Outcome.FAILED, error_code=code, **named)


def test_errors_are_counted_by_their_code(alice: Person, charlie: Person) -> None:
    for code in ("upstream_timeout", "upstream_error", "upstream_timeout"):
        failed(alice, code)
    run(alice)
    failed(charlie, "upstream_error")
    mine = Filters(organization_id=alice.project.organization_id)
    rows = insights.top(week(), "error", mine)
    assert [(row.label, row.totals.requests) for row in rows] == [
        ("upstream_timeout", 2),
        ("upstream_error", 1),
    ]
    everyone = insights.top(week(), "error")
    assert {row.label: row.totals.requests for row in everyone} == {
        "upstream_timeout": 2,
        "upstream_error": 2,
    }


def test_a_filter_by_error_narrows_every_sum(alice: Person) -> None:
    failed(alice, "upstream_timeout")
    failed(alice, "upstream_error")
    run(alice)
    one = Filters(error="upstream_timeout")
    assert insights.totals(week(), one).requests == 1
    points = insights.series(week(), "model", one)
    assert sum(point.totals.failed_requests for point in points) == 1


def test_metadata_is_grouped_by_the_values_of_one_key(of_teams: Callable[..., Generation]) -> None:
    rows = [
        of_teams({"team": "red", "7": "x"}),
        of_teams({"team": "red"}),
        of_teams({"team": "blue"}),
        of_teams(),
    ]
    found = insights.top(week(), "metadata", Filters(metadata_key="team"))
    assert [(row.label, row.totals.requests) for row in found] == [("red", 2), ("none", 1), ("blue", 1)]
    assert found[0].totals.amount_nanodollars == 2 * rows[0].amount_nanodollars
    assert insights.metadata_keys(insights.newest_settled(week(), Filters()).rows) == ["team", "7"]
    sevens = insights.top(week(), "metadata", Filters(metadata_key="7"))
    assert {row.label: row.totals.requests for row in sevens} == {"none": 3, "x": 1}
    blue = Filters(metadata=("team", "blue"))
    assert insights.totals(week(), blue).requests == 1


def test_many_values_are_a_few_and_the_others(of_teams: Callable[..., Generation]) -> None:
    for number in range(10):
        of_teams({"team": f"team {number}"})
    points = insights.series(week(), "metadata", Filters(metadata_key="team"))
    assert len({point.group_label for point in points}) == 9
    assert sum(point.totals.requests for point in points) == 10


def test_a_report_reads_a_bounded_number_of_requests(
    of_teams: Callable[..., Generation], root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        of_teams({"team": f"team {number}"})
    monkeypatch.setattr(generation_list, "SEARCHED", 3)
    points = insights.series(week(), "metadata", Filters(metadata_key="team"))
    assert sum(point.totals.requests for point in points) == 3
    assert "Choose a shorter range for all of them." in root.get("/admin/?group=metadata").text


def test_the_overview_groups_by_error_and_leads_to_the_requests(root: Client, alice: Person) -> None:
    row = failed(alice, "upstream_timeout")
    run(alice)
    page = root.get("/admin/?days=1&group=error")
    assert [each.total for each in page.context["chart"].legend] == ["1"]
    (line,) = page.context["spenders"][0][1]
    assert [each.pk for each in root.get(line.url).context["page"].rows] == [row.pk]
    assert "Error" in [each.text for each in page.context["form"].group_links() if each.is_chosen]
    assert "upstream_timeout" in downloaded(root, "/admin/overview.csv?group=error")


def test_errors_are_beside_what_was_refused_and_why(root: Client, alice: Person, charlie: Person) -> None:
    counts = {Refusal(alice.api_key.pk, 429, "rate_limit_exceeded"): 3}
    counts |= {Refusal(charlie.api_key.pk, 402, "insufficient_quota"): 7}
    refused_requests.add(database_now(), [counts])
    page = root.get("/admin/?days=1&group=error")
    found = [(each.key, each.row.status, each.row.requests) for each in page.context["refusals"]]
    assert found == [("charlie", 402, 7), ("alice", 429, 3)]
    listed = root.get(page.context["refusals"][0].url).content.decode()
    assert "insufficient_quota" in listed
    rows = listed.partition('id="result_list"')[2].partition("</table>")[0]
    assert "rate_limit_exceeded" not in rows
    own = client_of(alice.user).get("/admin/?days=1&group=error")
    assert [each.key for each in own.context["refusals"]] == ["alice"]
    assert root.get("/admin/?group=error&model=small").context["refusals"] is None


@pytest.mark.parametrize("days_ago", [1, 10])
def test_what_was_refused_leads_to_the_hours_of_the_range(root: Client, alice: Person, days_ago: int) -> None:
    moment, day = database_now() - timedelta(days=days_ago), timedelta(days=1)
    counts = {Refusal(alice.api_key.pk, 429, "rate_limit_exceeded"): 3}
    counts |= {Refusal(alice.api_key.pk, 402, "insufficient_quota"): 7}
    for at in (moment, moment + day):
        refused_requests.add(at, [counts])
    page = root.get(f"/admin/?group=error&start={moment:%Y-%m-%d}&end={moment:%Y-%m-%d}")
    assert len(page.context["refusals"]) == 2
    for each in page.context["refusals"]:
        found = root.get(each.url).context["cl"].queryset
        assert [(row.code, row.requests) for row in found] == [(each.row.code, each.row.requests)]


def test_the_overview_offers_the_keys_of_metadata(root: Client, of_teams: Callable[..., Generation]) -> None:
    row = of_teams({"team": "red", "stage": "prod"})
    of_teams({"team": "blue"})
    page = root.get("/admin/?group=metadata")
    assert [each.text for each in page.context["form"].metadata_links()] == ["team", "stage"]
    lines = {line.label: line.url for line in page.context["spenders"][0][1]}
    assert [each.pk for each in root.get(lines["red"]).context["page"].rows] == [row.pk]
    narrowed = root.get("/admin/?metadata=team%3Dred")
    assert "Compared with" not in shown(narrowed)
    assert next(each for each in narrowed.context["cards"] if each.title == "Requests").exact == "1"


def test_without_metadata_the_overview_says_how_to_keep_it(root: Client, alice: Person) -> None:
    run(alice)
    assert "Stores metadata" in shown(root.get("/admin/?group=metadata"))


def test_others_metadata_is_never_seen(of_teams: Callable[..., Generation], charlie: Person) -> None:
    of_teams({"secret": "zeppelin"})
    run(charlie)
    client = client_of(charlie.user)
    for query in ("", "&metadata_key=secret"):
        page = client.get(f"/admin/?group=metadata{query}")
        assert page.context["form"].metadata_keys == []
        assert "zeppelin" not in page.text


def test_errors_of_end_users_are_those_of_one_owner(root: Client, alice: Person) -> None:
    failed(alice, "upstream_error", end_user="someone")
    run(alice, end_user="someone")
    refused = shown(root.get("/admin/?group=end_user&error=upstream_error"), 400)
    assert "End user: Choose the organization, project or key" in refused
    page = root.get(f"/admin/?group=end_user&error=upstream_error&project={alice.project.pk}")
    ((title, (line,)),) = page.context["spenders"]
    assert (title, line.label, line.totals.requests) == ("Top end users", "someone", 1)
    assert len(root.get(line.url).context["page"].rows) == 1
