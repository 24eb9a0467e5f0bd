"""The operator's pages: empty, with rows, with wrong parameters, and for users without the permission."""

import re
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from pytest_django.fixtures import DjangoAssertNumQueries

import chatapi.urls  # noqa: F401  it loads the admin's pages
from tests.admin_pages import client_of, shown, text
from tests.cast import Person, admit, run
from usage import formatting
from usage.models import BudgetLimit, Generation, LedgerEntry, Outcome, UsageSource
from usage.pricing import Tokens

WRITE = "write a date such as 2026-11-21 or a time such as 2026-11-21T13:00"
PAGES = ["/admin/", "/admin/live/", "/admin/requests/"]


@pytest.fixture
def house(alice: Person, bob: Person, charlie: Person, small: Any) -> Generation:
    """Make rows of every kind, and return the generation that still waits."""
    for person in (alice, bob, charlie):
        run(person)
    run(
        alice,
        outcome=Outcome.FAILED,
        error_code="upstream_timeout",
        error_message="<b>It</b> took too long.",
        finish_reason="",
        tokens=Tokens(),
    )
    BudgetLimit.objects.create(
        scope="organization", scope_id=alice.project.organization_id, period="month", limit_nanodollars=10**8
    )
    return admit(bob)


def links(response: Any) -> list[str]:
    """Return the URLs of requests that the page links to."""
    found: list[str] = re.findall(
        r'href="(/admin/requests/[^"]*)"', response.content.decode().replace("&amp;", "&")
    )
    return found


# ---- access


@pytest.mark.parametrize(
    "path", [*PAGES, "/admin/requests/chatcmpl-00000000000070008000000000000000", "/admin/live/feed"]
)
def test_nobody_gets_in_without_being_staff_or_a_member(alice: Person, path: str) -> None:
    client = Client()
    assert client.get(path).status_code == 302
    client.force_login(User.objects.create_user("nobody"))
    assert client.get(path).status_code == 302
    assert client.get(path, headers={"authorization": f"Bearer {alice.key}"}).status_code == 302


def test_staff_without_permissions_sees_no_usage(house: Generation) -> None:
    client = Client()
    client.force_login(User.objects.create_user("clerk", is_staff=True))
    assert "Top organizations" not in client.get("/admin/").content.decode()
    for path in ("/admin/live/", "/admin/requests/", f"/admin/requests/{house}"):
        assert client.get(path).status_code == 403
    assert client.post(f"/admin/live/{house}/stop").status_code == 403


def test_staff_that_may_only_view_has_no_stop_button(house: Generation) -> None:
    clerk = User.objects.create_user("clerk", is_staff=True)
    clerk.user_permissions.add(Permission.objects.get(codename="view_generation"))
    client = Client()
    client.force_login(clerk)
    for path in ("/admin/live/", f"/admin/requests/{house}"):
        assert f"/admin/live/{house}/stop" not in client.get(path).content.decode()
    assert client.post(f"/admin/live/{house}/stop").status_code == 403


def test_stopping_needs_a_form_and_its_token(house: Generation) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("root"))
    assert client.get(f"/admin/live/{house}/stop").status_code == 405
    assert client.post(f"/admin/live/{house}/stop").status_code == 403


def test_stopping_what_has_ended_or_never_was(root: Client, alice: Person) -> None:
    ended = run(alice)
    assert "had already ended" in root.post(f"/admin/live/{ended}/stop", follow=True).content.decode()
    for wrong in ("chatcmpl-00000000000070008000000000000000", "nonsense"):
        assert root.post(f"/admin/live/{wrong}/stop").status_code == 404


# ---- empty


def test_the_first_page_of_an_empty_installation_says_what_to_do(root: Client) -> None:
    page = shown(root.get("/admin/"))
    assert "loadcatalog" in page
    assert "Create an API key" in page
    assert "curl -N http://testserver/v1/chat/completions" in page


