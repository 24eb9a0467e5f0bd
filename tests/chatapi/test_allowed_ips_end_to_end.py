"""A key with a list of IP addresses on the hot routes: each protocol's refusal and what it costs, trusted
proxies, changes, and tickets.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from chatapi.web.kinds import KINDS
from tests.bad_input.bodies import CHAT, TICKETS, body_for
from tests.chatapi.http_client import Client, clients_of
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

HERE, ELSEWHERE = "203.0.113.7", "198.51.100.1"
MAKE = """
import json
from accounts.keys import create_key, get_or_create_project
from accounts.models import RateLimit
project = get_or_create_project("Addresses", "default")
lists = {"elsewhere": ["203.0.113.0/24"], "limited": ["203.0.113.0/24"], "here": ["127.0.0.1"], "moved": []}
lists |= {"proxied": ["203.0.113.7", "2001:db8::/32"]}
made = {name: create_key(project, name=f"ips-{name}", allowed_ips=ips) for name, ips in lists.items()}
RateLimit.objects.create(api_key=made["limited"][0], requests_per_minute=1)
print(json.dumps({name: secret for name, (_, secret) in made.items()}))
"""
COUNTED = """
import json
from usage.models import Generation, RefusedRequests
rows = RefusedRequests.objects.filter(api_key__name="ips-limited")
counted = [[row.status, row.code, row.requests] for row in rows]
print(json.dumps([counted, Generation.objects.filter(api_key__name="ips-limited").count()]))
"""
MOVE = "from accounts.models import APIKey; APIKey.objects.filter(name='ips-moved').update(allowed_ips={ips})"
GETS = {"response", "response_input", "resume"}


@pytest.fixture(scope="module")
def made(installation: Installation) -> dict[str, Client]:
    """Return clients whose keys only this module uses."""
    return clients_of(installation, MAKE)


@pytest.fixture(scope="module")
def proxied(installation: Installation) -> Iterator[str]:
    """Return the URL of a web process to which every client here is a trusted proxy."""
    with installation.another_web(CHATAPI_TRUSTED_PROXIES="127.0.0.1") as web:
        yield web.url


def path_of(name: str) -> str:
    pattern = next(kind.path for kind in KINDS if kind.name == name)
    for part in ("response_id", "generation_id"):
        pattern = pattern.replace(f"(?P<{part}>[^/]+)", "chatcmpl-0192f0c57e7a7cc398c4dc0c0c07398f")
    return f"/v1/{pattern}"


@pytest.mark.parametrize("name", [kind.name for kind in KINDS])
def test_every_hot_route_refuses_another_address(made: dict[str, Client], name: str) -> None:
    method = "GET" if name in GETS else "POST"
    answer = made["elsewhere"].send(method, path_of(name), None if method == "GET" else b"{}")
    error = answer.json["error"]
    if name in {"messages", "count"}:
        assert (answer.status, error["type"]) == (403, "permission_error")
        assert error["details"] == {"error_code": "ip_not_authorized"}
    else:
        assert (answer.status, answer.error["code"]) == (401, "ip_not_authorized")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert "your IP address, 127.0.0.1." in error["message"]


def test_a_listed_address_is_served(made: dict[str, Client]) -> None:
    assert made["here"].complete("five").status == 200


def test_a_header_that_a_client_forges_changes_nothing(made: dict[str, Client]) -> None:
    for name, value in (("x_forwarded_for", HERE), ("x_real_ip", HERE), ("forwarded", f"for={HERE}")):
        assert made["elsewhere"].send("GET", "/v1/key", None, **{name: value}).status == 401
        assert made["elsewhere"].send("POST", CHAT, body_for(CHAT), **{name: value}).status == 401


@pytest.mark.parametrize(
    ("forwarded_for", "status"),
    [
        (HERE, 200),
        (f"::ffff:{HERE}", 200),
        ("2001:db8:7::1", 200),
        (ELSEWHERE, 401),
        (f"{HERE}, {ELSEWHERE}", 401),
        (f"{ELSEWHERE}, {HERE}", 200),
        (None, 401),
    ],
)
def test_a_trusted_proxy_names_the_address_on_hot_routes(
    made: dict[str, Client], proxied: str, forwarded_for: str | None, status: int
) -> None:
    client = Client(proxied, made["proxied"].key)
    # Twice: the second one finds the caller in the cache, as those of other addresses do.
    for _ in range(2):
        answer = client.send("POST", CHAT, body_for(CHAT), x_forwarded_for=forwarded_for)
        assert answer.status == status


def test_a_refusal_takes_no_limit_charges_nothing_and_is_counted(
    installation: Installation, made: dict[str, Client], proxied: str
) -> None:
    for _ in range(3):
        assert made["limited"].complete("five").status == 401
    here = Client(proxied, made["limited"].key)
    answers = [here.send("POST", CHAT, body_for(CHAT), x_forwarded_for=HERE).status for _ in range(2)]
    assert answers == [200, 429]

    def counts() -> Any:
        return json.loads(installation.shell(COUNTED))

    wait_for(lambda: [401, "ip_not_authorized", 3] in counts()[0], "the counts", timeout_s=20)
    assert counts()[1] == 1


def test_a_change_holds_within_a_second_and_running_requests_go_on(
    installation: Installation, made: dict[str, Client]
) -> None:
    client = made["moved"]
    with client.asking("steady", stream=True, max_tokens=200) as exchange:
        texts = exchange.texts()
        next(texts)
        installation.shell(MOVE.format(ips=[HERE]))
        wait_for(lambda: client.complete("five").status == 401, "the change", timeout_s=5)
        assert len(list(texts)) > 50
    installation.shell(MOVE.format(ips=["127.0.0.0/8"]))
    wait_for(lambda: client.complete("five").status == 200, "the change", timeout_s=5)


def test_a_ticket_is_for_any_address(made: dict[str, Client], proxied: str) -> None:
    """Its request came from an allowed address; a browser elsewhere fetches the answer, without the key."""
    client = Client(proxied, made["proxied"].key)
    assert client.send("POST", TICKETS, body_for(CHAT), x_forwarded_for=ELSEWHERE).status == 401
    url = client.send("POST", TICKETS, body_for(CHAT), x_forwarded_for=HERE).json["url"]
    answer = client.send("GET", url, authorization=None, content_type=None, x_forwarded_for=ELSEWHERE)
    assert answer.status == 200
