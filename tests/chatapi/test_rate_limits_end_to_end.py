"""What a client with a rate limit sees: headers on every answer, 429 with a time to come back, and a place that is freed."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.chatapi.http_client import Client
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

LIMIT = "from accounts.models import APIKey, RateLimit; key = APIKey.objects.get(public={public!r}); "
LIMIT += "RateLimit.objects.create(api_key=key, **{limits!r})"


def limited(installation: Installation, name: str, **limits: Any) -> Client:
    """A client whose key has these limits."""
    made = json.loads(installation.manage("createkey", "--organization", "Limited", "--project", name, "--json").stdout)
    script = LIMIT.format(public=made["key"].split("_")[2], limits=limits)
    done = installation.manage("shell", "--no-imports", "-c", script)
    assert done.returncode == 0, done.stderr
    return Client(installation.url, made["key"])


@pytest.mark.parametrize("stream", [True, False])
def test_requests_per_minute(installation: Installation, stream: bool) -> None:
    client = limited(installation, f"requests {stream}", requests_per_minute=2)
    first, second, third = [client.complete("five", stream=stream) for _ in range(3)]
    assert [answer.status for answer in (first, second, third)] == [200, 200, 429]
    assert (first.headers["x-ratelimit-limit-requests"], first.headers["x-ratelimit-remaining-requests"]) == ("2", "1")
    assert third.error["code"] == "rate_limit_exceeded"
    assert 0 < int(third.headers["retry-after-ms"]) <= 30_000
    assert int(third.headers["retry-after"]) == -(-int(third.headers["retry-after-ms"]) // 1_000)


def test_tokens_that_were_not_used_are_given_back(installation: Installation) -> None:
    client = limited(installation, "tokens", tokens_per_minute=2_000)

    def remaining() -> int:
        return int(client.complete("five", max_tokens=1_000).headers["x-ratelimit-remaining-tokens"])

    first = remaining()
    assert first < 1_000
    wait_for(lambda: remaining() > first - 100, "the tokens")


def test_a_place_is_free_again_when_its_request_ends_or_its_client_leaves(installation: Installation) -> None:
    client = limited(installation, "places", concurrent_requests=1)
    with client.asking("steady", stream=True) as exchange:
        next(exchange.texts())
        assert client.complete("five").status == 429
    wait_for(lambda: client.complete("five").status == 200, "the place")
    wait_for(lambda: client.complete("five").status == 200, "the place again")


def test_who_is_at_its_limit_keeps_nobody_else_waiting(installation: Installation, client: Client) -> None:
    """What is refused is neither queued nor sent on; the bound is generous, for the machine may be busy."""
    greedy = limited(installation, "greedy", concurrent_requests=1)
    with greedy.asking("steady", stream=True) as exchange, ThreadPoolExecutor(8) as threads:
        next(exchange.texts())
        refusals = [threads.submit(greedy.complete, "five") for _ in range(100)]
        began = time.monotonic()
        assert [client.complete("five").status for _ in range(5)] == [200] * 5
        assert time.monotonic() - began < 5
        assert {refusal.result().status for refusal in refusals} == {429}


def test_a_limit_of_nothing_is_not_retried(installation: Installation) -> None:
    answer = limited(installation, "nothing", requests_per_day=0).complete("five")
    assert (answer.status, answer.headers["x-should-retry"], answer.headers["retry-after"]) == (429, "false", None)


def test_who_has_no_limit_sees_none(client: Client) -> None:
    assert not [name for name in client.complete("five").headers if name.startswith("x-ratelimit")]
