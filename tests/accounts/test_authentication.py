"""From a header to a caller: which keys are accepted, and the cost of the look-up."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from accounts import keys
from accounts.authentication import (
    KEY_HEADERS,
    Caller,
    CallerCache,
    look_up,
    look_up_all,
    look_up_id,
    sent_key,
)
from accounts.errors import KeyMissing, KeyRefusal, NotAuthenticated, TwoKeys
from accounts.models import APIKey, RateLimit
from tests.cast import Person

UNKNOWN = "ck_live_4fGh0123wxYZ_0123456789ABCDEFGHIJKLMNOPQRSTUV0LDXQK"


def test_a_valid_key_stands_for_its_project_and_organization(alice: Person) -> None:
    caller = look_up(alice.key)
    assert caller == Caller(
        alice.api_key.pk,
        alice.project.pk,
        alice.project.organization_id,
        False,
        False,
        "",
        "UTC",
        key_name=str(alice.api_key),
    )
    assert caller.is_authenticated


def test_all_keys_together_cost_one_query(
    alice: Person, bob: Person, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    """Their limits, if there are any, cost another."""
    with django_assert_num_queries(1):
        assert look_up_all([alice.key, bob.key]).keys() == {alice.key, bob.key}
    RateLimit.objects.create(api_key=alice.api_key, requests_per_minute=1)
    RateLimit.objects.create(project=bob.project, requests_per_minute=2)
    with django_assert_num_queries(2):
        found = look_up_all([alice.key, bob.key, UNKNOWN])
    callers = {key: row for key, row in found.items() if isinstance(row, Caller)}
    assert {key: [limit.most for limit in row.rate_limits] for key, row in callers.items()} == {
        alice.key: [1],
        bob.key: [2],
    }


@pytest.mark.parametrize(
    "key",
    [
        "",
        "ck_live_x",
        "sk-proj-0123",
        UNKNOWN[:-1] + "!",
        "' OR 1=1 --",
        "%s{0}${jndi:x}",
        "\x00",
        "é" * 9_000,
    ],
)
def test_a_malformed_key_costs_no_query(
    db: None, key: str, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_num_queries(0), pytest.raises(NotAuthenticated):
        look_up(key)


def test_an_unknown_key_is_refused(alice: Person) -> None:
    with pytest.raises(NotAuthenticated):
        look_up(UNKNOWN)


def test_a_right_public_part_with_another_secret_is_refused(alice: Person) -> None:
    APIKey.objects.filter(pk=alice.api_key.pk).update(public=UNKNOWN.split("_")[2])
    with pytest.raises(NotAuthenticated):
        look_up(UNKNOWN)


def test_a_revoked_key_is_refused(alice: Person) -> None:
    assert keys.revoke(APIKey.objects.filter(pk=alice.api_key.pk)) == 1
    with pytest.raises(NotAuthenticated):
        look_up(alice.key)


def test_a_key_is_revoked_once(alice: Person) -> None:
    rows = APIKey.objects.filter(pk=alice.api_key.pk)
    keys.revoke(rows)
    assert keys.revoke(rows) == 0


def test_an_expired_key_is_refused_and_one_that_will_expire_is_not(alice: Person) -> None:
    alice.api_key.expires_at = timezone.now() + timedelta(hours=1)
    alice.api_key.save()
    assert look_up(alice.key)
    alice.api_key.expires_at = timezone.now() - timedelta(seconds=1)
    alice.api_key.save()
    with pytest.raises(NotAuthenticated):
        look_up(alice.key)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has the clock of its process")
def test_a_process_whose_clock_is_behind_refuses_a_key_that_has_expired(
    alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers compare with the database's clock: they would stop the request, which is charged."""
    now = timezone.now()
    APIKey.objects.update(expires_at=now - timedelta(minutes=30))
    monkeypatch.setattr(timezone, "now", lambda: now - timedelta(hours=1))
    with pytest.raises(NotAuthenticated) as refused:
        look_up(alice.key)
    assert refused.value.reason == KeyRefusal.EXPIRED


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"revoked_at": timezone.now()}, KeyRefusal.REVOKED),
        ({"expires_at": timezone.now() - timedelta(days=1)}, KeyRefusal.EXPIRED),
        ({"is_active": False}, KeyRefusal.DISABLED),
        ({"project": False}, KeyRefusal.ARCHIVED_PROJECT),
        ({"organization": False}, KeyRefusal.INACTIVE_ORGANIZATION),
        ({"revoked_at": timezone.now(), "is_active": False}, KeyRefusal.REVOKED),
    ],
)
def test_a_refusal_has_its_reason_and_the_key_if_its_secret_is_right(
    alice: Person, changes: dict[str, Any], reason: str, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for name in changes.keys() & {"project", "organization"}:
        owner = alice.project if name == "project" else alice.project.organization
        owner.is_active = changes.pop(name)
        owner.save()
    APIKey.objects.filter(pk=alice.api_key.pk).update(**changes)
    with django_assert_num_queries(1), pytest.raises(NotAuthenticated) as refused:
        look_up(alice.key)
    assert (refused.value.reason, refused.value.api_key_id) == (reason, alice.api_key.pk)
    with pytest.raises(NotAuthenticated) as refused:
        look_up_id(alice.api_key.pk)
    assert refused.value.reason == reason


def test_strangers_learn_about_no_key(alice: Person) -> None:
    keys.revoke(APIKey.objects.all())
    APIKey.objects.filter(pk=alice.api_key.pk).update(public=UNKNOWN.split("_")[2])
    for key, reason in ((UNKNOWN, KeyRefusal.UNKNOWN), ("sk-proj-0123", KeyRefusal.MALFORMED)):
        with pytest.raises(NotAuthenticated) as refused:
            look_up(key)
        assert (refused.value.reason, refused.value.api_key_id) == (reason, None)


def test_an_ended_secret_is_the_reason(alice: Person) -> None:
    keys.rotate(alice.api_key, timezone.now() + timedelta(hours=1))
    assert look_up(alice.key)
    APIKey.objects.update(previous_expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(NotAuthenticated) as refused:
        look_up(alice.key)
    assert (refused.value.reason, refused.value.api_key_id) == (KeyRefusal.ROTATED, alice.api_key.pk)


@pytest.mark.parametrize("whose", ["project", "organization"])
def test_the_keys_of_an_inactive_owner_are_refused(alice: Person, whose: str) -> None:
    owner = alice.project if whose == "project" else alice.project.organization
    owner.is_active = False
    owner.save()
    with pytest.raises(NotAuthenticated):
        look_up(alice.key)


@pytest.mark.parametrize(
    "header", ["Bearer abc", "bearer abc", "BEARER  abc ", " Bearer\tabc".replace("\t", " ")]
)
def test_the_scheme_may_be_written_in_any_case(header: str) -> None:
    assert sent_key(KEY_HEADERS, {"Authorization": header}.get) == "abc"


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic YTpi", "abc", "Token abc"])
def test_what_is_no_bearer_token_is_refused(header: str | None) -> None:
    with pytest.raises(NotAuthenticated):
        sent_key(KEY_HEADERS, {"Authorization": header}.get)


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Basic YTpi", "Bearer abc"])
def test_the_key_may_come_in_its_own_header(authorization: str | None) -> None:
    assert sent_key(KEY_HEADERS, {"Authorization": authorization, "x-api-key": " abc "}.get) == "abc"


@pytest.mark.parametrize("other", ["ABC", "abcd", "é"])
def test_two_different_keys_are_ambiguous(other: str) -> None:
    with pytest.raises(TwoKeys) as refused:
        sent_key(KEY_HEADERS, {"Authorization": "Bearer abc", "x-api-key": other}.get)
    assert (refused.value.first_header, refused.value.second_header) == ("Authorization", "x-api-key")


def test_any_headers_may_hold_the_key() -> None:
    headers = {"a": "", "b": "Token", "c": ""}
    assert sent_key(headers, {"b": "token abc", "c": "abc"}.get) == "abc"
    with pytest.raises(TwoKeys) as refused:
        sent_key(headers, {"a": "abc", "b": "Token abc", "c": "other"}.get)
    assert (refused.value.first_header, refused.value.second_header) == ("a", "c")
    with pytest.raises(KeyMissing):
        sent_key(headers, {"b": "Bearer abc", "Authorization": "Bearer abc", "x-api-key": "abc"}.get)


class Database:
    """Answers every question with the same caller, and counts the questions."""

    def __init__(self) -> None:
        self.questions: list[str] = []
        self.caller = Caller(1, 1, 1, False, False, "", "UTC")

    async def ask(self, key: str) -> Caller:
        """Return the caller of the key."""
        self.questions.append(key)
        return self.caller


async def refuse(key: str) -> Caller:
    """Refuse every key."""
    raise NotAuthenticated(key)


async def test_a_known_caller_is_remembered_for_a_while() -> None:
    cache, database = CallerCache(max_age_ms=60_000), Database()
    for _ in range(3):
        assert await cache.authenticate(UNKNOWN, database.ask) == database.caller
    assert database.questions == [UNKNOWN]


async def test_an_old_memory_is_not_used() -> None:
    cache, database = CallerCache(max_age_ms=0), Database()
    for _ in range(2):
        await cache.authenticate(UNKNOWN, database.ask)
    assert len(database.questions) == 2


async def test_a_refusal_is_not_remembered() -> None:
    cache, database = CallerCache(max_age_ms=60_000), Database()
    with pytest.raises(NotAuthenticated):
        await cache.authenticate(UNKNOWN, refuse)
    assert await cache.authenticate(UNKNOWN, database.ask) == database.caller


async def test_a_malformed_key_asks_nobody() -> None:
    cache, database = CallerCache(max_age_ms=60_000), Database()
    with pytest.raises(NotAuthenticated):
        await cache.authenticate("ck_live_nonsense", database.ask)
    assert database.questions == []
