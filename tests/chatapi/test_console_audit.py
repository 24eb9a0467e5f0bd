"""The console's audit log: what it shows of each change, its filters and pages, and the time zone."""

import re
from datetime import UTC, datetime
from html import unescape

import pytest
from django.test import Client

import chatapi.urls  # noqa: F401  it loads the pages, which say what is recorded
from accounts.audit import recorder
from accounts.audit.models import AuditEntry
from accounts.audit.recorder import Actor
from accounts.models import Organization
from tests.admin_pages import client_of
from tests.cast import Person, run
from tests.chatapi.console_pages import url
from usage.models import BudgetLimit
from usage.pages.audit import PAGE

pytestmark = pytest.mark.usefixtures("db")


@pytest.fixture
def owner(alice: Person) -> Client:
    """Return a client of Alice."""
    return client_of(alice.user)


def rename(person: Person, *names: str, actor: str = "alice") -> None:
    """Give the person's project these names, one after the other."""
    with recorder.acting(lambda: Actor(None, actor, "192.0.2.1")):
        for name in names:
            person.project.name = name
            person.project.save()


def html_of(client: Client, path: str) -> str:
    """Return the page."""
    page = client.get(path)
    assert page.status_code == 200
    return page.content.decode()


def rows(client: Client, path: str) -> list[str]:
    """Return the rows of the page's table, without tags and without their age."""
    found = re.findall(r"<tr>\s*<td.*?</td>(.*?)</tr>", html_of(client, path), re.DOTALL)
    return [re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", row))).strip() for row in found]


def links(html: str, text: str) -> list[str]:
    """Return the URLs of the links that have this text."""
    found = re.findall(r'<a [^>]*?href="([^"]+)"[^>]*>\s*(.*?)\s*</a', html, re.DOTALL)
    return [unescape(link) for link, shown in found if re.sub(r"\s*<.*", "", shown, flags=re.DOTALL) == text]


def test_values_are_shown_before_and_after(alice: Person, owner: Client) -> None:
    rename(alice, "<b>shop</b>")
    with recorder.acting(lambda: Actor(None, "alice")):
        limit = BudgetLimit.objects.create(
            scope="key", scope_id=alice.api_key.pk, period="day", limit_nanodollars=1_500_000_000
        )
        limit.limit_nanodollars, limit.soft_limit_nanodollars = None, 2_000_000
        limit.save()
    of_limit = "budget limit, history Acme / <b>shop</b> / alice, day"
    assert rows(owner, url(alice, "audit"))[:3] == [
        f"alice changed {of_limit} limit $1.50 → became – soft limit $0.002",
        f"alice created {of_limit} scope key scope id {alice.api_key.pk} period day limit $1.50",
        "alice changed project, history Acme / <b>shop</b> name default → became <b>shop</b>",
    ]


def test_keys_and_requests_lead_to_their_pages(alice: Person, owner: Client) -> None:
    request = run(alice)
    with recorder.acting(lambda: Actor(None, "alice")):
        recorder.record("exported", alice.api_key)
        recorder.record("corrected", request, reason="charged twice")
    html = html_of(owner, url(alice, "audit"))
    assert links(html, str(request)) == [url(alice, f"requests/{request}")]
    assert links(html, str(alice.api_key)) == [url(alice, f"keys/{alice.api_key.pk}")]
    assert "“charged twice”" in html


def test_it_is_filtered_by_person_kind_and_object(alice: Person, owner: Client) -> None:
    rename(alice, "shop")
    with recorder.acting(lambda: Actor(None, "bob")):
        recorder.record("exported", alice.api_key)
    page = url(alice, "audit")
    by_bob, by_alice, *_ = rows(owner, page)
    history = links(html_of(owner, page), "history")[0]
    for query, found in (
        ("person=bob", [by_bob]),
        ("person=alice&type=accounts.project", [by_alice]),
        ("type=accounts.apikey", [by_bob]),
        (history.partition("?")[2], [by_bob]),
        (f"type=accounts.project&object={alice.project.pk}", [by_alice]),
        ("person=bob&type=accounts.project", []),
    ):
        assert rows(owner, f"{page}?{query}") == found, query


def test_a_filter_is_removed_by_its_chip(alice: Person, owner: Client) -> None:
    page = url(alice, "audit")
    html = html_of(owner, f"{page}?person=nobody&type=accounts.project")
    assert "No entry matches these filters." in html
    assert links(html, "person: nobody") == [f"{page}?type=accounts.project"]
    assert links(html, "type: accounts.project") == [f"{page}?person=nobody"]
    assert links(html, "Show all") == [page]


def test_older_entries_are_a_page_away_and_keep_the_filters(alice: Person, owner: Client) -> None:
    rename(alice, *(f"shop {number}" for number in range(PAGE + 2)))
    rename(alice, "garden", actor="bob")
    path = f"{url(alice, 'audit')}?person=alice&type=accounts.project"
    first = html_of(owner, path)
    (older,) = links(first, "Older")
    assert (len(rows(owner, path)), links(first, "Newest")) == (PAGE, [])
    last = html_of(owner, older)
    assert [row.rpartition(" ")[2] for row in rows(owner, older)] == ["1", "0"]
    assert (links(last, "Older"), links(last, "Newest")) == ([], [path])


def test_times_are_in_the_organizations_time_zone(alice: Person, owner: Client) -> None:
    Organization.objects.update(time_zone="Asia/Kolkata")
    AuditEntry.objects.create(
        at=datetime(2026, 3, 1, 20, tzinfo=UTC),
        actor="alice",
        action="exported",
        organization_id=alice.project.organization_id,
    )
    assert 'title="2026-03-02 01:30:00 IST"' in html_of(owner, url(alice, "audit"))


def test_it_has_neither_entries_of_others_nor_ip_addresses(
    alice: Person, charlie: Person, owner: Client
) -> None:
    rename(alice, "shop")
    rename(charlie, "of charlie", actor="root")
    page = url(alice, "audit")
    html = html_of(owner, page)
    assert ("shop" in html, "of charlie" in html, "192.0.2.1" in html) == (True, False, False)
    assert "of charlie" not in html_of(owner, f"{page}?type=accounts.project&object={charlie.project.pk}")
