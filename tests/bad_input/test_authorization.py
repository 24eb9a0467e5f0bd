"""What belongs to others does not exist.

Isolation of every route of the management API belongs to that API. Lists and receipts of a colleague:
tests/chatapi/test_api_receipts.py.
"""

import json

import pytest

from tests.bad_input.bodies import CHAT, TICKETS, body_for, refusal
from tests.chatapi.http_client import HELLO, Client, clients_of
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("bad_input"), pytest.mark.timeout(120)]

UNKNOWN_ID = "chatcmpl-0192f0c57e7a7cc398c4dc0c0c07398f"


@pytest.fixture
def stranger(installation: Installation) -> Client:
    """Return a client of another organization."""
    return Client(installation.url, installation.keys["stranger"])


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "POST", "PATCH"])
@pytest.mark.parametrize("suffix", ["", "/cancel", "/stream", "?starting_after=0"])
def test_another_tenants_generation_is_as_unknown_as_none(
    client: Client, stranger: Client, method: str, suffix: str
) -> None:
    generation_id = client.complete("five").headers["x-generation-id"]
    real, unknown = (
        stranger.send(method, f"/v1/generations/{name}{suffix}", b"{}")
        for name in (generation_id, UNKNOWN_ID)
    )
    assert real.status in {404, 405}
    assert (real.status, real.body.replace(generation_id.encode(), UNKNOWN_ID.encode())) == (
        unknown.status,
        unknown.body,
    )


OTHER_KIND = """
import json
from accounts.keys import create_key, get_or_create_project
project = get_or_create_project("Tests", "default")
kinds = {
    "test": (True, False), "test admin": (True, True), "live": (False, False), "live admin": (False, True),
}
made = {
    name: create_key(project, name=name, is_test=test, is_admin=admin)[1]
    for name, (test, admin) in kinds.items()
}
print(json.dumps(made))
"""


@pytest.fixture(scope="module")
def kinds(installation: Installation) -> dict[str, Client]:
    """Return clients with each kind of key of one project."""
    return clients_of(installation, OTHER_KIND)


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "POST", "PATCH"])
@pytest.mark.parametrize("suffix", ["", "/cancel", "/stream"])
@pytest.mark.parametrize(
    ("owner", "others"), [("live", ("test", "test admin")), ("test", ("live", "live admin"))]
)
def test_test_and_live_keys_of_a_project_see_nothing_of_each_other(
    kinds: dict[str, Client], owner: str, others: tuple[str, ...], method: str, suffix: str
) -> None:
    generation_id = kinds[owner].complete("five").headers["x-generation-id"]
    for other in others:
        real, unknown = (
            kinds[other].send(method, f"/v1/generations/{name}{suffix}", b"{}")
            for name in (generation_id, UNKNOWN_ID)
        )
        assert real.status in {404, 405}
        assert (real.status, real.body.replace(generation_id.encode(), UNKNOWN_ID.encode())) == (
            unknown.status,
            unknown.body,
        )
    assert kinds[f"{owner} admin"].send("GET", f"/v1/generations/{generation_id}").status == 200


def test_a_test_key_cannot_cancel_a_live_generation(kinds: dict[str, Client]) -> None:
    later = kinds["live"].send(
        "POST",
        CHAT,
        json.dumps({"model": "steady", "stream": True, "messages": HELLO}).encode(),
        prefer="respond-async",
    )
    path = f"/v1/generations/{later.json['id']}"
    try:
        assert kinds["test"].send("POST", f"{path}/cancel").status == 404
        assert kinds["live"].send("GET", path).json["state"] in {"admitted", "running"}
    finally:
        assert kinds["live"].send("POST", f"{path}/cancel").status == 202


FORMS = ["{hex}", "chatcmpl-{hex}", "cmpl-{hex}", "stream:chat:{hex}"]
FORMS += ["chatcmpl-{HEX}", "CHATCMPL-{hex}", "chatcmpl-{hex}%00", "chatcmpl-{hex}%20"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("prefix", ["", "/openai", "/bitseek"])
def test_no_spelling_of_an_id_gets_around_that(
    client: Client, stranger: Client, prefix: str, form: str
) -> None:
    digits = client.complete("five").headers["x-generation-id"].removeprefix("chatcmpl-")
    path = f"{prefix}/v1/generations/{form.format(hex=digits, HEX=digits.upper())}"
    assert refusal(stranger.send("GET", path)) == (404, "generation_not_found", "id")


def test_an_id_that_a_client_chooses_is_nobodys_generation(client: Client, stranger: Client) -> None:
    """Ids of clients are echoed, and never used to find a row."""
    generation_id = client.complete("five").headers["x-generation-id"]
    answer = stranger.send(
        "POST", CHAT, body_for(CHAT), x_request_id=generation_id, idempotency_key=generation_id
    )
    assert (answer.status, answer.headers["x-request-id"]) == (200, generation_id)
    assert answer.headers["x-generation-id"] != generation_id
    assert answer.json["id"] != generation_id


def test_a_ticket_is_charged_to_the_key_that_asked_for_it(client: Client, stranger: Client) -> None:
    url = client.send("POST", TICKETS, body_for(CHAT)).json["url"]
    answer = stranger.send("GET", url)
    assert answer.status == 200
    generation_id = answer.headers["x-generation-id"]
    assert refusal(stranger.send("GET", f"/v1/generations/{generation_id}"))[0] == 404
    assert client.send("GET", f"/v1/generations/{generation_id}").status == 200


@pytest.mark.parametrize(
    "query",
    ["?key_id=1", "?project_id=1", "?organization_id=1", "?user=admin", "?project__organization__name=Tests"],
)
def test_no_filter_widens_what_a_key_sees(stranger: Client, query: str) -> None:
    assert stranger.send("GET", f"/v1/key{query}").body == stranger.send("GET", "/v1/key").body
    assert stranger.send("GET", f"/v1/models{query}").body == stranger.send("GET", "/v1/models").body


@pytest.mark.parametrize("path", ["/v1/key", "/v1/models", "/v1/models/five"])
@pytest.mark.parametrize("method", ["PATCH", "PUT", "POST", "DELETE"])
def test_nothing_is_assigned_by_writing_to_what_only_reads(stranger: Client, method: str, path: str) -> None:
    before = stranger.send("GET", path).body
    body = json.dumps({"is_admin": True, "organization": "Tests", "budgets": [], "owned_by": "me"}).encode()
    assert refusal(stranger.send(method, path, body))[0] == 405
    assert stranger.send("GET", path).body == before


@pytest.mark.parametrize(
    "path", ["/admin/", "/admin/accounts/apikey/", "/admin/usage/generation/?api_key__digest__startswith=a"]
)
def test_a_key_does_not_open_the_pages(client: Client, path: str) -> None:
    answer = client.send("GET", path)
    assert (answer.status, answer.headers["location"].partition("?")[0]) == (302, "/admin/login/")


def test_a_test_key_reaches_no_upstream(installation: Installation) -> None:
    calls = len(installation.calls("five"))
    assert Client(installation.url, installation.keys["test"]).complete("five").status == 200
    assert len(installation.calls("five")) == calls
