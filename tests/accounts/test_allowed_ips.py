"""The lists of IP addresses from which keys may be used: their form, and what they allow."""

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from pytest_django.fixtures import DjangoAssertNumQueries, Settings

from accounts import allowed_ips, api_keys, keys
from accounts.authentication import Caller, CallerCache, look_up
from accounts.errors import IPNotAllowed
from accounts.models import APIKey
from tests.cast import Person

HERE, ELSEWHERE = "203.0.113.7", "198.51.100.1"


def allow(person: Person, *listed: str) -> None:
    APIKey.objects.filter(pk=person.api_key.pk).update(allowed_ips=list(listed))


def ask(person: Person, ip: str, path: str = "/v1/key", **headers: str) -> Any:
    headers = {"authorization": f"Bearer {person.key}", **headers}
    return Client(REMOTE_ADDR=ip).get(path, headers=headers)


# ---- the list


@pytest.mark.parametrize(
    ("entered", "stored"),
    [
        ("203.0.113.7", ["203.0.113.7"]),
        ("203.0.113.7/32", ["203.0.113.7"]),
        ("198.51.100.0/24", ["198.51.100.0/24"]),
        ("198.51.100.0/255.255.255.0", ["198.51.100.0/24"]),
        ("2001:DB8:0:0::1", ["2001:db8::1"]),
        ("2001:db8::/32", ["2001:db8::/32"]),
        ("::ffff:203.0.113.7", ["203.0.113.7"]),
        ("::ffff:198.51.100.0/120", ["198.51.100.0/24"]),
        ("0.0.0.0/0 ::/0", ["0.0.0.0/0", "::/0"]),
        ("10.0.0.0/8", ["10.0.0.0/8"]),
        (" 10.0.0.1,\r\n\r\n10.0.0.2 10.0.0.1/32\n", ["10.0.0.1", "10.0.0.2"]),
        (" \n", []),
    ],
)
def test_a_list_is_stored_normalized(alice: Person, entered: str, stored: list[str]) -> None:
    row, secret = keys.create_key(alice.project, allowed_ips=allowed_ips.entries(entered))
    row.refresh_from_db()
    assert row.allowed_ips == stored
    assert look_up(secret).allowed_ips == allowed_ips.networks(stored)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("office", "'office' is neither an IP address nor a network such as 203.0.113.0/24."),
        ("203.0.113.256", "'203.0.113.256' is neither"),
        ("203.0.113.7/33", "'203.0.113.7/33' is neither"),
        ("203.0.113.07", "'203.0.113.07' is neither"),
        ("203.0.113.7:443", "'203.0.113.7:443' is neither"),
        ("\x00" * 99, "' is neither"),
        ("", "'' is neither"),
        ("10.1.2.3/8", "Write 10.0.0.0/8 for the network, or 10.1.2.3 for the address."),
        ("2001:db8::1/64", "Write 2001:db8::/64 for the network, or 2001:db8::1 for the address."),
        ("fe80::1%eth0", "'fe80::1%eth0' has a zone"),
    ],
)
def test_a_wrong_entry_is_named(alice: Person, entry: str, words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        keys.create_key(alice.project, allowed_ips=[HERE, entry])
    assert list(refused.value.message_dict) == ["allowed_ips"]
    assert words in refused.value.messages[0]


@pytest.mark.parametrize(
    "wrong", ["203.0.113.7", {"a": 1}, [7], [None], None, [f"10.0.0.{n}" for n in range(33)]]
)
def test_what_is_no_short_list_of_texts_is_refused(alice: Person, wrong: Any) -> None:
    with pytest.raises(ValidationError, match=r"list|32"):
        keys.create_key(alice.project, allowed_ips=wrong)


def test_a_rotation_keeps_the_list(alice: Person) -> None:
    allow(alice, "10.0.0.0/8")
    secret = keys.rotate(APIKey.objects.get(pk=alice.api_key.pk), None)
    assert [str(each) for each in look_up(secret).allowed_ips] == ["10.0.0.0/8"]


# ---- what it allows


@pytest.mark.parametrize(
    ("listed", "ip", "is_allowed"),
    [
        ([], ELSEWHERE, True),
        ([], "", True),
        ([HERE], HERE, True),
        ([HERE], f"::ffff:{HERE}", True),
        ([HERE], ELSEWHERE, False),
        (["203.0.113.0/24", "2001:db8::/32"], HERE, True),
        (["203.0.113.0/24", "2001:db8::/32"], "2001:db8:1::9", True),
        (["203.0.113.0/24", "2001:db8::/32"], "2001:db9::9", False),
        (["2001:db8::1"], "2001:0db8:0::1", True),
        (["0.0.0.0/0"], ELSEWHERE, True),
        (["0.0.0.0/0"], "2001:db8::1", False),
        (["::/0"], "2001:db8::1", True),
        (["::/0"], f"::ffff:{HERE}", False),
        # The client of a UNIX socket, and texts that are no address.
        (["0.0.0.0/0", "::/0"], "", False),
        (["0.0.0.0/0", "::/0"], "unknown", False),
    ],
)
def test_a_key_is_for_the_listed_addresses(listed: list[str], ip: str, is_allowed: bool) -> None:
    caller = Caller(1, 1, 1, False, False, "", "UTC", allowed_ips=allowed_ips.networks(listed))
    if is_allowed:
        caller.require_ip(ip)
    else:
        with pytest.raises(IPNotAllowed):
            caller.require_ip(ip)


@pytest.mark.parametrize(
    ("network", "is_covered"),
    [
        ("10.1.0.0/16", True),
        ("10.1.2.3", True),
        ("10.0.0.0/7", False),
        ("2001:db8::/48", True),
        ("::/0", False),
        ("0.0.0.0/0", False),
    ],
)
def test_a_network_is_covered_by_a_larger_one(network: str, is_covered: bool) -> None:
    own = allowed_ips.networks(["10.0.0.0/8", "2001:db8::/32"])
    assert allowed_ips.covers(own, *allowed_ips.networks([network])) is is_covered


def test_the_list_costs_no_query(alice: Person, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    allow(alice, HERE)
    with django_assert_num_queries(1):
        look_up(alice.key)


async def test_a_change_holds_when_the_cached_caller_is_too_old() -> None:
    """The cached caller has the parsed list; the check itself is made at each request."""
    key = api_keys.generate(is_test=False)
    lists = [[HERE], [ELSEWHERE]]

    async def look_up_again(_: str) -> Caller:
        return Caller(1, 1, 1, False, False, "", "UTC", allowed_ips=allowed_ips.networks(lists.pop(0)))

    cache = CallerCache(max_age_ms=60_000)
    for _ in range(2):
        (await cache.authenticate(key, look_up_again)).require_ip(HERE)
    assert len(lists) == 1
    stale = CallerCache(max_age_ms=0)
    with pytest.raises(IPNotAllowed):
        (await stale.authenticate(key, look_up_again)).require_ip(HERE)


# ---- Django's routes


def test_a_request_from_elsewhere_is_told_its_address(alice: Person) -> None:
    allow(alice, HERE)
    assert ask(alice, HERE).status_code == 200
    assert ask(alice, HERE).json()["allowed_ips"] == [HERE]
    refused = ask(alice, ELSEWHERE)
    assert (refused.status_code, refused["www-authenticate"]) == (401, "Bearer")
    error = refused.json()["error"]
    assert (error["type"], error["code"], error["param"]) == (
        "invalid_request_error", "ip_not_authorized", None,
    )  # fmt: skip
    assert f"your IP address, {ELSEWHERE}." in error["message"]
    assert HERE not in refused.content.decode()


def test_anthropics_clients_get_their_error(alice: Person) -> None:
    allow(alice, HERE)
    refused = ask(alice, ELSEWHERE, "/v1/models", **{"anthropic-version": "2023-06-01"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
    assert "www-authenticate" not in refused.headers
    assert ELSEWHERE in refused.json()["error"]["message"]


def test_a_client_without_an_address_is_refused(alice: Person) -> None:
    allow(alice, "0.0.0.0/0", "::/0")
    refused = ask(alice, "")
    assert refused.json()["error"]["code"] == "ip_not_authorized"
    assert "does not know yours" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("forwarded_for", "status"),
    [
        (HERE, 200),
        (f"::ffff:{HERE}", 200),
        (ELSEWHERE, 401),
        # The client has written the first entry, and the proxy the second one.
        (f"{HERE}, {ELSEWHERE}", 401),
        (f"{ELSEWHERE}, {HERE}", 200),
        ("unknown", 401),
    ],
)
def test_a_trusted_proxy_names_the_address(
    alice: Person, settings: Settings, forwarded_for: str, status: int
) -> None:
    settings.TRUSTED_PROXIES = ["10.0.0.0/8"]
    allow(alice, HERE)
    assert ask(alice, "10.0.0.1", **{"x-forwarded-for": forwarded_for}).status_code == status
    assert ask(alice, ELSEWHERE, **{"x-forwarded-for": HERE}).status_code == 401


def test_it_is_no_wrong_key(alice: Person, settings: Settings) -> None:
    settings.FAILED_AUTHENTICATIONS_PER_MINUTE = 3
    allow(alice, HERE)
    ip = "198.51.100.77"
    assert [ask(alice, ip).json()["error"]["code"] for _ in range(5)] == ["ip_not_authorized"] * 5
    unknown = {"authorization": f"Bearer {api_keys.generate(is_test=False)}"}
    assert Client(REMOTE_ADDR=ip).get("/v1/key", headers=unknown).status_code == 401


def test_a_revoked_key_says_nothing_of_its_list(alice: Person) -> None:
    allow(alice, HERE)
    keys.revoke(APIKey.objects.filter(pk=alice.api_key.pk))
    assert ask(alice, ELSEWHERE).json()["error"]["code"] == "invalid_api_key"