def test_steps_that_are_done_are_marked_and_go_with_the_first_request(
    root: Client, alice: Person, small: Any
) -> None:
    page = shown(root.get("/admin/"))
    assert page.count("done") == 2
    run(alice)
    assert "curl" not in shown(root.get("/admin/"))


def test_empty_pages_say_so(root: Client) -> None:
    assert "Nothing is running." in shown(root.get("/admin/live/"))
    assert "No requests yet." in shown(root.get("/admin/requests/"))


# ---- with rows


def test_the_overview_sums_and_links_to_the_rows(root: Client, house: Generation, alice: Person) -> None:
    response = root.get("/admin/?days=1&group=key")
    page = shown(response)
    assert "$0.00072" in page  # three times $0.00024
    assert "3,600" in page
    assert "25 %" in page
    assert f"/admin/requests/?days=1&key={alice.api_key.pk}&time=settled" in links(response)
    assert "/admin/requests/?days=1&outcome=failed&time=settled" in links(response)
    for address in set(links(response)):
        assert root.get(address, follow=True).status_code == 200, address


@pytest.mark.parametrize("query", ["", "?organization={}", "?model=small", "?outcome=completed"])
def test_the_overview_says_what_was_charged_beyond_holds_and_links_to_it(
    root: Client, house: Generation, alice: Person, query: str
) -> None:
    beyond = LedgerEntry.objects.get(generation=run(alice, tokens=Tokens(1_000, 90_000)), kind="overage")
    response = root.get("/admin/" + query.format(beyond.organization_id))
    assert f"Over the reserved amount {formatting.money(beyond.amount_nanodollars)}" in shown(response)
    (address,) = re.findall(
        r'href="(/admin/usage/ledgerentry/\?[^"]*)"', response.content.decode().replace("&amp;", "&")
    )
    listed = root.get(address)
    assert (listed.status_code, list(listed.context["cl"].queryset)) == (200, [beyond])


def test_the_overview_is_quiet_where_holds_covered_all(
    root: Client, house: Generation, alice: Person, charlie: Person
) -> None:
    run(alice, tokens=Tokens(1_000, 90_000))
    for query in (
        {"organization": charlie.project.organization_id},
        {"start": "2020-01-01", "end": "2020-01-02"},
    ):
        assert re.search(r'ledgerentry/[^"]*" class="faint">\$0', root.get("/admin/", query).content.decode())


def test_the_overview_shows_budgets_and_the_queue(root: Client, house: Generation) -> None:
    page = shown(root.get("/admin/"))
    assert "$0.00048 spent, $0.0009 reserved of $0.10" in page
    assert "Waiting for a worker 1" in page


def test_the_overview_says_that_no_budget_with_a_limit_is_used(root: Client, alice: Person) -> None:
    BudgetLimit.objects.create(
        scope="project", scope_id=alice.project.pk, period="month", limit_nanodollars=10**8
    )
    page = shown(root.get("/admin/"))
    assert "No budget with a limit has been used in its current period." in page


@pytest.mark.parametrize(
    ("group", "measure"),
    [
        ("organization", "spend"),
        ("project", "requests"),
        ("key", "tokens"),
        ("model", "spend"),
        ("outcome", "requests"),
    ],
)
def test_the_chart_has_a_table_behind_it(root: Client, house: Generation, group: str, measure: str) -> None:
    response = root.get(f"/admin/?days=7&group={group}&measure={measure}")
    page = response.content.decode()
    assert page.count('<th scope="row"><a href="/admin/requests/?start=') == 7
    assert '<title id="plot-title">' in page


def test_the_overview_keeps_filters_and_shows_them(root: Client, house: Generation, charlie: Person) -> None:
    response = root.get(f"/admin/?organization={charlie.project.organization_id}")
    assert "organization: Umbrella ×" in shown(response)
    assert "$0.00024" in shown(response)
    assert f'name="organization" value="{charlie.project.organization_id}"' in response.content.decode()


