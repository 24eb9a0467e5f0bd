"""Usage over time, sorted requests, the usual ranges and the time zone in the console."""

import csv
import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from html import escape, unescape
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import pytest
from django.utils import timezone

from accounts.models import APIKey, Member, Organization, Project, Role
from chatapi.console import filters
from tests.admin_pages import body, client_of, downloaded, text
from tests.cast import Person, admit, run
from tests.chatapi.console_pages import as_role, url
from usage import insights
from usage.books import corrections
from usage.books.credit import Note
from usage.database.clock import database_now
from usage.formatting import usd
from usage.insights import Filters, GroupBy, generation_list, speed
from usage.insights.speed import SAMPLE, speeds
from usage.models import Generation, Kind, LedgerEntry, Outcome, RefusedRequests
from usage.pricing import Tokens

pytestmark = pytest.mark.usefixtures("small")


def rows(person: Person, query: str) -> list[str]:
    page = client_of(person.user).get(url(person, f"requests?{query}"))
    assert page.status_code == 200, page.content
    return [str(row) for row in page.context["page"].rows]


def asked(page: Any, **typed: str) -> Any:
    """Return the page that its form of a range and filters leads to, with these texts in the fields."""
    main = page.content.decode().partition("<main")[2]
    (form,) = re.findall(r'<form method="get"[^>]*>.*?</form>', main, re.DOTALL)
    fields = re.findall(r'<input type="\w+" name="(\w+)"(?: value="([^"]*)")?', form)
    inputs = {name: unescape(value) for name, value in fields}
    assert typed.keys() <= inputs.keys(), "there is a field for each"
    return page.client.get(page.request["PATH_INFO"], inputs | typed)


def number(page: Any, title: str) -> str:
    (trend,) = [each for each in page.context["trends"] if each.title.startswith(title)]
    return str(trend.whole).removeprefix("typically ").removeprefix("p50 ")


# ---- usage over time


def test_no_line_of_the_error_rate_is_above_all_requests(alice: Person) -> None:
    run(alice, outcome=Outcome.FAILED, error_code="upstream_timeout", first_token_ms=None, last_token_ms=None)
    page = client_of(alice.user).get(url(alice, "usage?days=1"))
    (trend,) = [each for each in page.context["trends"] if each.title == "Error rate"]
    assert [mark.text for mark in trend.heights] == ["50 %", "100 %"]


def test_it_shows_requests_errors_and_speed(alice: Person, charlie: Person) -> None:
    for first_ms in (100, 200, 300):
        run(alice, first_token_ms=first_ms, last_token_ms=first_ms + 1_000, tokens=Tokens(10, 51))
    run(alice, outcome=Outcome.FAILED, error_code="upstream_timeout", first_token_ms=None, last_token_ms=None)
    run(charlie, first_token_ms=9_999)
    page = client_of(alice.user).get(url(alice, "usage?days=1"))
    assert number(page, "Requests") == "4"
    assert number(page, "Error rate") == "25 %"
    assert number(page, "Time to first token") == "200 ms, p95 300 ms"
    assert number(page, "Tokens per second") == "50.0"
    ((code, times, link),) = page.context["errors"]
    assert (code, times) == ("upstream_timeout", 1)
    assert len(client_of(alice.user).get(link).context["page"].rows) == 1
    assert "300 ms" in text(page), "p95 is in the table"
    assert "p50 200 ms, p95 300 ms" in text(page)
    assert "Of the newest" not in text(page), "the errors are those of all requests"
    assert "10 s" not in text(page), "others' requests are not in it"


def test_it_is_filtered_by_project_key_and_model(alice: Person, bob: Person) -> None:
    run(alice, first_token_ms=100)
    run(bob, first_token_ms=900, model="other")
    client = client_of(alice.user)
    for query, first in (
        (f"key={bob.api_key.pk}", "900 ms, p95 900 ms"),
        ("model=small", "100 ms"),
        ("key=alice", "100 ms, p95 100 ms"),
    ):
        page = client.get(url(alice, f"usage?{query}"))
        assert (number(page, "Requests"), number(page, "Time to")) == ("1", first), query
    for wrong in ("group=x", "days=x", "key=nobody", "start=2026-13-01"):
        assert client.get(url(alice, f"usage?{wrong}")).status_code == 400, wrong


