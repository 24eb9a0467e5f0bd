"""Each of the Overview's numbers leads to the rows that it counts."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.db import connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts.models import EndUser, Organization, Project
from chatapi.models import Deployment
from tests import cast
from tests.admin_pages import client_of, downloaded, text
from tests.cast import PRICE, Person, admit, run
from usage.books import ledger, prices
from usage.books.settlement import Attempt
from usage.database.clock import database_now, hour_of
from usage.formatting import Change, change
from usage.models import BudgetLimit, Generation, HourlyUsage, Outcome
from usage.pages.overview import MAX_COLUMNS


def listed(client: Client, url: str) -> set[Any]:
    """Return the ids of the listed requests."""
    return {row.pk for row in client.get(url).context["page"].rows}


def card(client: Client, title: str, query: str = "") -> Any:
    """Return one of the Overview's cards."""
    return next(
        each for each in client.get(f"/admin/{query}").context["cards"] if each.title.startswith(title)
    )


def since(now: datetime, days: int) -> str:
    """Return the query of as many days before today."""
    start, end = (now.astimezone(UTC).date() - timedelta(days=each) for each in (days, 1))
    return f"?start={start}&end={end}"


def test_sums_lead_to_what_was_settled_in_their_time(root: Client, alice: Person) -> None:
    long_ago = database_now() - timedelta(days=20)
    inside, late, early = run(alice), run(alice), run(alice)
    Generation.objects.filter(pk=late.pk).update(admitted_at=database_now() - timedelta(hours=5))
    Generation.objects.filter(pk=early.pk).update(admitted_at=long_ago, settled_at=long_ago)
    HourlyUsage.objects.update(requests=2)
    admit(alice)
    cards = {each.title.partition(",")[0]: each for each in root.get("/admin/").context["cards"]}
    url = cards["Requests"].url
    assert cards["Requests"].exact == "2"
    assert listed(root, url) == {inside.pk, late.pk}
    for title in ("Spend", "Tokens", "First token"):
        lines = [line for line in cards[title].lines if line.name != "Over the reserved amount"]
        assert {cards[title].url, *(line.url for line in lines)} == {url}


