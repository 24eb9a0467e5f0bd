"""Two protocols that only this installation has: their folder (`tests/protocols/small.py`) and a row in each
of the two tables are all that a protocol takes, from the key and the body to the books and a resumed stream.
"""

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPResponse
from typing import Any

import pytest

from chatapi.wire.sse import Parser
from tests.chatapi.http_client import Answer, Client
from tests.installation import Installation
from tests.protocols.small import KEY_HEADER

pytestmark = [pytest.mark.xdist_group("protocols"), pytest.mark.timeout(120)]

TURNS = [{"text": "hello [sandbox tokens=4]"}]
WORDS = 4
# The end of a 401's message, with the headers of `EVENTS`.
PLACES = "Send a valid key as 'x-events-key: <key>' or 'Events-Authorization: Token <key>'."


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Start web and worker with both protocols; the books must be right at the end."""
    folder = tmp_path_factory.mktemp("protocols")
    with Installation(folder, DJANGO_SETTINGS_MODULE="tests.protocols.settings") as installation:
        installation.start({})
        yield installation
        installation.verify()


@pytest.fixture
def bearer_client(installation: Installation) -> Client:
    return Client(installation.url, installation.keys["live"])


@pytest.fixture
def client(installation: Installation) -> Client:
    return events_client(installation.url, installation.keys["live"])


def events_client(url: str, key: str) -> Client:
    """Return a client that sends the key as `EVENTS` alone has it."""
    return Client(url, key, key_header=KEY_HEADER)


def vectors(client: Client, **members: Any) -> Answer:
    body = {"model": "sandbox", "input": ["one two", "three"]} | members
    return client.send("POST", "/v1/vectors", json.dumps(body).encode())


def events(client: Client, **members: Any) -> Answer:
    body = {"model": "sandbox", "turns": TURNS, "longest": 50, "person": "p"} | members
    return client.send("POST", "/v1/events", json.dumps(body).encode())


def follow(client: Client, generation_id: str, last_event_id: str | None = None) -> Answer:
    path = f"/v1/generations/{generation_id}/stream"
    return client.send("GET", path, None, last_event_id=last_event_id)


def events_of(body: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Return types and data of the stream's events, without keep-alives."""
    found = [(event.type, json.loads(event.data)) for event in Parser().feed(body)]
    return [(kind, data) for kind, data in found if kind != "ping"]


def without_ids(body: bytes) -> bytes:
    return b"".join(line for line in body.splitlines(keepends=True) if not line.startswith(b"id: "))


# ---- the key


def test_a_key_is_found_only_where_the_protocol_has_it(
    client: Client, bearer_client: Client, installation: Installation
) -> None:
    assert events(client).status == 200
    url, key = installation.url, bearer_client.key
    by_scheme = Client(url, f"token  {key}", key_header="Events-Authorization")
    assert events(by_scheme).status == 200
    for refused in (events(bearer_client), events(Client(url, key, key_header="x-api-key"))):
        assert (refused.status, refused.json["error"]["words"]) == (401, f"No API key was sent. {PLACES}")
    assert vectors(client).status == 401


def test_on_shared_routes_every_protocols_key_is_found(client: Client, bearer_client: Client) -> None:
    generation_id = events(client, stream=True).headers["x-generation-id"]
    for each in (client, bearer_client):
        assert [kind for kind, _ in events_of(follow(each, generation_id).body)][-1] == "stop"
        cancelled = each.send("POST", f"/v1/generations/{generation_id}/cancel", b"")
        assert cancelled.status == 200


def test_the_reference_says_where_its_keys_are(client: Client) -> None:
    schemes = client.send("GET", "/openapi.json").json["components"]["securitySchemes"]
    assert schemes.keys() == {"APIKey", "APIKeyHeader", KEY_HEADER, "Events-Authorization"}
    assert schemes["APIKey"]["type"] == "http"
    for name in (KEY_HEADER, "Events-Authorization"):
        assert [schemes[name][key] for key in ("type", "in", "name")] == ["apiKey", "header", name]
    assert schemes["Events-Authorization"]["description"].startswith("`Token ` and then a key.")


