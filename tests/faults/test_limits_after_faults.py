"""Reservations of rate limits after faults: leases of a dead web process expire, its tokens stay taken."""

import json
import signal
import time
from http.client import HTTPMessage
from typing import Any
from uuid import uuid4

import pytest

from accounts.rate_limits import RUNNING_LEASE_MS
from tests.chatapi.http_client import HELLO, Client
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(120)]

TOKENS_PER_DAY = 10_000
MAX_TOKENS = 4_000
OWN_TOKENS = 300
"""More than a short request takes itself."""
LIMIT = "from accounts.models import APIKey, RateLimit; key = APIKey.objects.get(public={public!r}); "
LIMIT += "RateLimit.objects.create(api_key=key, tokens_per_day={tokens}, concurrent_requests=1)"


@pytest.fixture
def limited(installation: Installation) -> Client:
    """Return a client with this number of tokens a day, and one request at a time."""
    key = installation.create_key("--organization", f"Limited {uuid4().hex}")
    installation.shell(LIMIT.format(public=key.split("_")[2], tokens=TOKENS_PER_DAY))
    return Client(installation.url, key)


def receipt(limited: Client, generation_id: str) -> dict[str, Any]:
    found: dict[str, Any] = limited.send("GET", f"/v1/generations/{generation_id}").json
    return found


def remaining_tokens(headers: HTTPMessage) -> int:
    return int(headers["x-ratelimit-remaining-tokens"])


def assert_released(installation: Installation, limited: Client, generation_id: str) -> None:
    """Check that the lease is free, and all tokens but those that the generation has used."""
    wait_for(lambda: receipt(limited, generation_id)["state"] == "settled", "the settlement")
    left = TOKENS_PER_DAY - receipt(limited, generation_id)["usage"]["total_tokens"] - OWN_TOKENS
    wait_for(lambda: limited.complete("five", max_tokens=1).status == 200, "the lease")
    assert remaining_tokens(limited.complete("five", max_tokens=1).headers) > left


@pytest.mark.parametrize("runs_on", [False, True])
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGTERM, id="asked to end, which cuts off what takes longer than its drain"),
    ],
)
def test_the_lease_of_a_web_process_that_has_ended_expires(
    installation: Installation, limited: Client, how: signal.Signals, runs_on: bool
) -> None:
    with limited.asking(
        "five-seconds", stream=True, max_tokens=MAX_TOKENS, idempotency_key=uuid4().hex if runs_on else None
    ) as exchange:
        next(exchange.texts())
        left = remaining_tokens(exchange.response.headers)
        installation.end("web", how)
    installation.start_web()
    wait_for(lambda: limited.complete("five", max_tokens=1).status == 200, "the lease to expire")
    if how is signal.SIGKILL:  # else it may have had the time to release them
        paid_by_time = TOKENS_PER_DAY / 1_000
        assert remaining_tokens(limited.complete("five", max_tokens=1).headers) < left + paid_by_time


def test_a_web_process_releases_what_a_dead_worker_has_not_used(
    installation: Installation, limited: Client
) -> None:
    with limited.asking("five-seconds", stream=True, max_tokens=MAX_TOKENS) as exchange:
        next(exchange.texts())
        generation_id = exchange.response.headers["x-generation-id"]
        installation.end("worker")
        installation.start_worker()
        assert_released(installation, limited, generation_id)


def test_a_lease_is_kept_while_its_request_runs_on_without_its_client(
    installation: Installation, limited: Client
) -> None:
    body = json.dumps({"model": "steady", "messages": HELLO, "max_tokens": MAX_TOKENS}).encode()
    accepted = limited.send("POST", "/v1/chat/completions", body, prefer="respond-async")
    assert accepted.status == 202
    time.sleep(RUNNING_LEASE_MS / 1_000 + 1)
    assert limited.complete("five").status == 429
    limited.send("POST", f"/v1/generations/{accepted.json['id']}/cancel", b"")
    assert_released(installation, limited, accepted.json["id"])
