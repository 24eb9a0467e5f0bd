"""Wrong keys are counted by address and then refused without a query; a key that was right still passes."""

from collections.abc import Awaitable, Callable
from uuid import uuid4

import pytest
from django.test import Client
from pytest_django.fixtures import DjangoAssertNumQueries, Settings
from redis.asyncio import Redis
from redis.exceptions import RedisError

from accounts import api_keys, failed_attempts, keys
from accounts.errors import NotAuthenticated, TooManyFailedAttempts
from accounts.failed_attempts import FailedAttempts
from accounts.models import APIKey
from chatapi.redis_client import connect
from tests.cast import Person

MOST = 5
HERE, ELSEWHERE = "203.0.113.5", "203.0.113.6"


@pytest.fixture
def attempts() -> FailedAttempts:
    """Return the attempts of one process, which permit five failures a minute."""
    return FailedAttempts(lambda: MOST)


@pytest.fixture
def address(settings: Settings) -> str:
    """Return an unused IP; five wrong keys may come from it."""
    settings.FAILED_AUTHENTICATIONS_PER_MINUTE = MOST
    return f"2001:db8:{uuid4().hex[:4]}:{uuid4().hex[:4]}::1"


def fail(attempts: FailedAttempts, address: str = HERE, times: int = 1) -> None:
    """Look up wrong keys."""
    for _ in range(times):
        with (
            pytest.raises(NotAuthenticated),
            attempts.counted(address),
            attempts.permitted(address, uuid4().hex),
        ):
            raise NotAuthenticated("unknown")


def refused(attempts: FailedAttempts, key: str = "", address: str = HERE) -> bool:
    """Return whether the key is refused without being looked up."""
    try:
        with attempts.permitted(address, key or uuid4().hex):
            return False
    except TooManyFailedAttempts:
        return True


# ---- one process


def test_beyond_the_most_nobody_is_looked_up(attempts: FailedAttempts) -> None:
    fail(attempts, times=MOST - 1)
    assert not refused(attempts)
    fail(attempts)
    assert refused(attempts)


def test_a_malformed_key_counts_too(attempts: FailedAttempts) -> None:
    fail(attempts, times=MOST)
    with pytest.raises(TooManyFailedAttempts) as refusal, attempts.counted(HERE):
        raise NotAuthenticated("malformed")
    assert 0 < refusal.value.retry_after_ms <= failed_attempts.WINDOW_MS


def test_another_address_is_another_count(attempts: FailedAttempts) -> None:
    fail(attempts, times=MOST)
    assert not refused(attempts, address=ELSEWHERE)


def test_a_network_of_one_party_is_one_address(attempts: FailedAttempts) -> None:
    for last in range(MOST):
        fail(attempts, f"2001:db8::{last:x}")
    assert refused(attempts, address="2001:db8::ffff")
    assert not refused(attempts, address="2001:db8:0:1::1")


def test_a_key_that_was_right_passes_until_it_is_wrong(attempts: FailedAttempts) -> None:
    with attempts.permitted(ELSEWHERE, "right"):
        pass
    fail(attempts, times=MOST)
    assert not refused(attempts, "right")
    with pytest.raises(NotAuthenticated), attempts.permitted(HERE, "right"):
        raise NotAuthenticated("revoked")
    assert refused(attempts, "right")


def test_a_window_ends(attempts: FailedAttempts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_attempts, "WINDOW_MS", 0)
    fail(attempts, times=2 * MOST)
    assert not refused(attempts)


def test_what_is_kept_is_bounded(attempts: FailedAttempts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_attempts, "MAX_IPS", 2)
    for address in ("192.0.2.1", "192.0.2.2", "192.0.2.3"):
        fail(attempts, address, times=MOST)
    assert [refused(attempts, address=address) for address in ("192.0.2.1", "192.0.2.2", "192.0.2.3")] == [
        False,
        True,
        True,
    ]


def test_0_is_no_limit() -> None:
    attempts = FailedAttempts(lambda: 0)
    fail(attempts, times=200)
    assert not refused(attempts)