# ---- the answer, and the books


def test_one_object_in_the_protocols_form(bearer_client: Client, installation: Installation) -> None:
    answer = vectors(bearer_client)
    assert answer.status == 200
    tokens = answer.json["tokens"]
    assert [item["position"] for item in answer.json["data"]] == [0, 1]
    generation_id = answer.headers["x-generation-id"]
    assert generation_id.startswith("vec-")
    receipt = installation.receipt(generation_id)
    assert (receipt["endpoint"], receipt["dialect"], receipt["outcome"]) == (
        "vectors",
        "openai",
        "completed",
    )
    assert (receipt["usage"]["prompt_tokens"], receipt["usage"]["completion_tokens"]) == (tokens, 0)
    assert receipt["amount_nanodollars"] == tokens * 1_000


def test_one_object_of_a_protocol_that_streams(client: Client, installation: Installation) -> None:
    answer = events(client)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/events+json")
    generation_id = answer.headers["x-generation-id"]
    assert (answer.json["id"], answer.json["person"]) == (generation_id, "p")
    assert generation_id.startswith("ev_")
    assert len(answer.json["blocks"][0]["text"].split()) == WORDS
    receipt = installation.receipt(generation_id)
    assert (receipt["id"], receipt["endpoint"], receipt["stream"]) == (generation_id, "events", False)
    cancelled = client.send("POST", f"/v1/generations/{generation_id}/cancel", b"")
    assert cancelled.json["id"] == generation_id


def test_a_stream_of_typed_events(client: Client, installation: Installation) -> None:
    answer = events(client, stream=True)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    (first, *texts, last) = events_of(answer.body)
    generation_id = answer.headers["x-generation-id"]
    assert first == ("start", {"type": "start", "id": generation_id, "person": "p"})
    assert [kind for kind, _ in texts] == ["text"] * WORDS
    receipt = installation.receipt(generation_id)
    used = {"in": receipt["usage"]["prompt_tokens"], "out": receipt["usage"]["completion_tokens"]}
    assert last == ("stop", {"type": "stop", "tokens": used})
    assert used["out"] == WORDS
    assert receipt["amount_nanodollars"] == used["in"] * 1_000 + used["out"] * 2_000


def test_a_keep_alive_is_the_protocols_own(installation: Installation) -> None:
    with installation.another_web(CHATAPI_PING_MS="200") as impatient:
        client = events_client(impatient.url, installation.keys["live"])
        turns = [{"text": "[sandbox tokens=2 first_delay_ms=600 delay_ms=600]"}]
        answer = events(client, stream=True, turns=turns)
        again = follow(client, answer.headers["x-generation-id"])
    assert answer.body.startswith(b'event: ping\ndata: {"type":"ping"}\n\n')
    assert b": ping" not in answer.body.replace(b"event: ping", b"")
    assert [kind for kind, _ in events_of(answer.body)] == ["start", "text", "text", "stop"]
    assert events_of(again.body) == events_of(answer.body)


# ---- resuming


def test_a_replay_is_what_the_client_got(client: Client) -> None:
    answer = events(client, stream=True)
    again = follow(client, answer.headers["x-generation-id"])
    assert without_ids(again.body) == answer.body


def test_a_stream_is_resumed_behind_any_event(client: Client) -> None:
    generation_id = events(client, stream=True).headers["x-generation-id"]
    whole = follow(client, generation_id).body
    ids = [line[4:] for line in whole.decode().splitlines() if line.startswith("id: ")]
    assert len(ids) == WORDS + 2
    for event_id in ids:
        behind = whole.partition(f"id: {event_id}\n".encode())[2].partition(b"\n\n")[2]
        assert follow(client, generation_id, event_id).body == behind


