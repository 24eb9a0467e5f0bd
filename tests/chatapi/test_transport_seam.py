"""A transport that only this installation has: its class and a row (`tests/transports/apps.py`) are all that
it takes, in the web process, the worker, the checks, the probes and the doctor.
"""

import json
from collections.abc import Iterator

import pytest
from redis import Redis

from chatapi.serving import embedded_valkey
from tests.chatapi.http_client import Client
from tests.installation import Installation, answers, wait_for
from tests.transports.apps import SCHEME

pytestmark = [pytest.mark.xdist_group("transports"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Start the server of the other transport, then all processes; the books must be right at the end."""
    folder = tmp_path_factory.mktemp("transports")
    own = folder / "own"
    own.mkdir()
    embedded_valkey.prepare(own)
    with Installation(folder, DJANGO_SETTINGS_MODULE="tests.transports.settings") as installation:
        installation.environment["CHATAPI_STREAMS_URL"] = f"{SCHEME}://{embedded_valkey.socket_path(own)}"
        installation.run("own", embedded_valkey.command(own))
        wait_for(lambda: answers(embedded_valkey.socket_path(own)), "the other transport's server")
        installation.start({})
        yield installation
        installation.verify()


@pytest.fixture
def client(installation: Installation) -> Client:
    return Client(installation.url, installation.keys["live"])


def chat(client: Client) -> str:
    """Stream an answer, and return its id."""
    message = {"role": "user", "content": "hello [sandbox tokens=3]"}
    body = {"model": "sandbox", "stream": True, "messages": [message]}
    answer = client.send("POST", "/v1/chat/completions", json.dumps(body).encode())
    assert (answer.status, answer.body.endswith(b"data: [DONE]\n\n")) == (200, True)
    return answer.headers["x-generation-id"]


def test_a_stream_comes_by_the_other_transport(client: Client, installation: Installation) -> None:
    generation_id = chat(client)
    assert installation.receipt(generation_id)["outcome"] == "completed"
    again = client.send("GET", f"/v1/generations/{generation_id}/stream")
    assert again.body.endswith(b"data: [DONE]\n\n")
    log = f"log:{generation_id.rpartition('-')[2]}"
    with (
        Redis(unix_socket_path=str(embedded_valkey.socket_path(installation.folder / "own"))) as own,
        installation.open_valkey() as shared,
    ):
        assert own.exists(f"other:{log}")
        assert not list(shared.scan_iter("*:log:*"))
        assert not list(own.scan_iter("chatapi:*")), "what all processes share is on the broker"


def test_probes_and_the_doctor_ask_it(client: Client, installation: Installation) -> None:
    assert client.send("GET", "/readyz").status == 200
    assert installation.manage("check", "--tag", "chatapi").returncode == 0
    found = installation.manage("doctor", "--no-upstreams").stdout
    assert "1 worker connected." in found
    assert "does not answer" not in found