def test_the_form_keeps_an_archived_project(alice: Person, bob: Person) -> None:
    Project.objects.filter(pk=bob.project.pk).update(is_active=False)
    page = client_of(alice.user).get(url(alice, f"usage?project={bob.project.pk}"))
    assert f'<option value="{bob.project.pk}" selected>' in str(page.context["form"]["project"])


@pytest.mark.parametrize(("is_active", "name"), [(True, "research"), (False, "research (archived)")])
def test_a_project_of_many_is_typed(
    alice: Person, bob: Person, is_active: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "MAX_OPTIONS", 0)
    Project.objects.filter(pk=bob.project.pk).update(is_active=is_active)
    page = client_of(alice.user).get(url(alice, f"usage?project={bob.project.pk}"))
    assert 'value="Acme / research"' in str(page.context["form"]["project"])
    for typed in ("Acme / research", " research"):
        again = client_of(alice.user).get(url(alice, "usage"), {"project": typed})
        assert again.context["form"].query["project"] == str(bob.project.pk)
        assert [link.text for link in again.context["projects"] if link.is_current] == [name]


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("overview?key=typo&model=small&days=30", "overview?model=small&days=30"),
        ("usage?key=typo&start=2026-11-09&end=2026-11-02&model=small", "usage?model=small"),
        ("usage?error=%3C&group=model", "usage?group=model"),
        ("overview?group=end_user&model=small", "overview?model=small"),
        ("requests?id=typo&model=small", "requests?model=small"),
        ("requests?after=typo&model=small", "requests?model=small"),
        ("requests?id=typo", ""),
    ],
)
def test_a_mistake_in_one_filter_costs_no_other(alice: Person, query: str, kept: str) -> None:
    page = client_of(alice.user).get(url(alice, query))
    assert page.status_code == 400
    found = re.findall(r'href="([^"]*)">Keep the other\s+filters<', page.content.decode())
    assert found == ([escape(url(alice, kept))] if kept else [])
    assert not kept or client_of(alice.user).get(url(alice, kept)).status_code == 200