def test_a_running_stream_is_resumed_by_another_process(client: Client, installation: Installation) -> None:
    turns = [{"text": "[sandbox tokens=6 delay_ms=150]"}]
    body = json.dumps({"model": "sandbox", "turns": turns, "longest": 50, "stream": True}).encode()
    accepted = client.send("POST", "/v1/events", body, prefer="respond-async")
    path = accepted.json["stream_url"]
    seen, event_id = b"", ""
    with client.exchange("GET", path, None, {}) as first:
        while seen.count(b"event: text") < 2 or not seen.endswith(b"\n\n"):
            line = first.response.readline()
            event_id = line.decode().removeprefix("id: ").strip() if line.startswith(b"id: ") else event_id
            seen += line
    with installation.another_web() as elsewhere:
        rest = follow(events_client(elsewhere.url, installation.keys["live"]), accepted.json["id"], event_id)
    assert seen + rest.body == follow(client, accepted.json["id"]).body
    assert [kind for kind, _ in events_of(rest.body)] == [*["text"] * 4, "stop"]


def test_a_follower_whose_key_is_revoked_hears_it_in_the_protocols_words(
    client: Client, installation: Installation
) -> None:
    """Also in silence: the first word comes after half a minute."""
    turns = [{"text": "[sandbox first_delay_ms=30000]"}]
    body = json.dumps({"model": "sandbox", "turns": turns, "longest": 50, "stream": True}).encode()
    accepted = client.send("POST", "/v1/events", body, prefer="respond-async")
    key = installation.create_key("--organization", "Tests", "--project", "default")
    with events_client(installation.url, key).exchange(
        "GET", accepted.json["stream_url"], None, {}
    ) as followed:
        assert followed.response.status == 200
        installation.shell(
            "from django.utils import timezone; from accounts.models import APIKey; "
            f"APIKey.objects.filter(public={key.split('_')[2]!r}).update(revoked_at=timezone.now())"
        )
        *_, (kind, error) = events_of(followed.response.read())
    assert client.send("POST", f"/v1/generations/{accepted.json['id']}/cancel", b"").status == 202
    assert kind == "error"
    assert error["error"]["words"].endswith(PLACES)


def test_an_answer_that_is_fetched_later(client: Client) -> None:
    body = json.dumps({"model": "sandbox", "turns": TURNS, "longest": 50, "stream": True}).encode()
    accepted = client.send("POST", "/v1/events", body, prefer="respond-async")
    assert accepted.status == 202
    assert accepted.json["stream_url"] == f"/v1/generations/{accepted.json['id']}/stream"
    stream = client.send("GET", accepted.json["stream_url"]).body
    assert [kind for kind, _ in events_of(stream)] == ["start", *["text"] * WORDS, "stop"]


def test_an_answer_that_has_no_stream_is_never_fetched_as_one(bearer_client: Client) -> None:
    body = json.dumps({"model": "sandbox", "input": "one"}).encode()
    answer = bearer_client.send("POST", "/v1/vectors", body, prefer="respond-async")
    assert (answer.status, answer.headers["preference-applied"]) == (200, None)
    refused = follow(bearer_client, answer.headers["x-generation-id"])
    assert (refused.status, refused.error["code"]) == (400, "not_streamable")


def test_a_repeated_request_gets_the_first_ones_answer(client: Client) -> None:
    body = json.dumps({"model": "sandbox", "turns": TURNS, "longest": 50, "person": "p"}).encode()
    first, again = (client.send("POST", "/v1/events", body, idempotency_key="events-1") for _ in range(2))
    assert again.headers["idempotent-replayed"] == "true"
    assert again.body == first.body


# ---- errors


def test_an_invalid_request_is_refused_in_the_protocols_envelope(
    client: Client, bearer_client: Client
) -> None:
    refused = events(client, longest=0)
    assert refused.status == 400
    assert refused.json["type"] == "error"
    assert refused.json["request_id"] == refused.headers["x-request-id"]
    assert "longest" in refused.json["error"]["words"]
    assert vectors(bearer_client, input=5).error["param"] == "input"


