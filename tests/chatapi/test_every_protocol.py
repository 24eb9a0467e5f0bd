"""What is shown for chat at length holds for every protocol's route: whose an Idempotency-Key is, limits,
test keys, the sandbox's markers.
"""

import json
from typing import Any
from uuid import uuid4

import pytest

from chatapi.wire.protocols import PROTOCOLS, protocol_of
from tests.chatapi.http_client import Answer, Client
from tests.chatapi.test_rate_limits_end_to_end import limited
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

OVERLOADED = {"messages": 529}
"""The status of an overload where it is not 503."""
MODELS = {"chat": ("five", "sandbox"), "embeddings": ("embeds", "sandbox-embedding")}
"""By kind of models: one whose upstream is a fake, and the sandbox's."""


def routes(*, counting: bool) -> list[str]:
    """Return the protocols' paths behind `/v1/`; only those that count tokens, or all others."""
    return [
        operation.path.removeprefix("/v1/")
        for protocol in PROTOCOLS.values()
        if protocol.counts_tokens is counting
        for operation in protocol.operations
    ]


every_route = pytest.mark.parametrize("route", routes(counting=False))


def body_of(route: str, text: str = "hello") -> dict[str, Any]:
    said = [{"role": "user", "content": text}]
    bodies: dict[str, dict[str, Any]] = {
        "chat/completions": {"messages": said},
        "completions": {"prompt": text},
        "responses": {"input": text},
        "messages": {"messages": said, "max_tokens": 9},
        "embeddings": {"input": text},
        "responses/input_tokens": {"input": text},
        "messages/count_tokens": {"messages": said},
    }
    return bodies[route]


def models_of(route: str) -> tuple[str, str]:
    return MODELS[protocol_of(f"/v1/{route}").model_kind]


def send(client: Client, route: str, body: dict[str, Any], model: str = "", key: str | None = None) -> Answer:
    encoded = json.dumps({"model": model or models_of(route)[0]} | body).encode()
    return client.send("POST", f"/v1/{route}", encoded, idempotency_key=key)


@every_route
def test_an_idempotency_key_belongs_to_an_api_key(
    client: Client, installation: Installation, keys: dict[str, str], route: str
) -> None:
    stranger, key = Client(installation.url, keys["stranger"]), str(uuid4())
    mine, theirs = (send(each, route, body_of(route), key=key) for each in (client, stranger))
    assert (mine.status, theirs.status) == (200, 200)
    names = [answer.headers["x-generation-id"] for answer in (mine, theirs)]
    assert names[0] != names[1]
    assert theirs.headers["idempotent-replayed"] is None
    for rest in ("", "/stream"):
        assert stranger.send("GET", f"/v1/generations/{names[0]}{rest}").status == 404
    assert stranger.send("POST", f"/v1/generations/{names[0]}/cancel").status == 404


@every_route
def test_a_test_key_reaches_the_sandbox_for_nothing(installation: Installation, route: str) -> None:
    tester = Client(installation.url, installation.keys["test"])
    calls = len(installation.calls("five"))
    answer = send(tester, route, body_of(route))
    assert answer.status == 200
    receipt = tester.send("GET", f"/v1/generations/{answer.headers['x-generation-id']}").json
    assert (receipt["is_test"], receipt["amount_nanodollars"]) == (True, 0)
    assert len(installation.calls("five")) == calls


@every_route
@pytest.mark.parametrize(
    ("marker", "status"), [("error=rate_limit", 429), ("error=overloaded", 503), ("error=nonsense", 400)]
)
def test_markers_are_read(client: Client, route: str, marker: str, status: int) -> None:
    refused = send(client, route, body_of(route, f"hello [sandbox {marker}]"), models_of(route)[1])
    assert refused.status == (OVERLOADED.get(route, status) if status == 503 else status)


@every_route
def test_a_limit_of_requests_holds(installation: Installation, route: str) -> None:
    poor = limited(installation, "route " + route.replace("/", " "), requests_per_minute=1)
    assert [send(poor, route, body_of(route)).status for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("route", routes(counting=True))
def test_a_limit_of_requests_holds_for_counting(installation: Installation, route: str) -> None:
    poor = limited(installation, "route " + route.replace("/", " "), requests_per_minute=1)
    assert [send(poor, route, body_of(route)).status for _ in range(2)] == [200, 429]
