"""Tickets: what was posted with a key is streamed once to the client that has the ticket, and charged to that
key.
"""

import hashlib
import json
import time
from typing import Any, cast

import msgspec
import pytest
from redis import Redis

from chatapi.checks.numbers import WEEK_MS
from tests.chatapi.http_client import Answer, Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

BODY = json.dumps({"model": "five", "messages": [{"role": "user", "content": "hello"}]}).encode()


def issue(client: Client, dialect: str = "bitseek", body: bytes = BODY) -> Answer:
    return client.send("POST", f"/{dialect}/v1/chat/completions/tickets", body)


def fetch(installation: Installation, url: str) -> Answer:
    """Fetch the URL as an EventSource does: without a key."""
    return Client(installation.url, "").send(
        "GET", url, authorization=None, content_type=None, accept="text/event-stream"
    )


def test_a_ticket_streams_its_request(client: Client, installation: Installation) -> None:
    ticket = issue(client)
    assert ticket.status == 201
    assert ticket.json["object"] == "chat.completion.ticket"
    assert 0 < ticket.json["expires_at"] - time.time() <= 60
    answer = fetch(installation, ticket.json["url"])
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    last = json.loads(answer.body.decode().split("\n\n")[-2].removeprefix("data: "))
    assert (last["object"], last["choices"][0]["finish_reason"]) == ("chat.completion", "stop")
    receipt = installation.receipt(last["id"])
    assert (receipt["outcome"], receipt["usage"]) == ("completed", last["usage"])


def test_an_upstream_that_streams_as_requested_streams_a_ticket(
    client: Client, installation: Installation
) -> None:
    deployment = (
        f'engine = "openai_compatible", base_url = "{installation.upstream_url}/v1", '
        'upstream_model = "as-requested", streaming = "as_requested"'
    )
    installation.load_catalog(
        '[[models]]\nid = "as-requested"\ncontext_window = 8192\nmax_output_tokens = 64\n'
        'price = { input_per_mtok = "1", output_per_mtok = "2" }\n'
        f"deployments = [{{ {deployment} }}]\n"
    )
    installation.script("as-requested")
    body = BODY.replace(b'"five"', b'"as-requested"')
    answer = fetch(installation, issue(client, "openai", body).json["url"])
    assert answer.body.endswith(b"data: [DONE]\n\n")
    [call] = installation.calls("as-requested")
    assert call["body"]["stream"] is True


@pytest.mark.parametrize("dialect", ["openai", "opentoken", "llama"])
def test_the_stream_is_in_the_dialect_that_was_chosen(
    client: Client, installation: Installation, dialect: str
) -> None:
    url = issue(client, dialect).json["url"]
    assert url.startswith(f"/{dialect}/v1/")
    assert fetch(installation, url).body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("dialect", ["openai", "llama"])
def test_a_ticket_s_stream_may_have_usage(client: Client, installation: Installation, dialect: str) -> None:
    body = json.dumps(json.loads(BODY) | {"stream_options": {"include_usage": True}}).encode()
    answer = fetch(installation, issue(client, dialect, body).json["url"])
    last, done = answer.body.decode().split("\n\n")[-3:-1]
    assert done == "data: [DONE]"
    assert json.loads(last.removeprefix("data: "))["usage"]["completion_tokens"] == 5


def test_a_ticket_is_good_once(client: Client, installation: Installation) -> None:
    url = issue(client).json["url"]
    assert fetch(installation, url).status == 200
    again = fetch(installation, url)
    assert (again.status, again.error["code"]) == (401, "invalid_ticket")


@pytest.mark.parametrize("secret", ["x", "", "%00", "a" * 5_000])
def test_no_other_ticket_is_good(installation: Installation, secret: str) -> None:
    answer = fetch(installation, f"/v1/chat/completions?ticket={secret}")
    assert answer.status in {401, 405}
    assert answer.error["code"] in {"invalid_ticket", "method_not_allowed"}


def test_a_ticket_needs_a_key_and_a_valid_request(client: Client, installation: Installation) -> None:
    assert Client(installation.url, "x").send("POST", "/v1/chat/completions/tickets", BODY).status == 401
    wrong = client.send("POST", "/v1/chat/completions/tickets", b'{"model": "five"}')
    assert (wrong.status, wrong.error["param"]) == (400, "messages")
    unknown = client.send("POST", "/v1/chat/completions/tickets", BODY.replace(b"five", b"nobody"))
    assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")


def kept_ticket(redis: Redis, ticket: dict[str, Any]) -> tuple[str, list[Any]]:
    """Return the key of a ticket in Redis and what it holds."""
    key = f"chatapi:ticket:{hashlib.sha256(ticket['id'].encode()).hexdigest()}"
    return key, msgspec.msgpack.decode(cast(bytes, redis.get(key)))


@pytest.mark.parametrize(
    ("place", "later"),
    [(3, b'{"request":"dream"}'), (5, ["five", True]), (0, 7)],
    ids=["its request", "its summary", "all of it"],
)
def test_a_ticket_that_another_version_has_written_is_refused(
    client: Client, installation: Installation, place: int, later: bytes | int
) -> None:
    ticket = issue(client).json
    with installation.open_valkey() as redis:
        key, kept = kept_ticket(redis, ticket)
        kept[place] = later
        assert redis.set(key, msgspec.msgpack.encode(kept), xx=True, keepttl=True)
    answer = fetch(installation, ticket["url"])
    assert (answer.status, answer.error["code"]) == (401, "invalid_ticket")


def test_what_is_wrong_with_a_request_is_no_stream_where_a_ticket_is_asked_for(client: Client) -> None:
    """This holds also for the dialect that reports errors inside a stream."""
    wrong = client.send("POST", "/llama/v1/chat/completions/tickets", b'{"model": "five", "stream": true}')
    assert (wrong.status, wrong.error["param"]) == (400, "messages")


def test_what_unused_tickets_of_a_key_take_up_is_bounded(client: Client, installation: Installation) -> None:
    """Rate limits do not count unused tickets: without a bound, one key could fill Redis for all."""
    key = installation.create_key("--organization", "Hoarders")
    large = json.dumps({"model": "five", "messages": [{"role": "user", "content": "x" * 900_000}]}).encode()
    with installation.another_web(
        CHATAPI_MAX_BODY_BYTES="1000000", CHATAPI_TICKET_TTL_MS=str(WEEK_MS)
    ) as web:
        hoarder, others = Client(web.url, key), Client(web.url, client.key)
        tickets = [hoarder.send("POST", "/v1/chat/completions/tickets", large) for _ in range(5)]
        assert [ticket.status for ticket in tickets] == [201] * 4 + [429]
        assert tickets[-1].error["code"] == "rate_limit_exceeded"
        assert 0 < int(tickets[-1].headers["retry-after"]) <= WEEK_MS / 1_000
        assert others.send("POST", "/v1/chat/completions/tickets", large).status == 201
        assert fetch(web, tickets[0].json["url"]).status == 200
        assert hoarder.send("POST", "/v1/chat/completions/tickets", large).status == 201


def test_a_ticket_of_a_key_that_was_revoked_meanwhile_is_refused(installation: Installation) -> None:
    key = installation.create_key("--organization", "Revoked")
    url = issue(Client(installation.url, key)).json["url"]
    revoke = "from accounts.models import APIKey; from django.utils import timezone; "
    revoke += f"APIKey.objects.filter(public={key.split('_')[2]!r}).update(revoked_at=timezone.now())"
    installation.shell(revoke)
    assert fetch(installation, url).status == 401