def test_a_usual_range_with_too_many_end_users_keeps_the_other_filters(
    alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    Project.objects.filter(pk=alice.project.pk).update(counts_end_users=True)
    monkeypatch.setattr(insights, "can_rank", lambda *_: False)
    client = client_of(alice.user)
    page = client.get(url(alice, "overview?days=30&group=end_user&model=small"))
    kept = page.context["kept_url"]
    assert parse_qs(urlsplit(kept).query) == {"group": ["end_user"], "model": ["small"]}
    again = client.get(kept)
    assert "Too many end users" in text(again, 400)
    assert again.context["kept_url"] == url(alice, "overview?model=small")


def test_names_are_those_of_the_organization(alice: Person, charlie: Person) -> None:
    Member.objects.create(user=alice.user, organization=charlie.project.organization)
    client = client_of(alice.user)
    assert client.get(url(alice, "usage?key=charlie")).status_code == 400
    APIKey.objects.filter(pk=charlie.api_key.pk).update(name="alice")
    run(alice)
    run(charlie)
    page = client.get(url(alice, "usage?key=alice"))
    assert number(page, "Requests") == "1"


def failures_of_teams(person: Person) -> None:
    """Run requests with metadata: two of "research", one of which failed, and one of "sales"."""
    Project.objects.filter(pk=person.project.pk).update(stores_metadata=True)
    failed = run(person, outcome=Outcome.FAILED, error_code="upstream_timeout", first_token_ms=900)
    rows = {failed: "research", run(person, first_token_ms=100): "research"}
    for row, team in (rows | {run(person, first_token_ms=300): "sales"}).items():
        Generation.objects.filter(pk=row.pk).update(metadata={"team": team})


@pytest.mark.parametrize(
    ("query", "requests", "first"),
    [
        ("error=upstream_timeout", "1", "900 ms"),
        ("metadata=team%3Dsales", "1", "300 ms"),
        ("metadata=team%3Dresearch&error=upstream_timeout", "1", "900 ms"),
        ("metadata=team%3Dnobody", "0", "–"),
    ],
)
def test_it_is_filtered_by_error_and_metadata(alice: Person, query: str, requests: str, first: str) -> None:
    failures_of_teams(alice)
    client, typed = client_of(alice.user), dict(parse_qsl(query))
    usage, overview = (
        asked(client.get(url(alice, f"{page}?days=1")), **typed) for page in ("usage", "overview")
    )
    assert (number(usage, "Requests"), number(usage, "Time to")) == (requests, first)
    assert usage.context["refusals"] is None, "they have neither"
    assert overview.context["cards"][1].exact == requests


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("group=error", [("upstream timeout", 1, "100.00 %", 900)]),
        ("group=metadata", [("research", 2, "50.00 %", 100), ("sales", 1, "0.00 %", 300)]),
        ("group=outcome", [("completed", 2, "0.00 %", 100), ("failed", 1, "100.00 %", 900)]),
        ("group=model", [("small", 3, "33.33 %", 300)]),
        ("group=key", [("alice", 3, "33.33 %", 300)]),
        ("group=project", [("default", 3, "33.33 %", 300)]),
        ("", []),
    ],
)
def test_it_is_grouped_as_the_overview_is(
    alice: Person, query: str, expected: list[tuple[str, int, str, int]]
) -> None:
    failures_of_teams(alice)
    client = client_of(alice.user)
    page = client.get(url(alice, f"usage?days=1&{query}"))
    groups = page.context["groups"]
    found = [
        (each.label.split(" (")[0], each.totals.requests, each.error_rate, each.speed.first_p50_ms)
        for each in groups
    ]
    assert found == expected
    assert number(page, "Requests") == "3", "the charts are those of all groups"
    assert page.content.count(b'data-label="Spend"') == len(expected)
    for each in groups:
        narrowed = client.get(each.url)
        assert number(narrowed, "Requests") == str(each.totals.requests)
    for title in ("Yesterday", "30 days", "Project", "Metadata"):
        assert re.search(rf'href="([^"]*)"[^>]*>{title}<', page.content.decode()), title


