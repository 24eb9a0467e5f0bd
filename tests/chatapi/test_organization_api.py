"""`/v1/organization/usage/completions` and `/costs`: OpenAI's shapes, the ledger's numbers, the caller's own
organization only.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client, RequestFactory
from openai.types.admin.organization import (
    UsageCompletionsResponse,
    UsageCostsResponse,
    UsageEmbeddingsResponse,
)
from pydantic import BaseModel

from accounts.models import APIKey
from chatapi.api import organization_query
from chatapi.models import ServedModel
from chatapi.wire.dialects import DIALECTS
from tests.cast import Person, run
from usage.insights import buckets
from usage.models import HourlyUsage, LedgerEntry, Outcome
from usage.pricing import NANODOLLARS, Tokens

USAGE, COSTS = "/v1/organization/usage/completions", "/v1/organization/costs"
EMBEDDINGS = "/v1/organization/usage/embeddings"
PUBLISHED: dict[str, type[BaseModel]] = {
    USAGE: UsageCompletionsResponse,
    COSTS: UsageCostsResponse,
    EMBEDDINGS: UsageEmbeddingsResponse,
}
DAY_S = 86_400
TODAY_S = int(datetime.now(UTC).timestamp()) // DAY_S * DAY_S


@pytest.fixture
def boss(alice: Person) -> Person:
    """Return alice with an admin key."""
    APIKey.objects.filter(pk=alice.api_key.pk).update(is_admin=True)
    return alice


def page(person: Person, path: str, **parameters: Any) -> dict[str, Any]:
    """Return a page, strictly of the published type."""
    query = urlencode({"start_time": TODAY_S - DAY_S} | parameters, doseq=True)
    response = person.get(f"{path}?{query}")
    assert response.status_code == 200, response.content
    PUBLISHED[path].model_validate_json(response.content, strict=True, extra="forbid")
    found: dict[str, Any] = response.json()
    return found


def results(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [result for bucket in found["data"] for result in bucket["results"]]


def refused(person: Person, query: str, path: str = USAGE, status: int = 400) -> tuple[str | None, str]:
    """Return the parameter and the code of a refusal."""
    response = person.get(f"{path}?{query}")
    assert response.status_code == status, response.content
    error = json.loads(response.content)["error"]
    return error["param"], error["code"]


# ---- shapes and numbers


@pytest.mark.parametrize("width", ["1m", "1h", "1d"])
def test_usage_is_what_the_ledger_says_by_any_width(boss: Person, bob: Person, width: str) -> None:
    for person in (boss, boss, bob):
        run(person, tokens=Tokens(1_000, 200, 400, cache_write_tokens=100))
    found = page(boss, USAGE, start_time=int(datetime.now(UTC).timestamp()) - 600, bucket_width=width)
    entries = LedgerEntry.objects.all()
    summed = [
        sum(result[name] for result in results(found))
        for name in ("num_model_requests", "input_tokens", "output_tokens")
    ]
    assert summed == [
        3,
        sum(each.prompt_tokens for each in entries),
        sum(each.completion_tokens for each in entries),
    ]
    kinds = ("input_cached_tokens", "input_cache_write_tokens", "input_uncached_tokens")
    assert [sum(result[name] for result in results(found)) for name in kinds] == [1_200, 300, 1_500]


@pytest.mark.parametrize("width", ["1m", "1h", "1d"])
def test_embeddings_are_reported_apart(boss: Person, bob: Person, width: str) -> None:
    ServedModel.objects.create(id="vectors", kind="embeddings")
    for person, model in ((boss, "small"), (boss, "vectors"), (bob, "vectors")):
        run(person, tokens=Tokens(1_000, 0), model=model)
    asked = {"start_time": int(datetime.now(UTC).timestamp()) - 600, "bucket_width": width}
    grouped = {"group_by": ["model", "api_key_id"]}
    (completions,) = results(page(boss, USAGE, **asked, **grouped))
    assert (completions["model"], completions["num_model_requests"]) == ("small", 1)
    assert {
        (each["model"], each["api_key_id"], each["input_tokens"], each["num_model_requests"])
        for each in results(page(boss, EMBEDDINGS, **asked, **grouped))
    } == {("vectors", str(person.api_key.pk), 1_000, 1) for person in (boss, bob)}
    assert results(page(boss, EMBEDDINGS, **asked, models="small")) == []
    assert results(page(boss, USAGE, **asked, models="vectors")) == []
    assert len(results(page(boss, COSTS, group_by="line_item"))) == 2
    assert refused(boss, f"start_time={TODAY_S}&batch=true", EMBEDDINGS) == ("batch", "unknown_parameter")


def test_costs_are_the_ledgers_to_the_nanodollar(boss: Person, bob: Person) -> None:
    for person in (boss, bob, bob):
        run(person)
    (result,) = results(page(boss, COSTS))
    assert result["amount"]["currency"] == "usd"
    assert round(result["amount"]["value"] * NANODOLLARS) == sum(
        each.amount_nanodollars for each in LedgerEntry.objects.all()
    )
    assert (result["quantity"], result["line_item"], result["project_id"]) == (None, None, None)


def test_what_is_not_grouped_by_is_null(boss: Person, bob: Person) -> None:
    run(boss)
    run(bob)
    (result,) = results(page(boss, USAGE))
    assert {
        result[name] for name in ("project_id", "user_id", "api_key_id", "model", "batch", "service_tier")
    } == {None}
    assert result["num_model_requests"] == 2


@pytest.mark.parametrize("name", ["group_by", "group_by[]"])
def test_groups_can_be_combined(boss: Person, bob: Person, name: str) -> None:
    run(boss)
    run(bob)
    found = results(page(boss, USAGE, **{name: ["project_id", "api_key_id", "model", "batch", "user_id"]}))
    groups = {
        (each["project_id"], each["api_key_id"], each["model"], each["batch"], each["user_id"])
        for each in found
    }
    assert groups == {
        (str(each.project.pk), str(each.api_key.pk), "small", False, None) for each in (boss, bob)
    }


def test_a_line_item_is_a_model_with_its_tokens(boss: Person) -> None:
    run(boss)
    (result,) = results(page(boss, COSTS, group_by="line_item"))
    assert (result["line_item"], result["quantity"], result["quantity_unit"]) == ("small", 1_200, "tokens")


def test_filters_leave_what_fits(boss: Person, bob: Person) -> None:
    run(boss)
    run(bob)
    for filters in ({"project_ids": bob.project.pk}, {"api_key_ids[]": [bob.api_key.pk, 0]}):
        (result,) = results(page(boss, USAGE, **filters, group_by="api_key_id"))
        assert (result["api_key_id"], result["num_model_requests"]) == (str(bob.api_key.pk), 1)
    assert results(page(boss, USAGE, models=["small", "large"]))[0]["num_model_requests"] == 2
    for nothing in ({"models": "large"}, {"project_ids": 10**17}, {"user_ids": "user-1"}, {"batch": "true"}):
        assert results(page(boss, USAGE, **nothing)) == []
    assert results(page(boss, COSTS, line_items="large")) == []


def test_days_without_usage_have_no_results(boss: Person) -> None:
    run(boss)
    found = page(boss, USAGE, start_time=TODAY_S - 2 * DAY_S + 5)
    assert [(each["start_time"], len(each["results"])) for each in found["data"]] == [
        (TODAY_S - 2 * DAY_S, 0),
        (TODAY_S - DAY_S, 0),
        (TODAY_S, 1),
    ]
    assert (found["has_more"], found["next_page"]) == (False, None)


# ---- pages


def test_pages_follow_each_other_without_gap_or_repetition(boss: Person) -> None:
    for days in range(10):
        at = datetime.fromtimestamp(TODAY_S - days * DAY_S, UTC)
        HourlyUsage.objects.create(
            hour=at, organization=boss.project.organization, project=boss.project, api_key=boss.api_key,
            model="small", outcome=Outcome.COMPLETED, requests=1,
        )  # fmt: skip
    starts, cursor = [], None
    while True:
        found = page(
            boss, USAGE, start_time=TODAY_S - 9 * DAY_S, limit=3, **({"page": cursor} if cursor else {})
        )
        starts += [bucket["start_time"] for bucket in found["data"]]
        cursor = found["next_page"]
        if not found["has_more"]:
            break
    assert starts == [TODAY_S - days * DAY_S for days in reversed(range(10))]


@pytest.mark.parametrize(
    ("path", "width", "usual"), [(USAGE, "1m", 60), (USAGE, "1h", 24), (USAGE, "1d", 7), (COSTS, "1d", 7)]
)  # fmt: skip
def test_a_page_has_the_usual_length(boss: Person, path: str, width: str, usual: int) -> None:
    found = page(boss, path, start_time=TODAY_S - 20 * DAY_S, bucket_width=width)
    assert (len(found["data"]), found["has_more"]) == (usual, True)


def test_minutes_with_too_many_entries_are_continued_on_the_next_page(
    boss: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "MAX_ENTRIES", 2)
    for _ in range(3):
        run(boss)
    start = int(LedgerEntry.objects.order_by("id")[0].created_at.timestamp()) - 120
    requests, cursor = 0, dict[str, str]()
    while True:
        found = page(boss, USAGE, start_time=start, bucket_width="1m", **cursor)
        requests += sum(each["num_model_requests"] for each in results(found))
        if not found["has_more"]:
            break
        cursor = {"page": found["next_page"]}
    assert requests == 3


def test_a_minute_has_begun_in_its_first_second() -> None:
    minute = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)
    request = RequestFactory().get(f"/?start_time={int(minute.timestamp()) - 60}&bucket_width=1m")
    asked = organization_query.parse(
        request, 1, organization_query.COMPLETIONS, minute + timedelta(milliseconds=1)
    )
    assert asked.query.end == asked.end == minute + timedelta(minutes=1)


def test_there_are_no_buckets_in_the_future(boss: Person) -> None:
    assert (
        page(boss, USAGE, start_time=TODAY_S, end_time=TODAY_S + 100 * DAY_S)["data"][-1]["end_time"]
        <= TODAY_S + 2 * DAY_S
    )
    assert page(boss, USAGE, start_time=TODAY_S + 50 * DAY_S)["data"] == []


# ---- permissions


def test_other_keys_are_refused_in_words(alice: Person) -> None:
    for path in (USAGE, COSTS):
        assert refused(alice, "start_time=0", path, 403) == (None, "permission_denied")
        assert refused(alice, "start_time=nonsense", path, 403) == (None, "permission_denied")


def test_a_stranger_sees_nothing_of_it(boss: Person, charlie: Person) -> None:
    APIKey.objects.filter(pk=charlie.api_key.pk).update(is_admin=True)
    run(boss)
    ours = {"project_ids": boss.project.pk, "api_key_ids": boss.api_key.pk}
    for path in (USAGE, COSTS):
        assert results(page(charlie, path)) == []
        assert results(page(charlie, path, **ours)) == []


def test_nobody_gets_in_without_a_key_or_by_another_method(boss: Person) -> None:
    client = Client()
    for path in (USAGE, COSTS):
        assert client.get(path).status_code == 401
        assert client.post(path).status_code == 405
        assert client.get(path, headers={"authorization": "Bearer ck_live_nothing"}).status_code == 401


def test_every_dialects_prefix_has_it(boss: Person) -> None:
    run(boss)
    query = f"start_time={TODAY_S}"
    assert {boss.get(f"/{dialect}{USAGE}?{query}").content for dialect in DIALECTS} == {
        boss.get(f"{USAGE}?{query}").content
    }


# ---- bad parameters


@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ("", "start_time", "missing_required_parameter"),
        ("start_time=", "start_time", "invalid_type"),
        ("start_time=1.5", "start_time", "invalid_type"),
        ("start_time=-1", "start_time", "invalid_type"),
        ("start_time=٧", "start_time", "invalid_type"),
        ("start_time=" + "9" * 5_000, "start_time", "invalid_type"),
        ("start_time=253402300800", "start_time", "invalid_value"),
        ("start_time=253402214399", "start_time", "invalid_value"),
        ("start_time=1&start_time=2", "start_time", "duplicate_parameter"),
        ("start_time[]=1", "start_time[]", "unknown_parameter"),
        ("start_time=100&end_time=100", "end_time", "invalid_value"),
        ("start_time=100&end_time=tomorrow", "end_time", "invalid_type"),
        ("start_time=0&bucket_width=1w", "bucket_width", "invalid_value"),
        ("start_time=0&limit=0", "limit", "invalid_value"),
        ("start_time=0&limit=32", "limit", "invalid_value"),
        ("start_time=0&limit=169&bucket_width=1h", "limit", "invalid_value"),
        ("start_time=0&limit=ten", "limit", "invalid_type"),
        ("start_time=0&group_by=line_item", "group_by", "invalid_value"),
        ("start_time=0&group_by[]=model,project_id", "group_by", "invalid_value"),
        ("start_time=0&project_ids=proj_1", "project_ids", "invalid_value"),
        ("start_time=0&api_key_ids[]=%00", "api_key_ids", "invalid_value"),
        ("start_time=0&models=%00", "models", "invalid_value"),
        ("start_time=0&batch=maybe", "batch", "invalid_value"),
        ("start_time=0&page=2", "page", "invalid_value"),
        ("start_time=0&page=page_1", "page", "invalid_value"),
        ("start_time=0&page=page_ffffffffff", "page", "invalid_value"),
        ("start_time=864000&page=page_0", "page", "invalid_value"),
        ("start_time=0&organization_id=2", "organization_id", "unknown_parameter"),
        ("start_time=0&" + "&".join(f"models={n}" for n in range(1_001)), None, "request_too_large"),
    ],
)
def test_a_bad_parameter_is_named(boss: Person, query: str, param: str | None, code: str) -> None:
    assert refused(boss, query) == (param, code)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("bucket_width=1h", "bucket_width"),
        ("limit=181", "limit"),
        ("group_by=model", "group_by"),
        ("models=a", "models"),
    ],
)
def test_costs_know_less(boss: Person, query: str, param: str) -> None:
    assert refused(boss, f"start_time=0&{query}", COSTS)[0] == param


# ---- /docs


def test_the_routes_are_documented_with_their_parameters(db: None) -> None:
    document = Client().get("/openapi.json").json()
    paths, schemas = document["paths"], document["components"]["schemas"]
    for path, dimension in ((USAGE, "model"), (COSTS, "line_item")):
        operation = paths[path]["get"]
        parameters = {each["name"]: each for each in operation["parameters"]}
        assert parameters["start_time"]["required"]
        assert dimension in parameters["group_by[]"]["schema"]["items"]["enum"]
        assert {"200", "400", "401", "403"} <= set(operation["responses"])
        shown = operation["responses"]["200"]["content"]["application/json"]["schema"]
        page = schemas[shown["$ref"].removeprefix("#/components/schemas/")]
        assert {"data", "has_more", "next_page", "object"} == set(page["properties"])