def test_so_is_a_wrong_key(installation: Installation) -> None:
    refused = events(events_client(installation.url, "ck_live_nonsense"))
    assert (refused.status, refused.json["error"]["kind"]) == (401, "other")
    assert refused.headers["content-length"] == str(len(refused.body))


BEFORE_ITS_CODE = [
    (b"GET /v1/events HTTP/1.1\r\nHost: a\r\n\r\n", 405),
    (b"GET /v1/events/unknown?a=/ HTTP/1.1\r\nHost: a\r\n\r\n", 404),
    (b"DELETE /openai/v1/events/unknown HTTP/1.1\r\nHost: a\r\n\r\n", 404),
    (b"POST /v1/events HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", 401),
    (b"POST /v1/events HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n", 413),
    (b"POST /v1/events?a=/ HTTP/1.1\r\n\r\n", 400),
    (b"POST /v1/events HTTP/1.1\r\nHost: a\r\nx-api-key: a\r\nx-api-key: b\r\n\r\n", 400),
    (b"POST /v1/events HTTP/1.1\r\nHost: a\r\nx-events-key: a\r\nx-events-key: b\r\n\r\n", 400),
    (b"POST /v1/events HTTP/1.1\r\nHost: a\r\nContent-Length: a\r\n\r\n", 400),
    (b"POST /v1/events HTTP/1.1\r\nHost: a\r\nA: %b\r\n\r\n" % (b"a" * 20_000), 431),
    (
        b"POST /v1/events/unknown HTTP/1.1\r\nHost: a\r\nContent-Length: 70000\r\n\r\n%b" % (b"a" * 70_000),
        413,
    ),
]


@pytest.mark.parametrize(("request_bytes", "status"), BEFORE_ITS_CODE)
def test_so_is_what_fails_before_its_code_runs(
    installation: Installation, request_bytes: bytes, status: int
) -> None:
    with closing(socket.create_connection(("127.0.0.1", installation.port), timeout=15)) as connection:
        connection.sendall(request_bytes)
        response = HTTPResponse(connection)
        response.begin()
        body = json.loads(response.read())
    assert response.status == status
    assert (body["type"], body["error"]["kind"]) == ("error", "other")
    assert body["request_id"] == response.headers["x-request-id"] == response.headers["events-request-id"]


def test_so_are_two_different_keys(client: Client) -> None:
    refused = client.send("POST", "/v1/events", b"{}", events_authorization="Token ck_live_other")
    assert refused.status == 400
    assert refused.json["error"]["words"] == (
        "The headers x-events-key and Events-Authorization hold different keys. Send one key."
    )


@pytest.mark.parametrize("stream", [False, True])
def test_so_is_a_failure_before_the_first_byte(client: Client, stream: bool) -> None:
    failing = [{"text": "[sandbox error=overloaded]"}]
    refused = events(client, turns=failing, stream=stream)
    assert refused.status == 529
    assert refused.json["error"]["kind"] == "overloaded"


def test_a_failure_in_mid_stream_is_an_event(client: Client, installation: Installation) -> None:
    answer = events(client, stream=True, turns=[{"text": "[sandbox tokens=4 error=overloaded after=2]"}])
    assert [kind for kind, _ in events_of(answer.body)] == ["start", "text", "text", "error"]
    assert events_of(answer.body)[-1][1]["request_id"] == answer.headers["x-request-id"]
    receipt = installation.receipt(answer.headers["x-generation-id"])
    assert (receipt["outcome"], receipt["endpoint"]) == ("failed", "events")


def test_the_dialects_of_others_change_nothing(client: Client) -> None:
    body = json.dumps({"model": "sandbox", "turns": TURNS, "longest": 50}).encode()
    answer = client.send("POST", "/llama/v1/events", body)
    assert answer.json["blocks"][0]["type"] == "text"
