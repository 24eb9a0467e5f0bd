"""What a client with a rate limit sees: headers on every answer, 429 with a time to come back, and a place
that is freed.
"""

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest

from tests.chatapi.http_client import Client
from tests.faults.test_locked_database import database_locked
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

LIMIT = "from accounts.models import APIKey, RateLimit; key = APIKey.objects.get(public={public!r}); "
LIMIT += "RateLimit.objects.create(api_key=key, **{limits!r})"


def limited(installation: Installation, name: str, **limits: Any) -> Client:
    """Return a client whose key has these limits."""
    key = installation.create_key("--organization", "Limited", "--project", name)
    installation.shell(LIMIT.format(public=key.split("_")[2], limits=limits))
    return Client(installation.url, key)


class Greedy(threading.Thread):
    """A client that asks again as soon as it is refused, whenever it may."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        self.client = client
        self.refusals: list[int] = []
        self._is_asking = threading.Event()
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.is_set():
            self._is_asking.wait()
            self.refusals.append(self.client.complete("five").status)

    @contextmanager
    def asking_on(self) -> Iterator[None]:
        """Let it ask meanwhile."""
        self._is_asking.set()
        yield
        self._is_asking.clear()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._is_asking.set()
        self.join()


def seconds_to_first_token(client: Client) -> float:
    began = time.perf_counter()
    with client.asking("five", stream=True) as exchange:
        next(exchange.texts())
        seconds = time.perf_counter() - began
        exchange.read()
    return seconds


@pytest.mark.parametrize("stream", [True, False])
def test_requests_per_minute(installation: Installation, stream: bool) -> None:
    client = limited(installation, f"requests {stream}", requests_per_minute=2)
    first, second, third = [client.complete("five", stream=stream) for _ in range(3)]
    assert [answer.status for answer in (first, second, third)] == [200, 200, 429]
    assert (first.headers["x-ratelimit-limit-requests"], first.headers["x-ratelimit-remaining-requests"]) == (
        "2",
        "1",
    )
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


def test_a_client_that_lost_the_answer_needs_no_second_place_for_it(installation: Installation) -> None:
    """The request keeps the only lease; a repeat with its idempotency key is admitted, and no other
    request.
    """
    client = limited(installation, "comes back", concurrent_requests=1)
    with client.asking("steady", stream=True, idempotency_key="again") as exchange:
        next(exchange.texts())
    assert client.complete("five").status == 429
    assert client.complete("five", idempotency_key="another").status == 429
    with client.asking("steady", stream=True, idempotency_key="again") as exchange:
        next(exchange.texts())
        assert exchange.response.headers["idempotent-replayed"] == "true"
        generation_id = exchange.response.headers["x-generation-id"]
    assert client.complete("steady", stream=True, idempotency_key="again", temperature=0.5).status == 422
    client.send("POST", f"/v1/generations/{generation_id}/cancel", b"")
    wait_for(lambda: client.complete("five").status == 200, "the place")


def test_an_answer_that_is_replayed_beyond_the_limit_tells_how_it_stands(installation: Installation) -> None:
    client = limited(installation, "replays beyond", requests_per_day=1)
    for temperature, status in ((0, 200), (0, 200), (1, 422)):
        answer = client.complete("five", temperature=temperature, idempotency_key="again")
        assert (answer.status, answer.headers["x-ratelimit-remaining-requests"]) == (status, "0")
    refused = client.complete("five")
    assert (refused.status, refused.headers.get_all("x-ratelimit-remaining-requests")) == (429, ["0"])


def test_an_answer_that_is_replayed_takes_no_tokens(installation: Installation) -> None:
    client = limited(installation, "replays", tokens_per_day=2_000)

    def remaining() -> int:
        answer = client.complete("five", max_tokens=1_000, idempotency_key="again")
        assert answer.status == 200
        return int(answer.headers["x-ratelimit-remaining-tokens"])

    first = remaining()
    assert first < 1_000
    wait_for(lambda: remaining() > first - 100, "what the first one did not use")
    for _ in range(20):
        remaining()
    wait_for(lambda: remaining() > first - 100, "what the others did not use")


def test_a_client_that_leaves_during_a_failing_admission_frees_its_place(installation: Installation) -> None:
    with installation.another_web(CHATAPI_DATABASE_TIMEOUT_MS="1500") as another:
        client = limited(another, "leaves early", concurrent_requests=1)
        wait_for(lambda: client.complete("five").status == 200, "the first answer")
        wait_for(lambda: client.complete("five").status == 200, "the place")
        failures = another.log("web").count("the database is away")
        with database_locked(another):
            with client.asking("five"):
                wait_for(lambda: client.complete("five").status == 429, "the request to be admitted")
            wait_for(
                lambda: another.log("web").count("the database is away") > failures, "the admission to fail"
            )
        wait_for(lambda: client.complete("five").status == 200, "the place again", timeout_s=20)


def test_a_client_at_its_limit_keeps_nobody_else_waiting(installation: Installation, client: Client) -> None:
    """The first tokens of other keys are as fast while this key is refused again and again as while it is
    silent; the two cases take turns.
    """
    greedy = Greedy(limited(installation, "greedy", concurrent_requests=1))
    with greedy.client.asking("steady", stream=True) as exchange, greedy:
        next(exchange.texts())
        beside, alone = [], []
        for _ in range(20):
            with greedy.asking_on():
                beside.append(seconds_to_first_token(client))
            alone.append(seconds_to_first_token(client))
    assert len(greedy.refusals) >= 20
    assert set(greedy.refusals) == {429}
    assert statistics.median(beside) < 2 * statistics.median(alone) + 0.005


def test_a_limit_of_nothing_is_not_retried(installation: Installation) -> None:
    answer = limited(installation, "nothing", requests_per_day=0).complete("five")
    assert (answer.status, answer.headers["x-should-retry"], answer.headers["retry-after"]) == (
        429,
        "false",
        None,
    )


def test_a_key_without_limits_gets_no_limit_headers(client: Client) -> None:
    assert not [name for name in client.complete("five").headers if name.startswith("x-ratelimit")]
