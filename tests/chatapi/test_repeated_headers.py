"""A header on several lines: one list where it takes a list (RFC 9110, section 5.3), refused where it takes
one value.
"""

import json
from collections.abc import Sequence
from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from tests.chatapi.http_client import HELLO, Answer, Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

CHAT = "/openai/v1/chat/completions"


def send(installation: Installation, method: str, path: str, name: str, lines: Sequence[str]) -> Answer:
    """Send a request with that header on this number of lines."""
    body = json.dumps({"model": "five", "messages": HELLO}).encode() if method == "POST" else b""
    usual = [
        ("Authorization", f"Bearer {installation.keys['live']}"),
        ("Content-Type", "application/json"),
        ("Content-Length", len(body)),
    ]
    with closing(HTTPConnection(urlsplit(installation.url).netloc, timeout=15)) as connection:
        connection.putrequest(method, path)
        for header, value in [*usual, *((name, line) for line in lines)]:
            connection.putheader(header, str(value))
        connection.endheaders(body)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())


@pytest.mark.parametrize("lines", [["respond-async", "wait=5"], ["wait=5", "respond-async"]])
def test_preferences_may_be_on_lines_of_their_own(installation: Installation, lines: list[str]) -> None:
    assert send(installation, "POST", CHAT, "Prefer", lines).status == 202


@pytest.mark.parametrize("lines", [["one", "two"], ["one", "one"], ["", "one"]])
def test_an_idempotency_key_is_sent_once(installation: Installation, lines: list[str]) -> None:
    refused = send(installation, "POST", CHAT, "Idempotency-Key", lines)
    assert (refused.status, refused.error["param"]) == (400, "Idempotency-Key")


@pytest.mark.parametrize(("name", "times"), [("x-api-key", 2), ("Authorization", 1)])
def test_a_key_is_sent_once(installation: Installation, name: str, times: int) -> None:
    refused = send(installation, "POST", CHAT, name, ["Bearer one"] * times)
    assert (refused.status, refused.error["code"]) == (400, "invalid_request")
    assert refused.error["message"] == "The headers Authorization and x-api-key may each be sent only once."


def test_a_position_is_sent_once(installation: Installation, client: Client) -> None:
    generation_id = client.complete("five").headers["x-generation-id"]
    refused = send(
        installation, "GET", f"/v1/generations/{generation_id}/stream", "Last-Event-ID", ["1-1", "2-1"]
    )
    assert (refused.status, refused.error["param"]) == (400, "Last-Event-ID")
