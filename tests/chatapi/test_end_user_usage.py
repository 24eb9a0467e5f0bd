"""Usage, costs and limits of end users: by the organization's routes and on pages, each tenant's own."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pytest
from django.urls import reverse

from accounts import end_users
from accounts.models import APIKey, EndUser, Project
from tests.admin_pages import client_of, text
from tests.cast import Person, run
from usage.insights import buckets, end_user_pages
from usage.models import BudgetLimit, LedgerEntry

pytestmark = pytest.mark.django_db

USAGE, COSTS = "/v1/organization/usage/completions", "/v1/organization/costs"
TODAY_S = int(datetime.now(UTC).timestamp()) // 86_400 * 86_400 - 86_400


@pytest.fixture(autouse=True)
def counting(alice: Person, charlie: Person) -> None:
    """Have both projects count their end users, and give alice an admin key."""
    Project.objects.update(counts_end_users=True)
    APIKey.objects.filter(pk=alice.api_key.pk).update(is_admin=True)
    for name in ("ann", "ann", "bob", None):
        run(alice, end_user=name)
    run(alice, end_user=end_users.digest("eve"))
    run(charlie, end_user="ann")
    run(charlie, end_user="zoe")


def results(person: Person, path: str, **parameters: Any) -> list[dict[str, Any]]:
    query = urlencode({"start_time": TODAY_S} | parameters, doseq=True)
    response = person.get(f"{path}?{query}")
    assert response.status_code == 200, response.content
    return [result for bucket in response.json()["data"] for result in bucket["results"]]


def test_usage_is_grouped_by_end_user(alice: Person) -> None:
    found = results(alice, USAGE, group_by="end_user")
    assert {each["end_user"]: each["num_model_requests"] for each in found} == {
        "ann": 2, "bob": 1, end_users.digest("eve"): 1
    }  # fmt: skip
    costs = results(alice, COSTS, group_by=["end_user", "line_item"])
    assert {each["end_user"] for each in costs} == {each["end_user"] for each in found}
    assert {each["line_item"] for each in costs} == {"small"}


def test_usage_is_of_the_named_end_users(alice: Person) -> None:
    def requests(*names: str) -> int:
        found = results(alice, USAGE, **{"end_users[]": names})
        assert all("end_user" not in each for each in found)
        return sum(each["num_model_requests"] for each in found)

    assert [requests("ann"), requests("ann", "bob"), requests("eve"), requests("zoe")] == [2, 3, 1, 0]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("bucket_width=1h&group_by=end_user", "bucket_width"),
        ("bucket_width=1m&end_users=ann", "bucket_width"),
        ("group_by=end_user&group_by=api_key_id", "group_by"),
        ("end_users=ann&api_key_ids=1", "api_key_ids"),
        ("end_users=a%00b", "end_users"),
    ],
)
def test_what_is_not_kept_by_end_user_is_refused(alice: Person, query: str, param: str) -> None:
    response = alice.get(f"{USAGE}?start_time={TODAY_S}&{query}")
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def walked(person: Person, path: str, **parameters: Any) -> list[list[dict[str, Any]]]:
    """Return the results of each page."""
    pages: list[list[dict[str, Any]]] = []
    cursor: dict[str, str] = {}
    while True:
        query = urlencode({"start_time": TODAY_S} | parameters | cursor, doseq=True)
        response = person.get(f"{path}?{query}")
        assert response.status_code == 200, response.content
        page = response.json()
        pages.append([result for bucket in page["data"] for result in bucket["results"]])
        assert page["has_more"] == (page["next_page"] is not None)
        if not page["has_more"]:
            return pages
        cursor = {"page": page["next_page"]}


@pytest.mark.parametrize("path", [USAGE, COSTS])
def test_a_day_of_many_end_users_is_continued(
    alice: Person, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    run(alice, end_user="bob", model="large")
    usual = results(alice, path, group_by="end_user")
    assert len(usual) == 3
    monkeypatch.setattr(end_user_pages, "MAX_ROWS", 2)
    pages = walked(alice, path, group_by="end_user")
    assert [len(page) for page in pages] == [1, 1, 1]  # bob's two models are on one page
    assert [result for page in pages for result in page] == usual


def test_pages_of_end_users_are_the_ledger(alice: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end_user_pages, "MAX_ROWS", 2)
    pages = walked(alice, COSTS, group_by="end_user")
    mine = LedgerEntry.objects.filter(organization=alice.project.organization, end_user_id__isnull=False)
    names = dict(EndUser.objects.values_list("pk", "name"))
    spent: Counter[str] = Counter()
    for end_user_id, amount in mine.values_list("end_user_id", "amount_nanodollars"):
        assert end_user_id is not None
        spent[names[end_user_id]] += amount
    found = {each["end_user"]: round(each["amount"]["value"] * 10**9) for page in pages for each in page}
    assert found == spent


def test_pages_without_a_match_are_continued(alice: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end_user_pages, "MAX_ROWS", 1)
    run(alice, end_user="fay", model="large")
    pages = walked(alice, USAGE, group_by=["end_user", "model"], models="large")
    (found,) = [result for page in pages for result in page]
    assert (found["end_user"], found["model"], len(pages)) == ("fay", "large", 4)


def test_a_place_in_a_day_is_for_questions_by_end_user(alice: Person) -> None:
    cursor = f"page_{TODAY_S:x}_1_1"
    for query in ("group_by=model", "group_by=end_user&end_users=ann"):
        response = alice.get(f"{USAGE}?start_time={TODAY_S}&page={cursor}&{query}")
        assert (response.status_code, response.json()["error"]["param"]) == (400, "page")


def test_named_end_users_of_many_days_are_continued(alice: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "MAX_ENTRIES", 1)
    pages = walked(alice, USAGE, group_by="end_user", end_users=["ann", "bob"])
    assert [len(page) for page in pages] == [0, 2]


FORM = {"period": "month", "limit_nanodollars": "5", "soft_limit_nanodollars": ""}


@pytest.mark.parametrize(
    ("values", "scope"),
    [
        ({"each_end_user": "on"}, "project_user"),
        ({"end_user": "ann"}, "end_user"),
        ({"end_user": "new"}, "end_user"),
        ({}, "project"),
        ({"each_end_user": "on", "end_user": "ann"}, None),
        ({"end_user": "ann", "project": ""}, None),
    ],
)
def test_limits_of_end_users_are_set_on_a_page(
    alice: Person, admin_client: Any, values: dict[str, str], scope: str | None
) -> None:
    url = reverse("admin:usage_budgetlimit_add")
    page = admin_client.post(url, FORM | {"project": str(alice.project.pk)} | values)
    if scope is None:
        assert not BudgetLimit.objects.exists(), page.text
        return
    row = BudgetLimit.objects.get()
    assert (row.scope, row.limit_nanodollars) == (scope, 5_000_000_000)
    owner = alice.project.pk
    if scope == "end_user":
        owner = EndUser.objects.get(project=alice.project, name=values["end_user"]).pk
        assert row.owner_name.endswith(values["end_user"])
    assert row.scope_id == owner


def test_a_project_that_does_not_count_has_no_limits_of_end_users(alice: Person, admin_client: Any) -> None:
    Project.objects.update(counts_end_users=False)
    values = {"project": str(alice.project.pk), "each_end_user": "on"}
    page = admin_client.post(reverse("admin:usage_budgetlimit_add"), FORM | values)
    assert "does not count its end users" in page.text
    assert not BudgetLimit.objects.exists()


def test_people_see_budgets_of_their_own_end_users_only(alice: Person, charlie: Person) -> None:
    people = {row.name: row for row in EndUser.objects.filter(project=charlie.project)}
    BudgetLimit.objects.create(scope="end_user", scope_id=people["zoe"].pk, period="day", limit_nanodollars=1)
    BudgetLimit.objects.create(
        scope="project_user", scope_id=charlie.project.pk, period="day", limit_nanodollars=1
    )
    budgets = reverse("admin:usage_budget_changelist")
    pages = {
        person.user.username: text(client_of(person.user).get(budgets, {"scope__exact": "end_user"}))
        + text(client_of(person.user).get(reverse("admin:usage_budgetlimit_changelist")))
        for person in (alice, charlie)
    }
    assert "bob" in pages["alice"]
    assert "zoe" not in pages["alice"]
    assert "zoe" in pages["charlie"]
    assert "bob" not in pages["charlie"]
    assert "bob" not in text(client_of(alice.user).get(budgets))
