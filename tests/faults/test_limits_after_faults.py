"""What requests have taken from rate limits, when the web process that took it ends: whoever ends them gives
it back.
"""

import json
import signal
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis

from chatapi.serving import embedded_valkey
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
    """A client that may use so many tokens a day, in one request at a time."""
    made = json.loads(
        installation.manage("createkey", "--organization", f"Limited {uuid4().hex}", "--json").stdout
    )
    done = installation.manage(
        "shell", "--no-imports", "-c", LIMIT.format(public=made["key"].split("_")[2], tokens=TOKENS_PER_DAY)
    )
    assert done.returncode == 0, done.stderr
    return Client(installation.url, made["key"])


def redis(installation: Installation) -> Redis:
    return Redis(unix_socket_path=str(embedded_valkey.socket_path(installation.folder)))


def begin_and_end_web(
    installation: Installation, limited: Client, idempotency_key: str | None, model: str, how: signal.Signals
) -> str:
    """Its generation's id."""
    with limited.asking(
        model, stream=True, max_tokens=MAX_TOKENS, idempotency_key=idempotency_key
    ) as exchange:
        next(exchange.texts())
        installation.end("web", how)
        generation_id: str = exchange.response.headers["x-generation-id"]
    return generation_id


def receipt(limited: Client, generation_id: str) -> dict[str, Any]:
    found: dict[str, Any] = limited.send("GET", f"/v1/generations/{generation_id}").json
    return found


def assert_given_back(installation: Installation, limited: Client, generation_id: str) -> None:
    """All but what the generation has used, and its place."""
    wait_for(lambda: receipt(limited, generation_id)["state"] == "settled", "the settlement")
    left = TOKENS_PER_DAY - receipt(limited, generation_id)["usage"]["total_tokens"] - OWN_TOKENS
    wait_for(lambda: limited.complete("five", max_tokens=1).status == 200, "the place")
    assert int(limited.complete("five", max_tokens=1).headers["x-ratelimit-remaining-tokens"]) > left


@pytest.mark.parametrize("runs_on", [False, True])
@pytest.mark.parametrize(
    ("model", "how"),
    [
        pytest.param("two-seconds", signal.SIGKILL, id="killed"),
        pytest.param(
            "five-seconds", signal.SIGTERM, id="asked to end, which cuts off what takes longer than its drain"
        ),
    ],
)
def test_a_worker_gives_back_for_a_web_process_that_has_ended(
    installation: Installation, limited: Client, model: str, how: signal.Signals, runs_on: bool
) -> None:
    generation_id = begin_and_end_web(installation, limited, uuid4().hex if runs_on else None, model, how)
    installation.start_web()
    assert_given_back(installation, limited, generation_id)


def test_a_reaper_gives_back_for_a_dead_web_process_and_a_dead_worker(
    installation: Installation, limited: Client
) -> None:
    generation_id = begin_and_end_web(installation, limited, uuid4().hex, "five-seconds", signal.SIGKILL)
    with redis(installation) as valkey:
        wait_for(lambda: not list(valkey.scan_iter("chatapi:web:*")), "the web process to count as dead")
    installation.end("worker")
    installation.start_worker()
    installation.start_web()
    assert_given_back(installation, limited, generation_id)


def test_a_worker_that_ends_after_its_web_process_gives_back(
    installation: Installation, limited: Client
) -> None:
    """As when all of it is started anew: what runs is cut off by the worker's end."""
    generation_id = begin_and_end_web(installation, limited, uuid4().hex, "steady", signal.SIGTERM)
    installation.end("worker", signal.SIGTERM)
    installation.start_worker()
    installation.start_web()
    assert_given_back(installation, limited, generation_id)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_place_is_kept_while_its_request_runs_on_without_a_web_process(
    installation: Installation, limited: Client, how: signal.Signals
) -> None:
    body = json.dumps({"model": "steady", "messages": HELLO, "max_tokens": MAX_TOKENS}).encode()
    accepted = limited.send("POST", "/v1/chat/completions", body, prefer="respond-async")
    assert accepted.status == 202
    installation.end("web", how)
    with redis(installation) as valkey:

        def lease_ends_at_us() -> float:
            ((_, ends_at_us),) = valkey.zrange(place, 0, -1, withscores=True)
            return float(ends_at_us)

        (place,) = [key for key in valkey.scan_iter("chatapi:rate:*") if valkey.type(key) == b"zset"]
        before = lease_ends_at_us()
        wait_for(lambda: lease_ends_at_us() > before, "the worker to renew it")
    installation.start_web()
    assert limited.complete("five").status == 429
    limited.send("POST", f"/v1/generations/{accepted.json['id']}/cancel", b"")
    assert_given_back(installation, limited, accepted.json["id"])