# ---- several processes

Share = Callable[[FailedAttempts], Awaitable[None]]


@pytest.fixture
def share(redis: Redis) -> Share:
    """Return a function that exchanges counts with Redis, under a prefix of the test's own."""
    prefix = f"{uuid4().hex}:"
    return lambda attempts: attempts.share(redis, prefix)


async def test_processes_share_what_an_address_may(attempts: FailedAttempts, share: Share) -> None:
    other = FailedAttempts(lambda: MOST)
    fail(attempts, times=3)
    fail(other, times=2)
    await share(attempts)
    await share(other)
    assert refused(other)
    assert not refused(attempts)  # it learns with its next failure
    fail(attempts)
    await share(attempts)
    assert refused(attempts)


async def test_telling_twice_counts_once(attempts: FailedAttempts, share: Share) -> None:
    fail(attempts, times=MOST - 1)
    await share(attempts)
    await share(attempts)
    assert not refused(attempts)


async def test_redis_forgets_it_after_the_window(attempts: FailedAttempts, redis: Redis) -> None:
    prefix = f"{uuid4().hex}:"
    fail(attempts)
    await attempts.share(redis, prefix)
    (key,) = [key async for key in redis.scan_iter(f"{prefix}*")]
    assert 0 < await redis.pttl(key) <= failed_attempts.WINDOW_MS


async def test_without_redis_it_goes_on_and_tells_later(attempts: FailedAttempts, share: Share) -> None:
    fail(attempts, times=MOST)
    with pytest.raises(RedisError):
        await attempts.share(connect("unix:///nowhere"), "")
    assert refused(attempts)
    await share(attempts)
    other = FailedAttempts(lambda: MOST)
    fail(other)
    await share(other)
    assert refused(other)


# ---- the routes that read


def ask(address: str, key: str) -> tuple[int, str]:
    response = Client(REMOTE_ADDR=address).get("/v1/models", headers={"authorization": f"Bearer {key}"})
    return response.status_code, response.json().get("error", {}).get("code", "")


def test_too_many_wrong_keys_are_429_before_any_query(
    alice: Person, address: str, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    answers = [ask(address, api_keys.generate(is_test=False)) for _ in range(MOST)]
    assert set(answers) == {(401, "invalid_api_key")}
    with django_assert_num_queries(0):
        for key in (api_keys.generate(is_test=False), "nonsense", alice.key):
            assert ask(address, key) == (429, "rate_limit_exceeded")
    assert ask("203.0.113.77", alice.key)[0] == 200


def test_the_refusal_says_when_to_come_back(db: None, address: str) -> None:
    for _ in range(MOST):
        ask(address, "nonsense")
    response = Client(REMOTE_ADDR=address).get("/v1/models")
    assert 0 < int(response.headers["retry-after"]) <= 60
    assert "incorrect API key" in response.json()["error"]["message"]


def test_a_right_key_is_not_refused_for_wrong_ones_from_the_same_address(alice: Person, address: str) -> None:
    assert ask(address, alice.key)[0] == 200
    for _ in range(2 * MOST):
        ask(address, "nonsense")
    assert ask(address, alice.key)[0] == 200
    keys.revoke(APIKey.objects.filter(pk=alice.api_key.pk))
    assert [ask(address, alice.key)[0] for _ in range(2)] == [429, 429]


def test_a_trusted_proxy_says_where_a_client_is(alice: Person, address: str, settings: Settings) -> None:
    settings.TRUSTED_PROXIES = ["10.0.0.0/8"]
    for _ in range(MOST):
        client = Client(REMOTE_ADDR="10.0.0.1", headers={"x-forwarded-for": address})
        assert client.get("/v1/models").status_code == 401
    assert client.get("/v1/models").status_code == 429
    assert (
        Client(REMOTE_ADDR="10.0.0.1", headers={"x-forwarded-for": "198.51.100.9"})
        .get("/v1/models")
        .status_code
        == 401
    )
