"""What a model's page in the console says of the organization's own requests."""

import re
from datetime import timedelta
from typing import Any

import pytest

from accounts import keys
from accounts.models import Organization
from tests.admin_pages import client_of, text
from tests.cast import Person, admit, run
from tests.chatapi.console_pages import url
from usage.database.clock import database_now
from usage.models import Generation, HourlyUsage, Outcome
from usage.pricing import Tokens

pytestmark = pytest.mark.usefixtures("small")


def shown(person: Person, query: str = "") -> Any:
    page = client_of(person.user).get(url(person, f"models/small{query}"))
    assert page.status_code == 200, page.content
    return page


def figures(page: Any) -> dict[str, tuple[str, str]]:
    return {each.title: (each.value, each.note) for each in page.context["measures"].figures}


def listed(page: Any, title: str) -> list[str]:
    """Return the requests of the list to which a figure leads."""
    (link,) = [each.url for each in page.context["measures"].figures if each.title == title]
    answer = page.client.get(link)
    assert answer.status_code == 200, link
    return [str(row) for row in answer.context["page"].rows]


def with_test_key(person: Person) -> Person:
    row, key = keys.create_key(person.project, name="test", is_test=True)
    return Person(person.user, person.project, row, key)


def test_it_measures_the_live_requests_of_the_organization(
    alice: Person, bob: Person, charlie: Person
) -> None:
    made = []
    for number, person in enumerate((alice, alice, bob), 1):
        times: dict[str, Any] = {"first_token_ms": 100 * number, "last_token_ms": 100 * number + 1_000}
        made.append(run(person, tokens=Tokens(10, 51), **times))
    failed = run(alice, outcome=Outcome.FAILED, first_token_ms=None, last_token_ms=None)
    for row, took_s in zip((*made, failed), (1, 2, 3, 9), strict=True):
        settled_at = row.admitted_at + timedelta(seconds=took_s)
        Generation.objects.filter(pk=row.pk).update(settled_at=settled_at)
    run(charlie, first_token_ms=9_999)
    run(alice, model="other", first_token_ms=9_999)
    run(with_test_key(alice), first_token_ms=1)
    admit(alice)  # it is still open
    page = shown(alice)
    assert figures(page) == {
        "Requests": ("4", "4 with live keys"),
        "Failed": ("25 %", "1 of 4 requests"),
        "Time to first token": ("200 ms", "p50; p95 300 ms"),
        "Tokens per second": ("50.0", "p50"),
        "Duration": ("2 s", "p50; p95 9 s"),
    }
    assert listed(page, "Failed") == [str(failed)]
    assert sorted(listed(page, "Requests")) == sorted(str(row) for row in (*made, failed))
    assert [trend.title for trend in page.context["measures"].trends] == ["Requests", "Time to first token"]
    assert "These numbers as a table" in text(page)


def test_its_days_are_those_of_usage(alice: Person) -> None:
    now = database_now()
    row = run(alice)
    for days in (0, 2, 6, 8):
        hour = (now - timedelta(days=days)).replace(minute=0, second=0, microsecond=0)
        HourlyUsage.objects.update_or_create(
            organization=alice.project.organization, project=alice.project, api_key=alice.api_key,
            model="small", outcome="completed", hour=hour, defaults={"requests": days + 1},
        )  # fmt: skip
    page = shown(alice)
    (requests,) = [each for each in page.context["measures"].trends if each.title == "Requests"]
    assert [each.cells[0] for each in requests.columns] == ["7", "0", "0", "0", "3", "0", "1"]
    usage = client_of(alice.user).get(page.context["measures"].usage_url)
    (same,) = [each for each in usage.context["trends"] if each.title == "Requests"]
    assert same.columns == requests.columns
    assert "key kind: live" in text(usage)
    today = requests.columns[-1].bucket.url
    found = client_of(alice.user).get(today).context["page"].rows
    assert [str(each) for each in found] == [str(row)]


def test_it_is_narrowed_to_the_chosen_project(alice: Person, bob: Person) -> None:
    run(alice, first_token_ms=100)
    mine = run(bob, first_token_ms=900)
    page = shown(alice, f"?project={bob.project.pk}")
    assert figures(page)["Time to first token"] == ("900 ms", "p50; p95 900 ms")
    assert listed(page, "Requests") == [str(mine)]
    assert f"Those of the project {bob.project.name}." in text(page)
    assert figures(shown(alice, "?project=nobody"))["Requests"][0] == "2"


def test_without_requests_it_says_what_to_do(alice: Person) -> None:
    run(with_test_key(alice))
    page = shown(alice)
    assert page.context["measures"].figures == []
    assert "No request of a live key to this model finished in this time." in text(page)
    assert re.search(r'href="[^"]*/playground\?model=small">Try it in the playground', page.content.decode())


def test_days_follow_the_organizations_time_zone(alice: Person) -> None:
    Organization.objects.update(time_zone="Asia/Kolkata")
    run(alice)
    assert figures(shown(alice))["Requests"][0] == "1"


@pytest.mark.parametrize(("kind", "expected"), [("live", 1), ("test", 2), ("", 3)])
def test_requests_and_sums_are_filtered_by_the_kind_of_key(alice: Person, kind: str, expected: int) -> None:
    tester = with_test_key(alice)
    run(alice)
    run(tester)
    run(tester, outcome=Outcome.FAILED)
    client = client_of(alice.user)
    listed = client.get(url(alice, f"requests?key_kind={kind}")).context["page"].rows
    usage = client.get(url(alice, f"usage?days=1&key_kind={kind}")).context
    overview = client.get(url(alice, f"overview?days=1&group=error&key_kind={kind}")).context
    assert len(listed) == expected
    assert next(each.whole for each in usage["trends"]) == str(expected)
    assert overview["cards"][1].exact == str(expected)
    assert (usage["refusals"] is None) == bool(kind)
    assert client.get(url(alice, "requests?key_kind=x")).status_code == 400
