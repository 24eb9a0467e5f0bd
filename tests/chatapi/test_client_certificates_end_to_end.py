"""A project that needs client certificates, on the hot routes: each protocol's refusal and what it costs,
changes, streams, tickets, and the log.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from chatapi.web.kinds import KINDS
from tests.bad_input.bodies import CHAT, TICKETS, body_for, with_member
from tests.chatapi.http_client import Client
from tests.chatapi.test_allowed_ips_end_to_end import GETS, path_of
from tests.client_certificates import HEADER, SETTINGS, make, make_key
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

CA = make("authority")
SENT = CA.issue().header
OTHERS = make("authority").issue().header
CODE = "certificate_required"
CHANGE = """
from accounts import certificates
from accounts.models import Certificate
(row,) = Certificate.objects.all()
certificates.{verb}(row.organization_id, [row], row.organization.projects.get())
"""
COUNTED = """
import json
from usage.models import Generation, RefusedRequests
rows = RefusedRequests.objects.filter(api_key__name="certified")
print(json.dumps([[row.status, row.code, row.requests > 5] for row in rows]))
"""


@pytest.fixture(scope="module")
def key(installation: Installation) -> str:
    return make_key(installation, CA)


@pytest.fixture(scope="module")
def web(installation: Installation) -> Iterator[Installation]:
    """Run a web process to which every client here is a proxy that passes on certificates."""
    proxied = {"CHATAPI_TRUSTED_PROXIES": "127.0.0.1", "CHATAPI_CLIENT_CERTIFICATE_HEADER": HEADER}
    with installation.another_web(**proxied) as web:
        yield web


@pytest.fixture
def client(web: Installation, key: str) -> Client:
    return Client(web.url, key)


@pytest.mark.parametrize("name", [kind.name for kind in KINDS])
def test_every_hot_route_needs_it(client: Client, name: str) -> None:
    method = "GET" if name in GETS else "POST"
    for sent, words in ((None, "none was sent"), (OTHERS, "no active certificate")):
        answer = client.send(method, path_of(name), None if method == "GET" else b"{}", client_cert=sent)
        error = answer.json["error"]
        assert answer.status == 401
        assert words in error["message"]
        if name in {"messages", "count"}:
            assert (error["type"], error["details"]) == ("authentication_error", {"error_code": CODE})
        else:
            assert error["code"] == CODE
            assert answer.headers["www-authenticate"] == "Bearer"
    # With it, the request gets further: to its body or to what it names.
    answer = client.send(method, path_of(name), None if method == "GET" else b"{", client_cert=SENT)
    assert answer.status in {400, 404}


@pytest.mark.parametrize("is_stream", [False, True])
def test_requests_and_streams_are_served_with_it(client: Client, is_stream: bool) -> None:
    body = with_member(body_for(CHAT), "stream", json.dumps(is_stream))
    answer = client.send("POST", CHAT, body, client_cert=SENT)
    assert answer.status == 200


def test_a_header_counts_from_a_trusted_proxy_only(
    installation: Installation, client: Client, key: str
) -> None:
    direct = Client(installation.url, key)
    for name in ("client_cert", "x_forwarded_client_cert", "ssl_client_cert"):
        answer = direct.send("POST", CHAT, body_for(CHAT), **{name: SENT})
        assert (answer.status, answer.json["error"]["code"]) == (401, CODE)
        assert "did not come through a proxy" in answer.json["error"]["message"]
    for name in ("x_forwarded_client_cert", "ssl_client_cert"):
        assert client.send("POST", CHAT, body_for(CHAT), **{name: SENT}).status == 401


def test_two_headers_are_none(client: Client) -> None:
    answer = client.send("POST", CHAT, body_for(CHAT), client_cert=f"{SENT}, {SENT}")
    assert "is not one X.509 certificate" in answer.json["error"]["message"]


def test_a_change_holds_within_a_second_and_streams_go_on(installation: Installation, client: Client) -> None:
    def status() -> int:
        return client.send("POST", CHAT, body_for(CHAT)).status

    assert status() == 401
    installation.shell(SETTINGS + CHANGE.format(verb="deactivate"))
    wait_for(lambda: status() == 200, "the change", timeout_s=5)
    with client.asking("steady", stream=True, max_tokens=200) as exchange:
        texts = exchange.texts()
        next(texts)
        installation.shell(SETTINGS + CHANGE.format(verb="activate"))
        wait_for(lambda: status() == 401, "the change", timeout_s=5)
        assert len(list(texts)) > 50


def test_a_ticket_is_made_with_it_and_used_without(client: Client) -> None:
    assert client.send("POST", TICKETS, body_for(CHAT)).status == 401
    url = client.send("POST", TICKETS, body_for(CHAT), client_cert=SENT).json["url"]
    assert client.send("GET", url, authorization=None, content_type=None).status == 200


def test_refusals_are_counted_and_no_certificate_is_logged(
    installation: Installation, client: Client
) -> None:
    assert client.send("POST", CHAT, body_for(CHAT), client_cert=OTHERS).status == 401

    def counts() -> Any:
        return json.loads(installation.shell(COUNTED))

    wait_for(lambda: [401, CODE, True] in counts(), "the counts", timeout_s=20)
    for log in installation.folder.rglob("*.log"):
        text = log.read_text(errors="replace")
        assert SENT[40:100] not in text
        assert OTHERS[40:100] not in text
