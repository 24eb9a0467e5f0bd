"""Every page that a person can read is small, asks little, and has a landmark and a link to its content.

The admin's pages are read by an operator, and full: each list has more rows than one page of it.
"""

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.models import Member, Organization, Project, RateLimit
from chatapi.models import Deployment, ServedModel
from tests.admin_pages import client_of
from tests.cast import Person, join, run
from tests.chatapi.test_access_matrix import PAGES, ROUTES, House, _by_model
from usage.models import BudgetLimit, Outcome
from usage.rollups import closing, refused_requests
from usage.rollups.refused_requests import Refusal

MAX_BYTES, MAX_QUERIES = 150_000, 12
# Pages that may ask more. A preview is added up when it is asked for, in one snapshot; the Overview has the
# sums of two ranges by several dimensions, and the state of the service beside them; a key's page has its
# activity, limits and budgets, and the theme asks for the key again for each of its buttons.
MAY_ASK = {"statement": 20, "index": 36, "accounts_apikey_change": 17}
# Files, feeds, and dialogs, which are a part of a page.
_NO_PAGES = re.compile(
    "_export$|_file$|^live_feed$|^autocomplete$|^jsi18n$|^search$|_end_previous$|_disable$|_enable$|_revoke_one$"
)


@pytest.fixture
def house(acme: Organization, alice: Person, bob: Person, small: ServedModel) -> House:
    return House(acme, alice, bob, small)


@pytest.fixture
def full(house: House, acme: Organization, alice: Person) -> House:
    """Fill every list of the house."""
    for number in range(45):
        row = Project.objects.create(organization=acme, name=f"project {number}")
        RateLimit.objects.create(project=row, requests_per_minute=number)
        BudgetLimit.objects.create(scope="project", scope_id=row.pk, period="month", limit_nanodollars=10**9)
        Organization.objects.create(name=f"organization {number}")
        model = ServedModel.objects.create(id=f"model-{number}", context_window=1, max_output_tokens=1)
        Deployment.objects.create(model=model, name="sandbox", engine="sandbox")
    for number in range(30):
        person = join(f"person {number}", "member", acme, f"project {number}")  # type: ignore[arg-type]
        outcome = Outcome.FAILED if number % 5 == 0 else Outcome.COMPLETED
        run(person, outcome=outcome)
        run(person)
        counts = {Refusal(person.api_key.pk, 429, f"code_{number}"): 1}
        refused_requests.add(timezone.now(), [counts])
    while closing.close_next():
        pass
    return house


def reading(house: House) -> dict[str, str]:
    """Return the path of every page, and of the Overview as it is asked for most."""
    table = PAGES | dict(_by_model())
    names = [name for name, (read, _) in table.items() if read not in (None, "nobody")]
    found = {name: house.path(name) for name in names if name in ROUTES and not _NO_PAGES.search(name)}
    for query in (
        "days=90&group=key",
        "days=30&bucket=hour&group=key",
        "group=error",
        "days=1&group=project",
    ):
        found[f"index?{query}"] = f"/admin/?{query}"
    return found


def test_every_page_of_the_admin_is_small_and_asks_little(full: House, root: Client) -> None:
    Organization.objects.update(created_at=timezone.now() - timedelta(days=60))
    wrong = {}
    for name, path in reading(full).items():
        with CaptureQueriesContext(connection) as asked:
            response = root.get(path)
        if response.status_code != 200 or "text/html" not in response["content-type"]:
            assert response.status_code in (200, 302), (path, response.status_code)
            continue
        most = MAY_ASK.get(name.partition("?")[0], MAX_QUERIES)
        if len(asked) > most or len(response.content) > MAX_BYTES:
            wrong[name] = (len(response.content), len(asked))
        html = response.content.decode()
        if len(re.findall(r"<main\b", html)) != 1 or 'class="skip-link" href="#main"' not in html:
            wrong[f"{name}: landmark"] = (0, 0)
    assert not wrong, "\n" + "\n".join(f"{name}: {sizes}" for name, sizes in wrong.items())


def test_a_members_pages_of_the_admin_are_small_and_ask_little(
    full: House, acme: Organization, alice: Person
) -> None:
    Member.objects.filter(user=alice.user).update(role="owner")
    client, wrong = client_of(alice.user), {}
    for name in (
        "organization",
        "budgets",
        "budget",
        "live",
        "requests",
        "statements",
        "accounts_apikey_changelist",
    ):
        with CaptureQueriesContext(connection) as asked:
            response = client.get(full.path(name))
        assert response.status_code == 200, name
        if len(asked) > MAX_QUERIES + 4 or len(response.content) > MAX_BYTES:
            wrong[name] = (len(response.content), len(asked))
    assert wrong == {}