@pytest.mark.parametrize("group", ["error", "metadata"])
def test_the_sums_beside_partial_groups_are_those_of_all_requests(
    alice: Person, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    failures_of_teams(alice)
    charge = LedgerEntry.objects.filter(kind=Kind.CHARGE).latest("created_at")
    corrections.correct(charge.pk, -charge.amount_nanodollars, Note("refund", "root"))
    monkeypatch.setattr(generation_list, "SEARCHED", 2)
    client = client_of(alice.user)
    page = client.get(url(alice, f"usage?days=1&group={group}"))
    assert sum(each.totals.requests for each in page.context["groups"]) < 3
    assert number(page, "Requests") == "3"
    of_group, of_model = (client.get(url(alice, f"overview?group={each}")) for each in (group, "model"))
    cards = [[(card.title, card.exact) for card in each.context["cards"]] for each in (of_group, of_model)]
    assert cards[0] == cards[1]
    for each in (page, of_group):
        assert f"The groups by {'team' if group == 'metadata' else 'error'} cover only the newest" in text(
            each
        )


@pytest.mark.parametrize("page", ["overview", "usage"])
def test_groups_of_the_newest_requests_lead_to_a_file_of_all(
    alice: Person, charlie: Person, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    failures_of_teams(alice)
    run(charlie)
    monkeypatch.setattr(generation_list, "SEARCHED", 2)
    client = client_of(alice.user)
    shown = client.get(url(alice, f"{page}?days=1&group=metadata"))
    (link,) = re.findall(r'href="([^"]*)"[^>]*>all requests of this time', shown.content.decode())
    spent: Counter[str] = Counter()
    for line in csv.DictReader(downloaded(client, unescape(link)).splitlines()):
        spent[json.loads(line["metadata"])["team"]] += int(line["amount_nanodollars"])
    assert spent.keys() == {"research", "sales"}
    overview = client.get(url(alice, "overview?days=1"))
    assert usd(spent.total()) == overview.context["cards"][0].exact


@pytest.mark.parametrize("query", ["", "&error=upstream_error", "&metadata=other%3D1"])
@pytest.mark.parametrize("key", ["team", " team ", "Team", "team=x"])
def test_a_group_of_metadata_leads_to_its_requests(alice: Person, key: str, query: str) -> None:
    values = [" padded ", "a=b", "<b>&\"'", "x" * 512, "plain"]
    for value in values:
        row = run(alice, outcome=Outcome.FAILED, error_code="upstream_error")
        Generation.objects.filter(pk=row.pk).update(metadata={key: value, "other": "1"})
    client = client_of(alice.user)
    for name in ("usage", "overview"):
        page = client.get(
            url(alice, f"{name}?days=1&group=metadata&{urlencode({'metadata_key': key})}{query}")
        )
        assert f'<thead><tr><th scope="col">{escape(key)}</th>' in page.content.decode()
        groups = {each.label: each for each in page.context["groups"]}
        assert sorted(groups) == sorted(values)
        for each in groups.values():
            if "=" in key or query.startswith("&metadata"):
                assert each.url == "", "no filter stands for it"
                continue
            led = client.get(each.url)
            found = number(led, "Requests") if name == "usage" else str(len(led.context["page"].rows))
            assert found == "1", each.label


@pytest.mark.parametrize("page", ["usage", "overview", "usage.csv"])
def test_any_error_is_no_outcome_of_sums(alice: Person, page: str) -> None:
    answer = client_of(alice.user).get(url(alice, f"{page}?outcome=any_error"))
    assert answer.status_code == 400
    assert "'any_error' is none of completed" in unescape(answer.text)


def test_a_range_keeps_the_filters_and_the_group(alice: Person) -> None:
    failures_of_teams(alice)
    shown = client_of(alice.user).get(url(alice, "usage?days=1&group=error&metadata=team%3Dresearch"))
    links = dict(re.findall(r'href="([^"]*)"[^>]*>(Yesterday|Hours|CSV)<', shown.content.decode()))
    assert sorted(links.values()) == ["CSV", "Hours", "Yesterday"]
    overview = client_of(alice.user).get(url(alice, "overview?group=key")).content.decode()
    assert overview.count('name="group"') == 1, "a form sends a parameter once"
    assert all("group=error" in each and "metadata=team%3Dresearch" in each for each in links)
    assert '<input type="hidden" name="group" value="error">' in shown.content.decode()


def test_it_is_exported_as_it_is_shown(alice: Person, charlie: Person) -> None:
    failures_of_teams(alice)
    run(charlie)
    for query, expected in (
        ("group=metadata", {("research", "2", "1"), ("sales", "1", "0")}),
        ("error=upstream_timeout", {("all", "1", "1")}),
        ("", {("all", "3", "1")}),
    ):
        answer: Any = client_of(alice.user).get(url(alice, f"usage.csv?days=1&{query}"))
        lines = csv.DictReader(body(answer).splitlines())
        found = {
            (line["group"], line["requests"], line["failed_requests"])
            for line in lines
            if line["requests"] != "0"
        }
        assert found == expected, query
    assert client_of(alice.user).get(url(alice, "usage.csv?error=%3C")).status_code == 400
    assert client_of(alice.user).get(url(alice, "usage.xls")).status_code == 404
    assert "usage-by-metadata_" in text(as_role(alice, Role.OWNER).get(url(alice, "audit")))


def test_requests_are_exported_as_they_are_filtered(alice: Person, charlie: Person) -> None:
    failures_of_teams(alice)
    run(charlie)
    client = client_of(alice.user)
    for query, expected in (("", 3), ("?days=1&error=upstream_timeout", 1), ("?sort=cost&model=other", 0)):
        shown = client.get(url(alice, f"requests{query}")).content.decode()
        (link,) = re.findall(r'href="([^"]*)"[^>]*>CSV<', shown)
        lines = list(csv.DictReader(downloaded(client, unescape(link)).splitlines()))
        assert (len(lines), {line["organization"] for line in lines} <= {"Acme"}) == (expected, True), query
        assert all("deployment" not in line for line in lines), "it is the operators' to know"
    assert client.get(url(alice, "requests.csv?error=%3C")).status_code == 400
    log = text(as_role(alice, Role.OWNER).get(url(alice, "audit")))
    assert (log.count("alice exported"), "filters error=upstream_timeout&amp;days=1" in log) == (3, True)
    assert "exported" not in text(as_role(charlie, Role.OWNER).get(url(charlie, "audit")))


def test_refusals_are_counted_beside_errors(alice: Person, charlie: Person) -> None:
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    run(alice, outcome=Outcome.FAILED)
    # Of 0 are the refusals that are counted together.
    for person, status in ((alice, 402), (alice, 0), (charlie, 429)):
        owners = {"organization": person.project.organization, "project": person.project}
        RefusedRequests.objects.create(
            **owners, api_key=person.api_key, hour=hour, status=status, code=f"code_{status}", requests=7
        )
    page = client_of(alice.user).get(url(alice, f"usage?key={alice.api_key.pk}"))
    assert page.context["refusals"] == [(0, "code_0", 7), (402, "code_402", 7)]
    assert [times for _, times, _ in page.context["errors"]] == [1]


def test_an_empty_page_says_what_to_do(alice: Person) -> None:
    assert "Start shows the first steps" in text(client_of(alice.user).get(url(alice, "usage")))


@pytest.mark.parametrize("page", ["overview", "usage"])
def test_a_range_without_requests_sends_nobody_to_the_first_steps(alice: Person, page: str) -> None:
    run(alice)
    query = "?start=2020-01-01&end=2020-01-02"
    shown = text(client_of(alice.user).get(url(alice, page + query)))
    assert "Nothing finished in this time. Choose another time above." in shown
    assert "first steps" not in shown


def test_speeds_are_those_of_the_newest_requests_of_each_column(alice: Person) -> None:
    now = database_now()
    template = run(alice)
    Generation.objects.bulk_create(
        Generation(
            **{
                field.attname: getattr(template, field.attname)
                for field in Generation._meta.concrete_fields
                if field.attname not in ("id", "admitted_at", "first_token_ms")
            },
            id=f"{at + 1:032x}",
            admitted_at=now - timedelta(hours=2, seconds=at + 1),
            first_token_ms=100 if at < SAMPLE else 9_000,
        )
        for at in range(SAMPLE + 50)
    )
    edges = [(now - timedelta(hours=hours), now - timedelta(hours=hours - 1)) for hours in (4, 3, 2)]
    found = speeds(edges, Filters(organization_id=alice.project.organization_id))
    assert [each.first_p95_ms for each in found.columns] == [None, 100, None]
    others = speeds(edges, Filters(organization_id=alice.project.organization_id, model="no"))
    assert others.columns[1] == found.columns[0]


@pytest.mark.parametrize(("room", "expected"), [(7, (200, 400)), (3, (200, 400)), (1, (400, 400))])
def test_the_sample_of_few_columns_is_of_each_part_of_them(
    alice: Person, monkeypatch: pytest.MonkeyPatch, room: int, expected: tuple[int, int]
) -> None:
    start = database_now() - timedelta(hours=2)
    for first_ms, minutes in ((100, 10), (200, 20), (300, 40), (400, 50)):
        row = run(alice, first_token_ms=first_ms)
        Generation.objects.filter(pk=row.pk).update(admitted_at=start + timedelta(minutes=minutes))
    monkeypatch.setattr(speed, "SAMPLE", 1)
    monkeypatch.setattr(speed, "ALL_SAMPLED", room)
    own = Filters(organization_id=alice.project.organization_id)
    (found,) = speeds([(start, start + timedelta(hours=1))], own).columns
    assert (found.first_p50_ms, found.first_p95_ms) == expected


def test_tokens_per_second_are_those_of_requests_without_reasoning(alice: Person) -> None:
    """Reasoning may be hidden, and is then no token after the first."""
    for tokens in (Tokens(10, 87), *2 * [Tokens(10, 870, None, 800)]):
        run(alice, tokens=tokens)
    now = database_now()
    edges = [(now - timedelta(hours=1), now + timedelta(hours=1))]
    (found,) = speeds(edges, Filters(organization_id=alice.project.organization_id)).columns
    assert found.tokens_per_second == 100


def test_durations_are_from_the_admission_to_the_end(alice: Person, charlie: Person) -> None:
    failed = run(alice, outcome=Outcome.FAILED, model="other", first_token_ms=None, last_token_ms=None)
    for row, took_s in (
        (run(alice), 1.5),
        (run(alice), 2.25),
        (run(alice), 3),
        (failed, 20),
        (run(charlie), 99),
    ):
        settled_at = row.admitted_at + timedelta(seconds=took_s)
        Generation.objects.filter(pk=row.pk).update(settled_at=settled_at)
    admit(alice)  # it is still open
    page = client_of(alice.user).get(url(alice, "usage?days=1&group=model"))
    assert number(page, "Duration") == "2.25 s"
    (last,) = [row.cells for row in page.context["rows"] if "20 s" in row.cells]
    assert last[last.index("20 s") :][:2] == ["20 s", "2.25 s"]
    assert {
        each.label: (each.speed.duration_p50_ms, each.speed.duration_p95_ms)
        for each in page.context["groups"]
    } == {"small": (2_250, 3_000), "other": (20_000, 20_000)}
    assert 'data-label="Duration, p95">20 s<' in page.content.decode()
    assert number(client_of(alice.user).get(url(alice, "usage?days=1&outcome=failed")), "Duration") == "20 s"


@pytest.mark.parametrize(
    ("group", "named", "expected"),
    [
        ("model", {"small", "idle"}, {"small": 200, None: 900}),
        ("error", {"upstream_timeout"}, {"upstream_timeout": 900}),
        ("end_user", {"", "eve"}, {"": 900, "eve": 200}),
        (None, set(), {}),
    ],
)
def test_speeds_of_groups_are_those_of_the_columns_requests(
    alice: Person, group: GroupBy | None, named: set[str], expected: dict[str | None, int]
) -> None:
    for first_ms in (100, 200, 300):
        run(alice, first_token_ms=first_ms, end_user="eve")
    run(alice, first_token_ms=900, model="other", outcome=Outcome.FAILED, error_code="upstream_timeout")
    now = database_now()
    edges = [(now - timedelta(hours=hours), now - timedelta(hours=hours - 2)) for hours in (3, 1)]
    found = speeds(edges, Filters(organization_id=alice.project.organization_id), group, named)
    assert {name: each.first_p50_ms for name, each in found.groups.items()} == expected
    assert [each.first_p50_ms for each in found.columns] == [None, 200]


# ---- sorted requests, and filters


@pytest.mark.parametrize(
    ("query", "bound"),
    [
        ("days=30", "the columns' times to first token are those of the newest requests of each column"),
        ("days=30&key=alice", "those of the newest requests of each column, 300 at most."),
        (
            "days=30&model=small",
            "Times and rates are those of the matching requests among at most the newest",
        ),
        ("days=30&key=alice&end_user=x", "among at most the newest 1,000 of each column."),
        ("days=7&model=small", "among at most the newest 1,000 of each half of a column."),
        ("days=7&project=default", "Times to first token count all requests of days (UTC) that are over"),
        (
            "days=1&bucket=day",
            "Durations and rates are those of the newest requests of each quarter of a column",
        ),
    ],
)
def test_it_says_which_requests_speeds_are_of(alice: Person, query: str, bound: str) -> None:
    run(alice, end_user="x")
    assert bound in text(client_of(alice.user).get(url(alice, f"usage?{query}")))


def test_requests_are_sorted_by_cost_and_duration_page_by_page(alice: Person, charlie: Person) -> None:
    made = [run(alice, tokens=Tokens(10, 100 * number)) for number in (3, 9, 9, 1, 5)]
    for number, row in enumerate(made):
        settled = row.admitted_at + timedelta(seconds=number + 1)
        Generation.objects.filter(pk=row.pk).update(settled_at=settled)
    run(charlie, tokens=Tokens(10, 10_000))
    admit(alice)  # it has no cost yet
    by_cost = sorted(made, key=lambda row: (row.amount_nanodollars, row.pk), reverse=True)
    assert rows(alice, "sort=cost") == [str(row) for row in by_cost]
    assert rows(alice, "sort=duration") == [str(row) for row in reversed(made)]
    assert client_of(alice.user).get(url(alice, "requests?sort=name")).status_code == 400
    assert client_of(alice.user).get(url(alice, "requests?time_zone=Mars/Olympus")).status_code == 400
    assert client_of(alice.user).get(url(alice, "requests?sort=cost&after=x")).status_code == 400


@pytest.mark.parametrize("sort", ["cost", "duration"])
def test_the_pages_of_a_sorted_list_have_each_request_once(alice: Person, sort: str) -> None:
    made = {str(run(alice, tokens=Tokens(10, number % 3))) for number in range(9)}
    seen, after = [], None
    own = alice.project.organization_id
    filters = insights.RequestFilters(organization_id=own, sort=sort)  # type: ignore[arg-type]
    while True:
        page = insights.requests_page(filters, after, 2)
        seen += [str(row) for row in page.rows]
        after = page.next_cursor
        if after is None:
            break
    assert (len(seen), set(seen)) == (9, made)


def test_requests_are_filtered_by_their_error(alice: Person) -> None:
    failed = run(alice, outcome=Outcome.FAILED, error_code="upstream_timeout")
    run(alice, outcome=Outcome.FAILED, error_code="upstream_5xx")
    run(alice)
    assert rows(alice, "error=upstream_timeout") == [str(failed)]
    assert client_of(alice.user).get(url(alice, "requests?error=%3Cb%3E")).status_code == 400
    shown = client_of(alice.user).get(url(alice, "requests")).content.decode()
    assert "?error=upstream_5xx" in shown


def test_the_usual_ranges_are_one_click_away(alice: Person) -> None:
    row = run(alice)
    Organization.objects.update(created_at=timezone.now() - timedelta(days=90))
    client = client_of(alice.user)
    for page in ("overview", "usage", "requests"):
        shown = client.get(url(alice, page)).content.decode()
        links = re.findall(r'aria-label="Range">(.*?)</nav>', shown, re.DOTALL)[0]
        for title in ("Last hour", "Today", "Yesterday", "This month", "Last month", "7 days", "30 days"):
            (link,) = re.findall(rf'href="([^"]*)"[^>]*>{title}<', links)
            answer = client.get(link.replace("&amp;", "&"))
            assert answer.status_code == 200, (page, title)
            chosen = re.findall(r'aria-current="true">([^<]+)<', answer.content.decode())
            assert title in chosen, (page, title)
            if page == "requests":
                found = [str(each) for each in answer.context["page"].rows]
                assert (str(row) in found) == (title not in ("Yesterday", "Last month")), title


@pytest.mark.parametrize("page", ["usage", "overview"])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
@pytest.mark.parametrize("title", ["Last hour", "Yesterday"])
def test_the_form_of_a_range_asks_for_the_same_range(alice: Person, page: str, zone: str, title: str) -> None:
    Organization.objects.update(time_zone=zone)
    client = client_of(alice.user)
    links = {each.text: each.url for each in client.get(url(alice, page)).context["form"].range_links()}
    form = client.get(links[title]).context["form"]
    inputs = re.findall(r'name="(start|end)" value="([^"]*)"', f"{form['start']}{form['end']}")
    again = client.get(url(alice, page), {**dict(inputs), "model": "small"}).context["form"]
    assert (again.over.start, again.over.end) == (form.over.start, form.over.end)


# ---- the time zone


def test_pages_follow_the_organizations_time_zone(alice: Person) -> None:
    row = run(alice)
    moment = datetime(2026, 11, 20, 23, 30, tzinfo=UTC)
    Generation.objects.filter(pk=row.pk).update(admitted_at=moment)
    Organization.objects.update(time_zone="Asia/Tokyo")
    client = client_of(alice.user)
    assert "2026-11-21 08:30:00.000 JST" in text(client.get(url(alice, f"requests/{row}")))
    assert rows(alice, "start=2026-11-21&end=2026-11-21") == [str(row)]
    assert rows(alice, "start=2026-11-20&end=2026-11-20") == []
    assert rows(alice, "start=2026-11-20&end=2026-11-20&time_zone=UTC") == [str(row)]
    assert client.get(url(alice, "overview")).context["form"].over.start.tzinfo.key == "Asia/Tokyo"
