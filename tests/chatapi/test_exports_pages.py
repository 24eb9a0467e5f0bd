"""Exports of what a page shows: all of it, harmless in a spreadsheet, in bounded memory, and for people that
may see the page.
"""

import csv
import io
import json
from typing import Any
from unittest.mock import patch

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Permission, User
from django.test import Client

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts.audit.models import AuditEntry
from tests.cast import Person, admit, run
from usage.books import corrections, credit
from usage.books.credit import Note
from usage.models import BudgetLimit, Generation, LedgerEntry, Outcome
from usage.pages import exports
from usage.pricing import Tokens

REQUESTS, LEDGER, BUDGETS, OVERVIEW = (
    "/admin/requests/export",
    "/admin/usage/ledgerentry/export",
    "/admin/usage/budget/export",
    "/admin/overview",
)


def sent(response: Any) -> list[bytes]:
    """Return the parts of a streamed answer."""
    assert response.status_code == 200, response.content

    async def gather() -> list[bytes]:
        return [part async for part in response.streaming_content]

    return async_to_sync(gather)()


def read(response: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(b"".join(sent(response)).decode(), newline="")))


def read_ndjson(response: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in b"".join(sent(response)).splitlines()]


# ---- requests


def test_requests_are_exported_as_the_list_shows_them(root: Client, alice: Person, bob: Person) -> None:
    rows = [run(alice), run(alice), run(bob)]
    waiting = admit(alice)
    found = read(root.get(f"{REQUESTS}.csv"))
    assert [row["id"] for row in found] == [str(waiting), *(str(row) for row in reversed(rows))]
    columns = ("project", "api_key", "amount_usd", "amount_nanodollars")
    assert [found[1][column] for column in columns] == ["research", "bob", "0.00024", "240000"]
    assert (found[0]["amount_usd"], found[0]["state"], found[0]["is_stream"]) == ("", "admitted", "true")
    own = read_ndjson(root.get(f"{REQUESTS}.ndjson?key={bob.api_key.pk}&days=7"))
    assert [(row["id"], row["prompt_tokens"], row["amount_usd"]) for row in own] == [
        (str(rows[2]), 1_000, "0.00024")
    ]


def test_every_page_of_requests_is_in_the_file_once(root: Client, alice: Person) -> None:
    ids = [str(run(alice)) for _ in range(7)]
    with patch.object(exports, "PAGE", 2):
        response = root.get(f"{REQUESTS}.csv?model=small")
        parts = sent(response)
    assert len(parts) == 4
    assert [row["id"] for row in csv.DictReader(io.StringIO(b"".join(parts).decode()))] == list(reversed(ids))
    assert response.headers["x-estimated-rows"] == "7"


def test_what_is_sent_says_what_it_is(root: Client, alice: Person) -> None:
    response = root.get(f"{REQUESTS}.csv?start=2026-01-01&end=2026-01-31")
    assert (
        response.headers["content-disposition"]
        == 'attachment; filename="requests_2026-01-01_to_2026-01-31.csv"'
    )
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    assert "no-store" in response.headers["cache-control"]
    assert sent(response)[0].startswith(b"id,admitted_at,")
    assert root.get(f"{REQUESTS}.ndjson?source=upstream").headers.get("x-estimated-rows") is None


def test_rows_are_estimated_only_where_a_rollup_has_the_filters(root: Client, alice: Person) -> None:
    run(alice)
    run(alice, outcome=Outcome.FAILED, error_code="upstream_error")
    own = f"organization={alice.project.organization_id}"
    queries = ("key_kind=live", "outcome=any_error", "key_kind=test", "error=upstream_error", "metadata=a=b")
    found = [root.get(f"{REQUESTS}.csv?{own}&{query}").headers.get("x-estimated-rows") for query in queries]
    assert found == ["2", "1", "0", None, None]


# ---- the ledger and budgets


@pytest.fixture
def books(alice: Person, bob: Person) -> None:
    for person in (alice, alice, bob):
        run(person)
    run(alice, outcome=Outcome.FAILED, tokens=Tokens(), finish_reason="")
    corrections.correct(
        LedgerEntry.objects.order_by("id")[0].pk, -40_000, Note('=HYPERLINK("http://x")', "@root")
    )
    credit.grant(alice.project.organization, 5_000, Note("-5 days\r\nlate", "+root", "\tpay"))
    BudgetLimit.objects.create(scope="key", scope_id=alice.api_key.pk, period="day", limit_nanodollars=10**9)


def test_the_ledger_is_exported_as_it_is_filtered(root: Client, books: None) -> None:
    everything = read(root.get(f"{LEDGER}.csv"))
    assert [int(row["entry"]) for row in everything] == list(
        LedgerEntry.objects.order_by("-id").values_list("id", flat=True)
    )
    assert sum(int(row["amount_nanodollars"]) for row in everything) == 3 * 240_000 - 40_000 - 5_000
    assert {row["kind"] for row in read(root.get(f"{LEDGER}.csv?kind__exact=grant"))} == {"grant"}
    assert root.get(f"{LEDGER}.csv?nonsense__exact=1").status_code == 400


def test_no_text_is_a_formula_and_numbers_stay_numbers(root: Client, books: None) -> None:
    grant, correction, *_ = read(root.get(f"{LEDGER}.csv"))
    assert (correction["reason"], correction["recorded_by"]) == ('\'=HYPERLINK("http://x")', "'@root")
    assert (correction["amount_nanodollars"], correction["amount_usd"]) == ("-40000", "-0.00004")
    assert (grant["reason"], grant["recorded_by"], grant["reference"]) == (
        "'-5 days\r\nlate",
        "'+root",
        "'\tpay",
    )
    as_json = read_ndjson(root.get(f"{LEDGER}.ndjson?kind__exact=correction"))
    assert (as_json[0]["reason"], as_json[0]["amount_nanodollars"]) == ('=HYPERLINK("http://x")', -40_000)


