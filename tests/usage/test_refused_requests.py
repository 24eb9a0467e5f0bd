"""Refused requests are counted by key, status, code and hour; nothing is lost while the database is away, and
memory stays bounded.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse

from accounts.errors import IPNotAllowed, KeyMissing, KeyRefusal, NotAuthenticated, TooManyFailedAttempts
from tests.admin_pages import client_of, text
from tests.cast import Person
from usage.database.clock import database_now, hour_of
from usage.database.group_commit import GroupCommit
from usage.errors import DatabaseUnavailable
from usage.models import RefusedKeys, RefusedRequests
from usage.rollups import refused_requests
from usage.rollups.refused_requests import KEPT, NO_KEY, OTHER, Refusal, RefusedRequestCounter


class Door:
    """Takes the place of `GroupCommit`: runs each operation at once, or is away."""

    is_away = False

    async def write(self, operation: Any, item: Any) -> None:
        if self.is_away:
            raise DatabaseUnavailable("away")
        self.written: Sequence[Any] = [*getattr(self, "written", ()), item]


def rows() -> list[tuple[int, int, str, int]]:
    return list(
        RefusedRequests.objects.order_by("id").values_list("api_key_id", "status", "code", "requests")
    )


def refuse(alice: Person, charlie: Person) -> None:
    """Count refused requests of a key of each organization."""
    counts = {
        Refusal(alice.api_key.pk, 429, "of_acme"): 3,
        Refusal(charlie.api_key.pk, 402, "of_umbrella"): 4,
    }
    refused_requests.add(database_now(), [counts])


def test_counts_of_an_hour_add_up_in_one_row(alice: Person, bob: Person) -> None:
    now = database_now()
    late, early = (
        Refusal(alice.api_key.pk, 429, "rate_limit_exceeded"),
        Refusal(bob.api_key.pk, 402, "insufficient_quota"),
    )
    refused_requests.add(now, [{late: 2, early: 1}, {late: 3}])
    refused_requests.add(now, [{late: 5}])
    assert rows() == [(*late, 10), (*early, 1)]
    row = RefusedRequests.objects.get(code="rate_limit_exceeded")
    assert (row.organization_id, row.project_id, row.hour) == (
        alice.project.organization_id,
        alice.project.pk,
        hour_of(now),
    )
    refused_requests.add(now + timedelta(hours=1), [{late: 1}])
    assert [row[-1] for row in rows()] == [10, 1, 1]


def test_a_key_that_does_not_exist_any_more_stops_no_other(alice: Person) -> None:
    refused_requests.add(
        database_now(),
        [{Refusal(999_999_999, 429, "rate_limit_exceeded"): 7, Refusal(alice.api_key.pk, 400, "x"): 1}],
    )
    assert rows() == [(alice.api_key.pk, 400, "x", 1)]


def test_counts_of_long_ago_are_deleted(alice: Person) -> None:
    now = database_now()
    for age in (KEPT + timedelta(hours=1), KEPT - timedelta(hours=1)):
        refused_requests.add(now - age, [{Refusal(alice.api_key.pk, 400, "x"): 1}])
    refused_requests.forget_old(now, [None])
    assert [row.hour for row in RefusedRequests.objects.all()] == [hour_of(now - KEPT + timedelta(hours=1))]


# ---- without a valid key


def refuse_keys(*errors: NotAuthenticated | TooManyFailedAttempts | IPNotAllowed) -> None:
    """Count these errors and write the counts."""
    counter = RefusedRequestCounter()
    for error in errors:
        counter.count_key_refusal(error)
    refused_requests.add(database_now(), [counter._counts])


def reasons() -> dict[str, int]:
    return {reason: times for reason, times in refused_requests.key_refusal_totals().items() if times}


def test_requests_without_a_valid_key_are_counted_by_reason_and_day(alice: Person) -> None:
    refuse_keys(KeyMissing(), NotAuthenticated(), NotAuthenticated(), TooManyFailedAttempts(1_000))
    refuse_keys(KeyMissing(), NotAuthenticated(KeyRefusal.REVOKED, alice.api_key.pk))
    today = database_now().date()
    assert refused_requests.key_refusals(today) == [
        (today, "no_key", 2),
        (today, "unknown_key", 2),
        (today, "revoked_key", 1),
        (today, "too_many_wrong_keys", 1),
    ]
    assert rows() == [(alice.api_key.pk, 401, "revoked_key", 1)], "only a right secret names its key"


def test_a_request_from_an_address_that_is_not_allowed_is_its_keys(alice: Person) -> None:
    refuse_keys(IPNotAllowed(alice.api_key.pk, "198.51.100.1"), IPNotAllowed(alice.api_key.pk, ""))
    assert reasons() == {"ip_not_authorized": 2}
    assert rows() == [(alice.api_key.pk, 401, "ip_not_authorized", 2)]
    last = refused_requests.of_key(alice.api_key.pk, database_now()).last_invalid
    assert last is not None
    assert (last.code, last.requests) == ("ip_not_authorized", 2)


def test_strangers_do_not_fill_the_tables_or_memory() -> None:
    counter = RefusedRequestCounter(max_entries=2)
    for number in range(1_000):
        counter.count(Refusal(number + 1, 400, "a"))
        counter.count_key_refusal(NotAuthenticated())
        counter.count_key_refusal(KeyMissing())
    assert counter._counts[Refusal(NO_KEY, 401, "unknown_key")] == 1_000
    assert counter._counts[Refusal(NO_KEY, 401, "no_key")] == 1_000
    assert len(counter._counts) <= 6


@pytest.mark.django_db
def test_the_days_of_reasons_are_kept(alice: Person) -> None:
    refuse_keys(NotAuthenticated())
    RefusedKeys.objects.update(day=database_now().date() - timedelta(days=400))
    refused_requests.forget_old(database_now(), [None])
    refuse_keys(NotAuthenticated())
    assert reasons() == {"unknown_key": 2}, "a counter for Prometheus never falls"


def test_a_keys_people_see_when_and_why_it_was_refused_last(alice: Person, bob: Person) -> None:
    refused_requests.add(
        database_now() - timedelta(days=3), [{Refusal(alice.api_key.pk, 401, "expired_key"): 4}]
    )
    refused_requests.add(database_now(), [{Refusal(alice.api_key.pk, 429, "rate_limit_exceeded"): 1}])
    hour = hour_of(database_now() - timedelta(days=3))
    key = alice.api_key.pk
    in_console = text(client_of(alice.user).get(f"/console/{alice.project.organization_id}/keys/{key}"))
    assert f"Last refused 4 requests in the hour from {hour:%Y-%m-%d %H:%M} UTC: expired key" in in_console
    in_admin = text(client_of(alice.user).get(reverse("admin:accounts_apikey_change", args=[key])))
    assert f"Last refused in the hour from {hour:%Y-%m-%d %H:%M} UTC: expired key, 4 requests." in in_admin
    other = text(client_of(alice.user).get(f"/console/{alice.project.organization_id}/keys/{bob.api_key.pk}"))
    assert "Last refused" not in other


def test_operators_see_the_reasons_by_day_and_others_do_not(admin_client: Any, alice: Person) -> None:
    refuse_keys(KeyMissing(), NotAuthenticated(), NotAuthenticated())
    page = reverse("admin:usage_refusedrequests_changelist")
    shown = text(admin_client.get(page))
    assert f"{database_now():%Y-%m-%d} unknown key 2" in shown
    assert f"{database_now():%Y-%m-%d} no key 1" in shown
    assert "without a valid key" not in text(client_of(alice.user).get(page))


def test_a_keys_last_day_is_summed_by_code(alice: Person) -> None:
    now = database_now()
    for hours_ago, code, requests in [(0, "b", 1), (23, "b", 2), (5, "a", 2), (24, "a", 100)]:
        refused_requests.add(
            now - timedelta(hours=hours_ago), [{Refusal(alice.api_key.pk, 400, code): requests}]
        )
    assert refused_requests.of_key(alice.api_key.pk, now).by_code == [(400, "b", 3), (400, "a", 2)]


async def test_while_the_database_is_away_counts_are_kept() -> None:
    door: Any = Door()
    counter = RefusedRequestCounter()
    counter.count(Refusal(1, 429, "a"))
    door.is_away = True
    await counter.write(door)
    counter.count(Refusal(1, 429, "a"))
    door.is_away = False
    await counter.write(door)
    await counter.write(door)
    assert door.written == [{Refusal(1, 429, "a"): 2}]


async def test_memory_is_bounded_and_further_refusals_are_counted_together() -> None:
    door: Any = Door()
    counter = RefusedRequestCounter(max_entries=2)
    for code in "abcd":
        counter.count(Refusal(1, 400, code))
    counter.count(Refusal(1, 400, "a"))
    for api_key_id in range(2, 100):
        counter.count(Refusal(api_key_id, 400, "a"))
    await counter.write(door)
    (written,) = door.written
    assert written[Refusal(1, 400, "a")] == 2
    assert written[Refusal(1, 0, OTHER)] == 2
    assert len(written) == 4


@pytest.mark.django_db(transaction=True)
async def test_a_process_that_ends_writes_its_counts() -> None:
    door: Any = Door()
    counter = RefusedRequestCounter()
    counter.count(Refusal(1, 429, "a"))
    writing = asyncio.create_task(counter.write_forever(door))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])
    assert door.written == [{Refusal(1, 429, "a"): 1}]


@pytest.mark.django_db(transaction=True)
def test_the_counter_writes_through_the_one_door(alice: Person) -> None:
    async def count_and_write() -> None:
        commits = GroupCommit()
        try:
            counter = RefusedRequestCounter()
            counter.count(Refusal(alice.api_key.pk, 429, "a"), 3)
            await counter.write(commits)
        finally:
            await commits.close()

    asyncio.run(count_and_write())
    assert rows() == [(alice.api_key.pk, 429, "a", 3)]


def test_people_see_their_organizations_refusals_only(alice: Person, charlie: Person) -> None:
    refused_requests.add(
        database_now(),
        [{Refusal(alice.api_key.pk, 429, "of_acme"): 3, Refusal(charlie.api_key.pk, 402, "of_umbrella"): 4}],
    )
    page = reverse("admin:usage_refusedrequests_changelist")
    shown = client_of(alice.user).get(page).content.decode()
    assert "of_acme" in shown
    assert "of_umbrella" not in shown
    assert (
        client_of(alice.user).get(page, {"code": "of_umbrella"}).content.decode().count("of_umbrella</td>")
        == 0
    )
    of_key = (
        client_of(alice.user)
        .get(reverse("admin:accounts_apikey_change", args=[alice.api_key.pk]))
        .content.decode()
    )
    assert "Refused in the last 24 hours" in of_key
    assert "of_acme" in of_key


def test_an_operator_filters_by_organization_project_key_and_code(
    admin_client: Any, alice: Person, charlie: Person
) -> None:
    refused_requests.add(
        database_now(),
        [{Refusal(alice.api_key.pk, 429, "of_acme"): 3, Refusal(charlie.api_key.pk, 402, "of_umbrella"): 4}],
    )
    page = reverse("admin:usage_refusedrequests_changelist")
    filters = [
        {"organization__name__exact": "Acme"},
        {"project__id__exact": alice.project.pk},
        {"api_key__id__exact": alice.api_key.pk},
        {"api_key__name__exact": alice.api_key.name},
        {"code": "of_acme"},
        {"q": alice.api_key.public},
    ]
    for query in filters:
        listed = admin_client.get(page, query).context["cl"].result_list
        assert [row.code for row in listed] == ["of_acme"], query