def test_where_days_begin_within_an_hour_links_lead_to_the_hours_that_count(
    root: Client, alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    midnight = hour_of(database_now()).replace(hour=18, minute=30) - timedelta(days=3)
    rows = []
    for minutes in (10, 120, 24 * 60 + 10):
        monkeypatch.setattr(cast, "database_now", lambda: midnight + timedelta(minutes=minutes))  # noqa: B023
        rows.append(run(alice).pk)
    # Days of Kolkata begin within an hour of UTC, which counts on the day before.
    first, last = (f"{midnight + timedelta(days=days):%Y-%m-%d}" for days in (0, 1))
    query = f"&end={last}&time_zone=Asia/Kolkata&organization={alice.project.organization_id}"
    days = root.get(f"/admin/?start={first}{query}&bucket=day").context["chart"].columns
    assert [listed(root, each.bucket.url) for each in days] == [{rows[0]}, {*rows[1:]}]
    requests = card(root, "Requests", f"?start={last}{query}")
    assert (requests.exact, listed(root, requests.url)) == ("2", {*rows[1:]})
    hours = root.get(f"/admin/?start={last}{query}&bucket=hour").context["chart"].columns
    assert set().union(*(listed(root, each.bucket.url) for each in hours if each.bucket.url)) == {*rows[1:]}


@pytest.mark.parametrize("bucket", ["day", "hour"])
def test_columns_of_single_requests_begin_and_end_with_the_range(
    root: Client, alice: Person, monkeypatch: pytest.MonkeyPatch, bucket: str
) -> None:
    """The midnights of Kolkata are within an hour of UTC."""
    midnight = hour_of(database_now()).replace(hour=18, minute=30) - timedelta(days=3)
    failed = []
    for minutes in (10, 24 * 60 + 10):
        monkeypatch.setattr(cast, "database_now", lambda: midnight + timedelta(minutes=minutes))  # noqa: B023
        failed.append(run(alice, outcome=Outcome.FAILED, error_code="e").pk)
    day = f"{midnight + timedelta(days=1):%Y-%m-%d}"
    query = f"?start={day}&end={day}&time_zone=Asia/Kolkata&error=e&bucket={bucket}"
    query += f"&organization={alice.project.organization_id}"
    columns = root.get(f"/admin/{query}").context["chart"].columns
    urls = [each.bucket.url for each in columns if each.bucket.url]
    assert set().union(*(listed(root, url) for url in urls)) == {failed[0]}


def test_the_error_rate_leads_to_every_kind_of_failure(root: Client, alice: Person) -> None:
    failed = {
        run(alice, outcome=outcome).pk
        for outcome in (Outcome.FAILED, Outcome.WORKER_LOST, Outcome.NOT_STARTED)
    }
    run(alice, outcome=Outcome.CLIENT_CANCELLED)
    errors = card(root, "Error rate")
    assert errors.exact == "3 of 4 requests"
    assert listed(root, errors.url) == failed
    assert [len(listed(root, line.url)) for line in errors.lines] == [1, 1, 1]
    assert listed(root, card(root, "Error rate", "?outcome=failed").url) < failed
    assert "outcome: any error" in root.get(errors.url).content.decode()


def test_what_failed_in_any_way_is_never_anothers(alice: Person, charlie: Person) -> None:
    theirs = run(charlie, outcome=Outcome.FAILED)
    client = client_of(alice.user)
    assert listed(client, "/admin/requests/?outcome=any_error") == set()
    assert str(theirs) not in downloaded(client, "/admin/requests/export.csv?outcome=any_error")
    assert client.get("/admin/?outcome=any_error").status_code == 400


def test_what_the_reaper_closed_and_what_never_started_lead_to_themselves(
    root: Client, alice: Person
) -> None:
    lost, not_started = run(alice, outcome=Outcome.WORKER_LOST), run(alice, outcome=Outcome.NOT_STARTED)
    old = run(alice, outcome=Outcome.WORKER_LOST)
    HourlyUsage.objects.filter(outcome=Outcome.WORKER_LOST).update(requests=1)
    long_ago = database_now() - timedelta(days=3)
    Generation.objects.filter(pk=old.pk).update(admitted_at=long_ago, settled_at=long_ago)
    health = root.get("/admin/").context["health"]
    assert (health["now"].lost, health["now"].not_started) == (1, 1)
    assert listed(root, health["lost_url"]) == {lost.pk}
    assert listed(root, health["not_started_url"]) == {not_started.pk}


@pytest.mark.parametrize(("period", "is_bounded"), [("day", True), ("month", True), ("ever", False)])
def test_what_a_budget_has_spent_leads_to_its_period(
    root: Client, alice: Person, charlie: Person, period: str, is_bounded: bool
) -> None:
    Organization.objects.filter(pk=alice.project.organization_id).update(time_zone="Pacific/Auckland")
    row, old = run(alice), run(alice)
    run(charlie)
    Generation.objects.filter(pk=old.pk).update(admitted_at=database_now() - timedelta(days=62))
    BudgetLimit.objects.create(
        scope="project", scope_id=alice.project.pk, period=period, limit_nanodollars=10**9
    )
    (meter,) = root.get("/admin/").context["budgets"]
    assert listed(root, meter.spent_url) == ({row.pk} if is_bounded else {row.pk, old.pk})
    assert parse_qs(urlsplit(meter.spent_url).query).get("time_zone") == (
        ["Pacific/Auckland"] if is_bounded else None
    )


def test_what_an_end_user_has_spent_leads_to_their_requests(root: Client, alice: Person) -> None:
    Project.objects.filter(pk=alice.project.pk).update(counts_end_users=True)
    row = run(alice, end_user="customer-1")
    run(alice, end_user="customer-2")
    person = EndUser.objects.get(name="customer-1")
    BudgetLimit.objects.create(scope="end_user", scope_id=person.pk, period="ever", limit_nanodollars=10**9)
    (meter,) = root.get("/admin/").context["budgets"]
    assert listed(root, meter.spent_url) == {row.pk}


def test_a_deployments_numbers_lead_to_what_it_served(root: Client, alice: Person, small: Any) -> None:
    name = Deployment.objects.get().name
    served, failed = run(alice, deployment=name), run(alice, deployment=name, outcome=Outcome.FAILED)
    run(alice, deployment="spare")
    run(alice, deployment=name, outcome=Outcome.CLIENT_CANCELLED)
    (row,) = root.get("/admin/").context["deployments"].rows
    run(alice, deployment=name)  # later than what the page has counted
    assert (row.requests, len(listed(root, row.requests_url))) == (3, 3)
    assert served.pk in listed(root, row.requests_url)
    assert (row.failed, listed(root, row.errors_url)) == (1, {failed.pk})


def begin(person: Person, deployment: str) -> Generation:
    """Return a request that runs at this deployment, by its last heartbeat."""
    row = admit(person)
    ledger.claim(database_now(), [ledger.Claim(row.pk, "worker-1", 6_000)])
    ledger.beat(database_now(), [ledger.Beat("worker-1", [ledger.Pulse(row.pk, 1, 5, deployment)], 6_000)])
    return row


def test_what_runs_on_a_deployment_counts_there_and_says_nothing_of_how_it_fares(
    root: Client, alice: Person, small: Any
) -> None:
    name = Deployment.objects.get().name
    running = begin(alice, name)
    (row,) = root.get("/admin/").context["deployments"].rows
    assert (row.state, row.requests, listed(root, row.requests_url)) == ("healthy", 1, {running.pk})
    run(alice, deployment=name, outcome=Outcome.FAILED)
    begin(alice, name)
    (row,) = root.get("/admin/").context["deployments"].rows
    assert (row.state, row.requests, len(listed(root, row.requests_url))) == ("failing", 3, 3)


def test_a_worker_that_is_lost_is_no_failure_of_the_deployment_that_it_asked(
    root: Client, alice: Person, small: Any
) -> None:
    name = Deployment.objects.get().name
    lost = run(alice, deployment=name, outcome=Outcome.WORKER_LOST)
    (row,) = root.get("/admin/").context["deployments"].rows
    assert (row.state, row.requests, row.failed) == ("healthy", 1, 0)
    assert (listed(root, row.requests_url), listed(root, row.errors_url)) == ({lost.pk}, set())


def test_a_deployment_that_is_always_passed_over_does_not_look_idle(
    root: Client, alice: Person, small: Any
) -> None:
    name = Deployment.objects.get().name
    Deployment.objects.create(model=small, name="spare", engine="sandbox")
    log = [Attempt(name, "upstream_unreachable", 3), Attempt("spare", "", 90)]
    for _ in range(2):
        run(alice, deployment="spare", attempts=2, attempt_log=log)
    dead, spare = root.get("/admin/").context["deployments"].rows
    assert (dead.name, dead.state, dead.requests, dead.failed, dead.failed_over) == (name, "failing", 0, 0, 2)
    assert (spare.name, spare.state, spare.requests, spare.failed, spare.failed_over) == (
        "spare",
        "healthy",
        2,
        0,
        0,
    )


@pytest.mark.parametrize(
    "message",
    [
        "The request was refused.",
        "The upstream refused the request.",  # of older rows
        "The request is too large for the upstream.",
    ],
)
def test_wrong_requests_make_no_deployment_look_failing(
    root: Client, alice: Person, small: Any, message: str
) -> None:
    wrong: dict[str, Any] = {
        "deployment": Deployment.objects.get().name,
        "outcome": Outcome.FAILED,
        "error_message": message,
    }
    for _ in range(3):
        run(alice, error_code="invalid_value", **wrong)
    page = root.get("/admin/")
    (row,) = page.context["deployments"].rows
    assert (row.state, row.requests, row.failed, row.rejected) == ("healthy", 3, 3, 3)
    assert "3 rejected" in page.content.decode()
    run(alice, **wrong | {"error_message": "The upstream failed."})
    (row,) = root.get("/admin/").context["deployments"].rows
    assert (row.state, row.failed, row.rejected) == ("some errors", 4, 3)


def test_deployments_are_the_operators_to_ask_for(root: Client, alice: Person) -> None:
    run(alice)
    assert (
        'name="deployment" value="sandbox"'
        in root.get("/admin/requests/?deployment=sandbox").content.decode()
    )
    client = client_of(alice.user)
    assert 'name="deployment"' not in client.get("/admin/requests/").content.decode()
    for path in ("/admin/requests/", "/admin/requests/export.csv"):
        assert client.get(f"{path}?deployment=sandbox").status_code == 404


@pytest.mark.parametrize(
    ("now", "said"), [(90, "−10 %"), (100, "±0 %"), (1_000, "+900 %"), (1_976_431, "more than tenfold")]
)
def test_a_change_is_a_percentage_while_that_has_a_meaning(now: int, said: str) -> None:
    shown = change(now, 100)
    assert shown is not None
    assert shown.text == said


def test_both_percentiles_are_compared_with_the_period_before(root: Client, alice: Person) -> None:
    now = database_now()
    for days, first_token_ms in ((1, 80), (2, 40)):
        row = run(alice, first_token_ms=first_token_ms)
        Generation.objects.filter(pk=row.pk).update(admitted_at=now - timedelta(days=days))
    speed = card(root, "First token", f"{since(now, 1)}&organization={alice.project.organization_id}")
    assert [(line.name, line.change) for line in speed.lines] == [
        ("p95", Change("+100 %", "up")),
        ("measured", None),
    ]
    assert speed.change == Change("+100 %", "up")


@pytest.mark.parametrize("path", ["/admin/", "/console/{}/overview"])
def test_an_error_rate_that_was_zero_is_earlier_data(alice: Person, path: str) -> None:
    Organization.objects.update(created_at=database_now() - timedelta(days=90))
    now = database_now()
    run(alice)
    HourlyUsage.objects.update(hour=F("hour") - timedelta(days=1))
    run(alice, outcome=Outcome.FAILED)
    HourlyUsage.objects.update(hour=F("hour") - timedelta(days=1))
    client, path = client_of(alice.user), path.format(alice.project.organization_id)
    for query, found in ((since(now, 1), Change("from 0", "up")), (since(now, 2), None)):
        cards = {each.title: each for each in client.get(path + query).context["cards"]}
        assert cards["Error rate"].change == found


@pytest.mark.parametrize("path", ["/admin/", "/console/{}/overview"])
def test_the_hour_that_goes_on_is_not_compared_with_a_whole_one(
    alice: Person, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    Organization.objects.update(created_at=database_now() - timedelta(days=90))
    hour = hour_of(database_now()).replace(hour=12) - timedelta(days=1)
    for hours in range(5):
        monkeypatch.setattr(cast, "database_now", lambda: hour - timedelta(hours=hours))  # noqa: B023
        run(alice, first_token_ms=40 if hours else 800)
    monkeypatch.setattr(timezone, "now", lambda: hour + timedelta(minutes=5))
    client, path = client_of(alice.user), path.format(alice.project.organization_id)
    page = client.get(path, {"start": f"{hour - timedelta(hours=2):%Y-%m-%dT%H:%M}"})
    cards = {each.title: each for each in page.context["cards"]}
    for title in ("Spend", "Requests", "Tokens", "Error rate"):
        assert cards[title].change == Change("±0 %", "same"), title
    assert cards["Requests"].value == "3"
    if path == "/admin/":
        p95 = cards["First token, p50"].lines[0]
        assert (p95.value, p95.change) == ("800 ms", Change("±0 %", "same"))
    assert ", without the running hour." in text(page)


def test_a_range_is_not_read_again_to_be_compared(root: Client, alice: Person) -> None:
    run(alice)
    with CaptureQueriesContext(connection) as queries:
        page = root.get("/admin/?days=2")
    assert page.context["compared"]
    start = page.context["form"].over.start
    statements = "".join(each["sql"] for each in queries)
    # By outcome, organization, key and model, and the chart's columns.
    assert statements.count(f""""hour" >= '{start:%Y-%m-%d %H:%M}""") == 5


# ---- the chart's columns


def choices(client: Client, query: str) -> dict[str, bool]:
    """Return the possible columns of the chart, and the chosen ones."""
    return {
        choice.text: choice.is_chosen
        for choice in client.get(f"/admin/{query}").context["form"].bucket_links()
    }


def test_columns_are_hours_or_days_as_one_chooses(root: Client, alice: Person) -> None:
    run(alice)
    assert choices(root, "") == {"Hours": False, "Days": True}
    page = root.get("/admin/?days=7&group=key")
    hours = page.context["form"].bucket_links()[0].url
    assert f'href="{hours}"'.replace("&", "&amp;") in page.content.decode()
    chosen = root.get(hours)
    # So many hours that each column has several.
    chart = chosen.context["chart"]
    assert f"By {chart.step} hours and key" in chosen.content.decode()
    assert 6 * 24 < len(chart.columns) * chart.step <= 7 * 24 + chart.step
    assert len(chart.columns) <= MAX_COLUMNS
    kept = {choice.text: choice.url for choice in chosen.context["form"].range_links()}
    assert all("bucket=hour" in url and "group=key" in url for url in kept.values())
    assert '<input type="hidden" name="bucket" value="hour">' in chosen.content.decode()


def test_the_hour_that_comes_twice_has_two_columns_with_links(root: Client, alice: Person) -> None:
    rows = [run(alice) for _ in range(5)]
    for row, hour in zip(rows, (-2, -1, 0, 1, 2), strict=True):
        moment = datetime(2026, 10, 25, 0, 30, tzinfo=UTC) + timedelta(hours=hour)
        Generation.objects.filter(pk=row.pk).update(admitted_at=moment, settled_at=moment)
    day = "?start=2026-10-25&end=2026-10-25&time_zone=Europe/Berlin&bucket=hour"
    day += f"&organization={alice.project.organization_id}"
    HourlyUsage.objects.update(hour=datetime(2026, 10, 25, 1, tzinfo=UTC))
    columns = root.get(f"/admin/{day}").context["chart"].columns
    assert [column.bucket.label for column in columns[1:5]] == ["01:00", "02:00", "02:00", "03:00"]
    assert [listed(root, column.bucket.url) for column in columns[:5]] == [{row.pk} for row in rows]


@pytest.mark.parametrize(
    "query", ["?days=90&bucket=hour", "?start=2026-01-01&end=2026-06-30&bucket=hour", "?days=90"]
)
def test_too_many_hours_give_way_to_days(root: Client, alice: Person, query: str) -> None:
    run(alice)
    assert choices(root, query) == {}
    page = root.get(f"/admin/{query}")
    assert "Hours: up to 31 days" in page.content.decode()
    assert page.context["form"].over.bucket == "day"


# ---- names


def test_names_that_people_gave_stay_as_they_are(root: Client, alice: Person, small: Any) -> None:
    run(alice, outcome=Outcome.CLIENT_CANCELLED)
    for path in ("/admin/", "/admin/requests/"):
        chips = re.sub(
            r"<[^>]*>|\s+", " ", root.get(f"{path}?model=my_model&outcome=client_cancelled").content.decode()
        )
        assert "model: my_model" in chips
        assert "outcome: client cancelled" in chips
    assert (
        '<option value="my_model" selected>my_model</option>'
        in root.get("/admin/requests/?model=my_model").content.decode()
    )


def test_a_models_name_is_offered_as_it_is(root: Client, alice: Person, small: Any) -> None:
    prices.change("my_model", PRICE)
    form = root.get("/admin/requests/").content.decode()
    for option in ("my_model", "client cancelled", "any error"):
        assert f">{option}</option>" in form


def test_what_we_ended_ourselves_makes_no_deployment_look_failing(
    root: Client, alice: Person, small: Any
) -> None:
    name = Deployment.objects.get().name
    for error_code in ("stopped_by_operator", "server_shutting_down", "stream_unavailable"):
        run(
            alice,
            deployment=name,
            outcome=Outcome.FAILED,
            error_code=error_code,
            attempt_log=[Attempt(name, "", 900)],
        )
    page = root.get("/admin/")
    (row,) = page.context["deployments"].rows
    assert (row.state, row.requests, row.failed, row.stopped) == ("healthy", 3, 3, 3)
    assert "3 stopped" in page.content.decode()
