"""The classes of the queue and the bound on its age, over HTTP: killed processes, repeats, other releases."""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis

from chatapi.web.queue_age import RETRY_AFTER_MS
from tests.chatapi.http_client import HELLO, Client
from tests.chatapi.test_every_protocol import body_of, every_route, send
from tests.fake_completion import WORDS
from tests.faults import armed
from tests.faults.conftest import Ask
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("queue-classes"), pytest.mark.timeout(120)]

ENVIRONMENT = {"CHATAPI_QUEUE_TTL_MS": "60000"}
QUEUE = "chatapi:generations"
TYPES = {"messages": "overloaded_error"}
"""The type of the error where it is not `server_error`."""


@pytest.fixture
def no_worker(installation: Installation) -> Iterator[None]:
    """End the worker; it starts again after the test, so that what waits is served."""
    installation.end("worker", signal.SIGTERM)
    yield
    if "worker" not in installation.processes:
        installation.start_worker()


def post(client: Client, key: str | None = None, prefer: str | None = None, **parameters: Any) -> Any:
    body = json.dumps({"model": "five", "messages": HELLO, "stream": True, **parameters}).encode()
    return client.send("POST", "/openai/v1/chat/completions", body, idempotency_key=key, prefer=prefer)


@every_route
@pytest.mark.usefixtures("no_worker")
def test_requests_behind_one_that_waits_too_long_are_refused(
    installation: Installation, ask: Ask, valkey: Redis, route: str
) -> None:
    """503 in the envelope of each protocol, and nothing is admitted."""
    first = ask("five")
    wait_for(lambda: valkey.zcard(f"{QUEUE}:turns") == 1, "the message")
    with installation.another_web(CHATAPI_MAX_QUEUE_AGE_MS="1") as web:
        client = Client(web.url, installation.keys["live"], 30)
        overloaded = 529 if route == "messages" else 503
        model = "embed-in-a-second" if route == "embeddings" else "five"
        refused = send(client, route, body_of(route), model)
        assert refused.status == overloaded
        assert refused.headers["retry-after"] == str(RETRY_AFTER_MS // 1_000)
        error = refused.json["error"]
        assert error["type"] == TYPES.get(route, "server_error")
        assert error.get("code", "overloaded") == "overloaded"
        assert "waiting too long" in error["message"]
        assert "x-generation-id" not in refused.headers
    installation.start_worker()
    assert first.end().words == WORDS[:5]


@pytest.mark.usefixtures("no_worker")
def test_background_work_that_waits_too_long_refuses_no_interactive_request(
    installation: Installation, ask: Ask, valkey: Redis
) -> None:
    client = Client(installation.url, installation.keys["live"], 30)
    accepted = post(client, prefer="respond-async")
    with installation.another_web(CHATAPI_MAX_QUEUE_AGE_MS="1") as web:
        own = Client(web.url, installation.keys["live"], 30)
        assert post(own, prefer="respond-async").json["error"]["code"] == "overloaded"
        assert post(own, service_tier="flex").json["error"]["code"] == "overloaded"
        with ThreadPoolExecutor() as pool:
            urgent = pool.submit(post, own)
            wait_for(lambda: valkey.zcard(f"{QUEUE}:turns") == 1, "the message")
            installation.start_worker()
            assert urgent.result(20).status == 200
    assert installation.receipt(accepted.headers["x-generation-id"])["outcome"] == "completed"


@pytest.mark.usefixtures("no_worker")
def test_background_and_flex_requests_wait_in_lines_of_their_own(
    installation: Installation, ask: Ask, valkey: Redis
) -> None:
    client = Client(installation.url, installation.keys["live"], 30)
    accepted = post(client, prefer="respond-async")
    assert accepted.status == 202
    flexible, urgent = ask("five", service_tier="flex"), ask("five")
    lines = {"turns": 1, "background": 1, "flex": 1}
    wait_for(lambda: {line: valkey.zcard(f"{QUEUE}:{line}") for line in lines} == lines, "the messages")
    installation.start_worker()
    assert [answer.end().words for answer in (flexible, urgent)] == [WORDS[:5]] * 2
    assert installation.receipt(accepted.headers["x-generation-id"])["outcome"] == "completed"


@pytest.mark.usefixtures("no_worker")
def test_what_a_killed_worker_had_popped_of_every_line_runs_on_another(
    installation: Installation, ask: Ask, valkey: Redis
) -> None:
    client = Client(installation.url, installation.keys["live"], 30)
    accepted, flexible = post(client, prefer="respond-async"), ask("five", service_tier="flex")
    wait_for(
        lambda: valkey.zcard(f"{QUEUE}:flex") == valkey.zcard(f"{QUEUE}:background") == 1, "the messages"
    )
    armed.start(installation, "worker", "claim.before=kill9@1")
    installation.processes["worker"].wait(10)
    assert valkey.zcard(f"{QUEUE}:flex") == valkey.zcard(f"{QUEUE}:background") == 0
    installation.end("worker")
    installation.start_worker()
    assert flexible.end().words == WORDS[:5]
    assert installation.receipt(accepted.headers["x-generation-id"])["outcome"] == "completed"


@pytest.mark.parametrize(
    ("line", "parameters"), [("flex", {"service_tier": "flex"}), ("background", {"prefer": "respond-async"})]
)
@pytest.mark.usefixtures("no_worker")
def test_a_repeat_that_enqueues_a_lost_request_keeps_its_line(
    installation: Installation, valkey: Redis, line: str, parameters: dict[str, Any]
) -> None:
    """The web process is killed between commit and enqueue."""
    armed.start(installation, "web", "admit.after_commit=kill9@1")
    process, key = installation.processes["web"], uuid4().hex
    client = Client(installation.url, installation.keys["live"], 30)
    with ThreadPoolExecutor() as pool:
        lost = pool.submit(post, client, key, **parameters)
        process.wait(10)
        installation.end("web")
        installation.start_web()
        repeated = pool.submit(post, client, key, **parameters)
        wait_for(lambda: valkey.zcard(f"{QUEUE}:{line}") == 1, "the message")
        assert valkey.zcard(f"{QUEUE}:turns") == 0
        installation.start_worker()
        assert repeated.result(20).headers["idempotent-replayed"] == "true"
        lost.exception(20)


@pytest.mark.usefixtures("no_worker")
def test_messages_of_a_web_process_of_the_previous_release_are_served(
    installation: Installation, ask: Ask, valkey: Redis
) -> None:
    """They are in the list and name no organization."""
    older, newer = ask("five"), None
    wait_for(lambda: valkey.zcard(f"{QUEUE}:turns") == 1, "the message")
    [message] = valkey.zrange(f"{QUEUE}:turns", 0, 0)
    assert isinstance(message, bytes)
    envelope = json.loads(message)
    valkey.delete(f"{QUEUE}:turns")
    del envelope["headers"]["organization"]
    valkey.lpush(QUEUE, json.dumps(envelope))
    newer = ask("five")
    wait_for(lambda: valkey.zcard(f"{QUEUE}:turns") == 1, "the message")
    installation.start_worker()
    assert [answer.end().words for answer in (older, newer)] == [WORDS[:5]] * 2
