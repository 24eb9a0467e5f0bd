"""Rate limits as rows: the valid ones, the callers that they limit, and the operator's pages."""

from typing import Any

import pytest
from django.db import IntegrityError
from django.test import Client
from django.urls import reverse

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts.limits import DAY_MS, MINUTE_MS, Counts, Limit, LimitNumber
from accounts.models import RateLimit
from chatapi.api.management.bodies import RateLimitBody
from chatapi.api.management.objects import ProjectRateLimit
from chatapi.models import ServedModel
from tests.cast import Person


def test_a_row_is_as_many_limits_as_it_has_numbers(alice: Person) -> None:
    row = RateLimit(
        api_key=alice.api_key,
        model="small",
        requests_per_minute=1,
        tokens_per_minute=2,
        requests_per_day=3,
        tokens_per_day=4,
        concurrent_requests=0,
    )
    key = ("key", alice.api_key.pk, "small")
    assert row.limits == [
        Limit(*key, Counts.REQUESTS, 1, MINUTE_MS),
        Limit(*key, Counts.TOKENS, 2, MINUTE_MS),
        Limit(*key, Counts.REQUESTS, 3, DAY_MS),
        Limit(*key, Counts.TOKENS, 4, DAY_MS),
        Limit(*key, Counts.RUNNING, 0),
    ]


def test_what_redis_can_not_count_is_the_most_that_it_can(alice: Person) -> None:
    (limit,) = RateLimit(project=alice.project, tokens_per_day=2**63 - 1).limits
    assert limit.most == 2**53


def test_an_empty_number_is_no_limit(alice: Person) -> None:
    assert RateLimit(project=alice.project).limits == []


def test_a_caller_has_the_limits_of_its_organization_project_and_key_only(
    alice: Person, bob: Person, charlie: Person
) -> None:
    for changes in (
        {"organization": alice.project.organization},
        {"organization": charlie.project.organization},
        {"project": alice.project, "model": "large"},
        {"project": bob.project},
        {"api_key": alice.api_key},
        {"api_key": bob.api_key},
    ):
        RateLimit.objects.create(requests_per_minute=9, **changes)
    found = {(limit.scope, limit.scope_id, limit.model) for limit in alice.caller.rate_limits}
    assert found == {
        ("organization", alice.project.organization_id, ""),
        ("project", alice.project.pk, "large"),
        ("key", alice.api_key.pk, ""),
    }


@pytest.mark.parametrize(
    "owners",
    [[], ["organization", "project"], ["project", "api_key"], ["organization", "project", "api_key"]],
)
def test_a_row_has_one_owner(alice: Person, owners: list[str]) -> None:
    every: dict[str, Any] = {
        "organization": alice.project.organization,
        "project": alice.project,
        "api_key": alice.api_key,
    }
    with pytest.raises(IntegrityError):
        RateLimit.objects.create(**{name: every[name] for name in owners})


@pytest.mark.parametrize("model", ["", "small"])
def test_an_owner_has_one_row_for_a_model(alice: Person, bob: Person, model: str) -> None:
    RateLimit.objects.create(api_key=alice.api_key, model=model)
    RateLimit.objects.create(api_key=bob.api_key, model=model)
    RateLimit.objects.create(api_key=alice.api_key, model="other")
    with pytest.raises(IntegrityError):
        RateLimit.objects.create(api_key=alice.api_key, model=model)


LIST, ADD = reverse("admin:accounts_ratelimit_changelist"), reverse("admin:accounts_ratelimit_add")


def test_an_operator_sets_limits(root: Client, alice: Person, small: ServedModel) -> None:
    owner = str(alice.project.organization_id)
    assert root.post(ADD, {"organization": owner, "requests_per_minute": "60"}).status_code == 302
    assert (
        root.post(
            ADD, {"project": alice.project.pk, "model": "small", "tokens_per_day": "5000000000"}
        ).status_code
        == 302
    )
    assert {(limit.scope, limit.model, limit.counts, limit.most) for limit in alice.caller.rate_limits} == {
        ("project", "small", Counts.TOKENS, 5_000_000_000),
        ("organization", "", Counts.REQUESTS, 60),
    }
    RateLimit.objects.create(api_key=alice.api_key, requests_per_day=1)
    shown = root.get(LIST).content.decode()
    assert all(name in shown for name in ("Acme / default<", f"Acme / default / {alice.api_key}<"))


def test_a_limit_with_two_owners_is_refused_in_words(root: Client, alice: Person) -> None:
    for owners in ({}, {"organization": alice.project.organization_id, "project": alice.project.pk}):
        page = root.post(ADD, owners | {"requests_per_minute": "60"})
        assert (
            page.status_code,
            b"Choose one: an organization, a project or an API key." in page.content,
        ) == (200, True)
    assert not RateLimit.objects.exists()


def test_a_limit_for_an_unknown_model_is_refused_in_words(
    root: Client, alice: Person, small: ServedModel
) -> None:
    """A limit for an unknown model would limit nothing and look as if it did."""
    page = root.post(ADD, {"api_key": alice.api_key.pk, "model": "smal", "requests_per_minute": "60"})
    assert (page.status_code, b"smal is not one of the available choices" in page.content) == (200, True)
    assert not RateLimit.objects.exists()


def test_a_limit_of_a_model_that_is_gone_can_still_be_changed(root: Client, alice: Person) -> None:
    row = RateLimit.objects.create(api_key=alice.api_key, model="gone", requests_per_minute=60)
    address = reverse("admin:accounts_ratelimit_change", args=[row.pk])
    assert b"gone (not in the catalog)" in root.get(address).content
    assert (
        root.post(
            address, {"api_key": alice.api_key.pk, "model": "gone", "requests_per_minute": "6"}
        ).status_code
        == 302
    )
    row.refresh_from_db()
    assert (row.model, row.requests_per_minute) == ("gone", 6)


def test_a_second_row_for_a_model_is_refused_in_words(
    root: Client, alice: Person, small: ServedModel
) -> None:
    RateLimit.objects.create(api_key=alice.api_key, model="small")
    page = root.post(ADD, {"api_key": alice.api_key.pk, "model": "small", "requests_per_minute": "60"})
    assert (page.status_code, b"already exists" in page.content) == (200, True)


@pytest.mark.parametrize("number", ["-1", "1.5", "many", "9" * 30])
def test_an_invalid_limit_is_refused_in_words(root: Client, alice: Person, number: str) -> None:
    assert root.post(ADD, {"api_key": alice.api_key.pk, "tokens_per_day": number}).status_code == 200
    assert not RateLimit.objects.exists()


def test_the_api_knows_each_number_of_a_rate_limit() -> None:
    members = {number.api_member for number in RateLimit.NUMBERS.values()}
    assert set(RateLimitBody.__struct_fields__) == members
    assert set(ProjectRateLimit.__struct_fields__) == members | {"object", "id", "model"}


def test_a_window_without_a_word_is_not_taken_for_a_minute() -> None:
    odd_ms = 7 * MINUTE_MS
    assert str(Limit("key", 1, "", Counts.TOKENS, 9, odd_ms)) == "9 tokens per 420000 ms for this API key"
    number = LimitNumber(Counts.TOKENS, odd_ms, "max_tokens_per_7_minutes", "--tokens-per-7-minutes")
    with pytest.raises(KeyError, match=str(odd_ms)):
        number.measure  # noqa: B018
