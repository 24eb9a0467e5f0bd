"""A follower of another key's stream may read while their own key is good: theirs ends, the other's
goes on.
"""

import json
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any

import pytest

from tests.chatapi.http_client import HELLO, Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

CHANGES = {
    "revoked": ("key.revoked_at = timezone.now()", "invalid_api_key"),
    "narrowed": ("key.scopes = ['completions']", "permission_denied"),
}
HELLO_TO: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": HELLO},
    "responses": {"input": "hello"},
}
FIND = (
    "from django.utils import timezone; from accounts.models import APIKey; "
    "key = APIKey.objects.get(public={public!r}); "
)


def shown(response: HTTPResponse) -> Iterator[str]:
    """Yield the data of each event as it comes."""
    while line := response.readline():
        if line.startswith(b"data: "):
            yield line[6:].decode().strip()


def followed_until(
    client: Client, installation: Installation, kind: str, path: str, change: str
) -> tuple[list[str], str]:
    """Return what a colleague reads at `path` until their key is changed, and the code of that change."""
    key = installation.create_key("--organization", "Tests", "--project", "default")
    body = json.dumps({"model": "steady", "stream": True} | HELLO_TO[kind]).encode()
    with client.exchange("POST", f"/v1/{kind}", body, {}) as own:
        generation_id = own.response.headers["x-generation-id"]
        path = path.format(generation_id)
        with Client(installation.url, key).exchange("GET", path, None, {}) as followed:
            data = shown(followed.response)
            next(data)
            act, code = CHANGES[change]
            script = FIND.format(public=key.split("_")[2]) + act + "; key.save()"
            installation.shell(script)
            rest = list(data)
    assert installation.receipt(generation_id)["outcome"] == "client_cancelled", (
        "it went on until its own client left"
    )
    return rest, code


@pytest.mark.parametrize("change", CHANGES)
def test_a_follower_gets_nothing_more_when_its_key_may_not_look(
    client: Client, installation: Installation, change: str
) -> None:
    path = "/v1/generations/{}/stream"
    (*_, error, end), code = followed_until(client, installation, "chat/completions", path, change)
    assert (json.loads(error)["error"]["code"], end) == (code, "[DONE]")


def test_the_follower_of_a_response_misses_nothing_if_it_returns_with_another_key(
    client: Client, installation: Installation
) -> None:
    path = "/v1/responses/{}?stream=true"
    data, code = followed_until(client, installation, "responses", path, "revoked")
    last, error, end = map(json.loads, data[-3:])
    assert (error["error"]["code"], end["type"]) == (code, "response.failed")
    assert last["sequence_number"] == error["sequence_number"] == end["sequence_number"]