def test_requests_are_listed_with_their_filters(root: Client, house: Generation, charlie: Person) -> None:
    everything = root.get("/admin/requests/").content.decode()
    assert all(str(row) in everything for row in Generation.objects.all())
    own = root.get(f"/admin/requests/?key={charlie.api_key.pk}&outcome=completed&days=7&max=0.01")
    assert own.content.decode().count("data-copy=") == 1
    assert "last 7 days ×" in shown(own)
    assert "No request matches" in shown(root.get("/admin/requests/", {"min": "1"}))


def test_older_requests_are_a_page_away(root: Client, alice: Person) -> None:
    rows = [run(alice) for _ in range(52)]
    first = root.get("/admin/requests/", {"model": "small"})
    (older,) = [address for address in links(first) if "after=" in address]
    second = root.get(older).content.decode()
    assert [str(row) in second for row in rows[:3]] == [True, True, False]
    assert "model=small" in older


@pytest.mark.parametrize("form", ["chatcmpl-{hex}", "stream:chat:{uuid}", '"id": "{hex}"', " {uuid} "])
def test_an_id_in_any_form_leads_to_its_receipt(root: Client, alice: Person, form: str) -> None:
    row = run(alice)
    found = root.get("/admin/requests/", {"id": form.format(hex=row.id.hex, uuid=row.id)}, follow=True)
    assert found.redirect_chain == [(f"/admin/requests/{row}", 302)]


@pytest.mark.parametrize("path", ["/admin/requests/", "/console/{}/requests"])
def test_an_unknown_id_is_a_filter_that_nothing_matches(alice: Person, path: str) -> None:
    unknown, url = uuid4(), path.format(alice.project.organization_id)
    found = text(client_of(alice.user).get(url, {"id": f"chatcmpl-{unknown.hex}"}))
    assert f"id: {unknown}" in found
    assert "No request matches these filters." in found


def test_a_receipt_says_what_it_cost_and_why_it_ended(root: Client, alice: Person) -> None:
    page = shown(root.get(f"/admin/requests/{run(alice)}"))
    assert "Finished normally." in page
    assert "input 600 $0.15 $0.00009 cached input 400 $0.075 $0.00003 output 200 $0.60 $0.00012" in page
    for part in ("waiting for a worker", "charge", "Prompts and answers are not stored."):
        assert part in page


def test_what_failed_and_what_waits_have_a_page_too(root: Client, house: Generation) -> None:
    failed = root.get(f"/admin/requests/{Generation.objects.get(outcome='failed')}")
    assert "&lt;b&gt;It&lt;/b&gt; took too long." in failed.content.decode()
    assert "nothing is charged" in shown(failed)
    assert "It waits for a worker." in shown(root.get(f"/admin/requests/{house}"))


LOST: dict[str, Any] = {
    "outcome": Outcome.WORKER_LOST,
    "usage_source": UsageSource.COUNTED,
    "finish_reason": "",
    "attempts": 0,
    "first_token_ms": None,
    "last_token_ms": None,
}
"""As the reaper settles."""


@pytest.mark.parametrize("deployment", ["openai", ""])
def test_a_receipt_claims_nothing_that_went_with_a_lost_worker(
    root: Client, alice: Person, deployment: str
) -> None:
    page = shown(root.get(f"/admin/requests/{run(alice, deployment=deployment, **LOST)}"))
    assert "Its worker crashed; the output until then is charged." in page
    assert "Attempts not known" in page
    assert "waiting for the first token" not in page


def test_attempts_are_shown_where_they_are_known(root: Client, alice: Person, house: Generation) -> None:
    assert "Attempts 1 deployment tried" in shown(root.get(f"/admin/requests/{run(alice)}"))
    assert "Attempts 0 deployments tried" in shown(
        root.get(f"/admin/requests/{run(alice, deployment='', attempts=0)}")
    )
    assert "Attempts not known until it ends" in shown(root.get(f"/admin/requests/{house}"))


def test_live_shows_what_is_open(root: Client, house: Generation) -> None:
    page = root.get("/admin/live/")
    assert "waiting small $" not in shown(page)
    assert f'data-id="{house}"' in page.content.decode()
    assert "Acme / research" in shown(page)
    assert "no-store" in page.headers["cache-control"]