def test_few_that_fit_are_found_window_by_window(root: Client, books: None) -> None:
    with patch.object(exports.windows, "__defaults__", (2,)):
        every = sent(root.get(f"{LEDGER}.ndjson"))
        some = sent(root.get(f"{LEDGER}.ndjson?kind__exact=correction"))
    assert len(every) == 3
    assert len(some) == 1
    assert len(b"".join(every).splitlines()) == LedgerEntry.objects.count()


def test_budgets_are_exported_with_names_and_limits(root: Client, books: None, alice: Person) -> None:
    found = {(row["subject"], row["period"]): row for row in read(root.get(f"{BUDGETS}.csv"))}
    own = found["Acme / default / alice", "day"]
    assert (own["posted_usd"], own["limit_usd"], own["pending_nanodollars"]) == ("0.00044", "1", "0")
    assert found["Acme", "ever"]["limit_usd"] == ""
    assert {row["period"] for row in read(root.get(f"{BUDGETS}.csv?period__exact=month"))} == {"month"}


# ---- the overview


@pytest.mark.parametrize("group", ["organization", "project", "key", "model", "outcome"])
def test_the_overview_is_exported_by_its_grouping(root: Client, books: None, group: str) -> None:
    found = read_ndjson(root.get(f"{OVERVIEW}.ndjson?days=1&group={group}"))
    assert sum(row["amount_nanodollars"] for row in found) == 3 * 240_000 - 40_000
    assert sum(row["requests"] for row in found) == Generation.objects.count()
    assert sum(row["failed_requests"] for row in found) == 1


def test_pages_link_to_their_exports_with_what_they_are_asked(root: Client, books: None) -> None:
    for page, link in [
        ("/admin/?days=1&group=key", "/admin/overview.csv?days=1&amp;group=key"),
        ("/admin/requests/?model=small&after=", "/admin/requests/export.csv?model=small"),
        ("/admin/usage/ledgerentry/?kind__exact=grant", "export.ndjson?kind__exact=grant"),
        ("/admin/usage/budget/", "export.csv"),
    ]:
        content = root.get(page).content.decode()
        assert f'href="{link}"' in content
        assert "usage/export.js" in content


# ---- permissions and errors


def test_an_export_is_for_people_that_may_see_its_page(books: None, alice: Person) -> None:
    clerk = User.objects.create_user("clerk", is_staff=True)
    client = Client()
    assert client.get(f"{REQUESTS}.csv").status_code == 302
    assert client.get(f"{REQUESTS}.csv", headers={"authorization": f"Bearer {alice.key}"}).status_code == 302
    client.force_login(clerk)
    for path in (REQUESTS, LEDGER, BUDGETS, OVERVIEW):
        assert client.get(f"{path}.csv").status_code == 403
    clerk.user_permissions.add(Permission.objects.get(codename="view_ledgerentry"))
    client.force_login(User.objects.get(pk=clerk.pk))
    assert [client.get(f"{path}.csv").status_code for path in (REQUESTS, LEDGER, BUDGETS)] == [403, 200, 403]


def test_a_member_takes_what_is_their_organizations(books: None, alice: Person, charlie: Person) -> None:
    own, client = run(charlie), Client()
    client.force_login(charlie.user)
    assert [row["id"] for row in read(client.get(f"{REQUESTS}.csv"))] == [str(own)]
    assert {row["organization"] for row in read(client.get(f"{LEDGER}.csv"))} == {"Umbrella"}
    assert {row["subject"].partition(" / ")[0] for row in read(client.get(f"{BUDGETS}.csv"))} == {"Umbrella"}
    assert sum(row["requests"] for row in read_ndjson(client.get(f"{OVERVIEW}.ndjson?days=1"))) == 1
    for path in (REQUESTS, OVERVIEW):
        assert client.get(f"{path}.csv?organization={alice.project.organization_id}").status_code == 404
    assert AuditEntry.objects.filter(action="exported").count() == 4


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{REQUESTS}.xlsx", 404),
        (f"{LEDGER}.xml", 404),
        (f"{REQUESTS}.csv?outcome=lost", 400),
        (f"{OVERVIEW}.csv?days=0", 400),
        (f"{REQUESTS}.csv?start=0001-01-01T00:00&end=0001-01-01T05:00&time=settled", 400),
        (f"{REQUESTS}.csv?start=9999-12-31T00:00&end=9999-12-31T23:59", 400),
        (f"{OVERVIEW}.csv?start=9999-12-31T00:00&end=9999-12-31T23:59", 400),
    ],
)
def test_an_export_that_is_impossible_is_refused_with_its_reason(
    root: Client, path: str, status: int
) -> None:
    assert root.get(path).status_code == status


def test_an_export_is_in_the_audit_log_with_its_person(root: Client, books: None) -> None:
    root.get(f"{REQUESTS}.csv?model=small&start=2026-01-01&end=2026-01-31")
    entry = AuditEntry.objects.get(action="exported")
    assert (entry.actor, entry.changes["filters"]) == (
        "root",
        [None, "model=small&start=2026-01-01&end=2026-01-31"],
    )
    assert entry.changes["file"] == [None, "requests_2026-01-01_to_2026-01-31.csv"]
