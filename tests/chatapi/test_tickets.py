"""Tickets: what was posted with a key is streamed once to whoever comes with the ticket, and charged to that key."""

import json
import time

import pytest

from tests.chatapi.http_client import Answer, Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

BODY = json.dumps({"model": "five", "messages": [{"role": "user", "content": "hello"}]}).encode()


def issue(client: Client, dialect: str = "bitseek") -> Answer:
    return client.send("POST", f"/{dialect}/v1/chat/completions/tickets", BODY)


def fetch(installation: Installation, url: str) -> Answer:
    """As an EventSource does: without a key."""
    return Client(installation.url, "").send("GET", url, authorization=None, content_type=None, accept="text/event-stream")


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


@pytest.mark.parametrize("dialect", ["openai", "opentoken", "llama"])
def test_the_stream_is_in_the_dialect_that_was_chosen(client: Client, installation: Installation, dialect: str) -> None:
    url = issue(client, dialect).json["url"]
    assert url.startswith(f"/{dialect}/v1/")
    assert fetch(installation, url).body.endswith(b"data: [DONE]\n\n")


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


def test_a_ticket_of_a_key_that_was_revoked_meanwhile_is_refused(installation: Installation) -> None:
    made = json.loads(installation.manage("createkey", "--organization", "Revoked", "--json").stdout)
    url = issue(Client(installation.url, made["key"])).json["url"]
    revoke = "from accounts.models import APIKey; from django.utils import timezone; "
    revoke += f"APIKey.objects.filter(pk={made['key'].split('_')[2]!r}).update(revoked_at=timezone.now())"
    done = installation.manage("shell", "--no-imports", "-c", revoke.replace("pk=", "public="))
    assert done.returncode == 0, done.stderr
    assert fetch(installation, url).status == 401