# ---- asked something wrong


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/admin/?days=0", "Days: '0' is not a number"),
        ("/admin/?days=٣", "is not a number"),
        ("/admin/?start=2026-02-30", f"From: {WRITE}, not '2026-02-30'"),
        ("/admin/?start=2026-11-02&end=2026-11-01", "must end after it starts"),
        ("/admin/?start=1900-01-01&end=2026-11-01", "too long"),
        (
            "/admin/?start=0001-01-01T00:00&end=0001-01-01T05:00",
            f"From: {WRITE}, not '0001-01-01T00:00'",
        ),
        (
            "/admin/?start=9999-12-31T00:00&end=9999-12-31T23:59",
            f"From: {WRITE}, not '9999-12-31T00:00'",
        ),
        ("/admin/?start=2026-11-20&end=9999-12-31T23:59", f"To: {WRITE}, not '9999-12-31T23:59'"),
        ("/admin/?group=colour", "is none of organization"),
        ("/admin/?measure=height", "is none of spend"),
        ("/admin/?organization=%00", "No organization has the name or number"),
        ("/admin/?key=99999999999999999999", "No API key has the name or number"),
        ("/admin/?time_zone=../etc/passwd", "Time zone: '../etc/passwd' is not an IANA time zone"),
        ("/admin/requests/?outcome=lost", "is none of any_error, completed"),
        ("/admin/requests/?model=%00", "Model: Null characters are not allowed"),
        ("/admin/requests/?id=x", "contains no request's id"),
        ("/admin/requests/?min=1e999", "Cost from (USD): "),
        ("/admin/requests/?after=0", "after: "),
        ("/admin/requests/?source=guess", "is none of upstream"),
        ("/admin/requests/?dialect=<b>", "is not the name of one"),
        ("/admin/requests/?end=yesterday", f"From: {WRITE}."),
        ("/admin/requests/?time_zone=Mars/Olympus", "Time zone: 'Mars/Olympus' is not an IANA time zone"),
        (
            "/admin/requests/?start=0001-01-01T00:00&end=0001-01-01T05:00&time=settled",
            WRITE,
        ),
        (
            "/admin/requests/?start=0001-01-01T00:00&end=0001-01-01T05:00&time_zone=Asia/Kathmandu",
            WRITE,
        ),
        ("/admin/requests/?start=9999-12-31T00:00&end=9999-12-31T23:59", WRITE),
    ],
)
def test_an_invalid_query_is_an_error_on_the_page(root: Client, path: str, message: str) -> None:
    response = root.get(path)
    assert response.status_code == 400
    assert message in response.content.decode().replace("&#x27;", "'") or message in response.content.decode()
    assert 'role="alert"' in response.content.decode()


def test_what_was_never_there_is_not_found(root: Client) -> None:
    assert root.get("/admin/requests/chatcmpl-00000000000070008000000000000000").status_code == 404
    assert root.get("/admin/requests/nonsense").status_code == 404
    assert root.get("/admin/requests/", {"organization": 999, "key": 999}).status_code == 200


# ---- what it costs


@pytest.mark.parametrize(("path", "most"), [("/admin/", 42), ("/admin/live/", 6), ("/admin/requests/", 10)])
def test_more_rows_cost_no_more_queries(
    root: Client,
    house: Generation,
    alice: Person,
    path: str,
    most: int,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    for _ in range(8):
        run(alice)
        admit(alice)
    root.get(path)
    with django_assert_max_num_queries(most):
        root.get(path)


def test_live_names_a_key_and_a_project_of_which_nothing_runs(root: Client, alice: Person) -> None:
    query: dict[str, int | str] = {"key": alice.api_key.pk, "project": alice.project.pk, "model": "small"}
    form = root.get("/admin/live/", query).context["form"]
    names = {name: dict(form.fields[name].choices)[str(chosen)] for name, chosen in query.items()}
    assert names == {"key": str(alice.api_key), "project": str(alice.project), "model": "small"}
