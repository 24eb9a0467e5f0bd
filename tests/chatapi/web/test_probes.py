"""The probes: `/healthz` and `/readyz`, asked of the whole ASGI application."""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from channels.testing import HttpCommunicator
from django.db import connection, connections
from pytest_django.fixtures import Settings

from chatapi.concurrency import CachedValue
from chatapi.web import probes
from tests.chatapi.worker.processes import Valkey

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def valkey(tmp_path: Path, settings: Settings) -> Iterator[Valkey]:
    """Start the Valkey that the settings name."""
    with Valkey(tmp_path) as server:
        settings.STREAMS_URL = settings.BROKER_URL = f"unix://{server.socket}"
        yield server


@pytest.fixture(autouse=True)
def fresh_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the states that another test has read."""
    monkeypatch.setattr(probes, "_answering", CachedValue(probes._ask_all))


async def ask(path: str, method: str = "GET", host: str = "localhost", **headers: str) -> dict[str, Any]:
    """Return the answer of the application, its headers by name."""
    from chatapi.asgi import application

    sent = [
        (b"host", host.encode()),
        *((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()),
    ]
    communicator = HttpCommunicator(application, method, path, headers=sent)
    answer: dict[str, Any] = await communicator.get_response(timeout=10)
    return answer | {"headers": dict(answer["headers"])}


@pytest.mark.parametrize("path", ["/healthz", "/health"])
async def test_it_lives(path: str) -> None:
    answer = await ask(path)
    assert (answer["status"], answer["body"]) == (200, b"ok")
    assert answer["headers"][b"cache-control"] == b"no-store"


async def test_it_is_ready_when_everything_answers(valkey: Valkey) -> None:
    answer = await ask("/readyz")
    assert json.loads(answer["body"]) == {"ready": True, "serving": True, "database": True, "redis": True}
    assert answer["status"] == 200


async def test_it_is_not_ready_without_redis(settings: Settings, tmp_path: Path) -> None:
    settings.STREAMS_URL = settings.BROKER_URL = f"unix://{tmp_path}/nobody.sock"
    answer = await ask("/readyz")
    found = json.loads(answer["body"])
    assert (answer["status"], found["redis"], found["database"]) == (503, False, True)


@pytest.mark.parametrize("away", [0, 1])
async def test_one_of_several_servers_of_streams_suffices(
    valkey: Valkey, settings: Settings, tmp_path: Path, away: int
) -> None:
    nobody = f"unix://{tmp_path}/nobody.sock"
    settings.STREAMS_URL = ",".join(
        [nobody, settings.BROKER_URL] if away == 0 else [settings.BROKER_URL, nobody]
    )
    answer = await ask("/readyz")
    found = json.loads(answer["body"])
    assert (answer["status"], found["redis"]) == (200, True)
    assert found["stream_servers"] == [away != 0, away != 1]


async def test_it_is_not_ready_without_the_broker_or_any_server_of_streams(
    valkey: Valkey, settings: Settings, tmp_path: Path
) -> None:
    there, nobody = settings.BROKER_URL, f"unix://{tmp_path}/nobody.sock"
    settings.STREAMS_URL = f"{nobody},{nobody}-either"
    assert (await ask("/readyz"))["status"] == 503
    settings.BROKER_URL, settings.STREAMS_URL = nobody, f"{there},{nobody}-either"
    probes._answering = CachedValue(probes._ask_all)
    assert (await ask("/readyz"))["status"] == 503


@pytest.mark.parametrize("away", ["redis", "database"])
async def test_a_dependency_that_never_answers_does_not_keep_it_waiting(
    valkey: Valkey, settings: Settings, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as new_threads:
        port = silent.getsockname()[1]
        if away == "redis":
            settings.STREAMS_URL = settings.BROKER_URL = f"redis://127.0.0.1:{port}"
        else:
            place = {"HOST": "127.0.0.1", "PORT": port, "USER": "chatapi", "NAME": "chatapi", "OPTIONS": {}}
            postgresql = {**connection.settings_dict, "ENGINE": "django.db.backends.postgresql", **place}
            monkeypatch.setitem(connections.settings, "default", postgresql)
            # The others have their connections.
            monkeypatch.setattr(probes, "_threads", new_threads)
        began_at = time.monotonic()
        answer = await ask("/readyz")
        assert time.monotonic() - began_at < 2, "it waits for 1 s, and a busy machine takes its time"
        found = json.loads(answer["body"])
        assert (answer["status"], found["redis"], found["database"]) == (
            503,
            away != "redis",
            away != "database",
        )
        silent.close()  # which ends the threads' waiting


async def test_it_is_not_ready_while_it_drains(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await ask("/readyz"))["status"] == 200
    monkeypatch.setattr(probes, "is_draining", lambda: True)
    answer = await ask("/readyz")
    assert (answer["status"], json.loads(answer["body"])["serving"]) == (503, False)


async def test_many_probes_share_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    async def look() -> dict[str, bool]:
        nonlocal looks
        looks += 1
        return {"database": True, "redis": True}

    monkeypatch.setattr(probes, "_answering", CachedValue(look))
    assert {(await ask("/readyz"))["status"] for _ in range(20)} == {200}
    assert looks <= 5


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_they_answer_under_any_host_and_never_repeat_it(valkey: Valkey, path: str) -> None:
    answer = await ask(path, host="evil.example")
    assert answer["status"] == 200
    assert "evil" not in str(answer)


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_a_head_request_gets_no_body(valkey: Valkey, path: str) -> None:
    answer = await ask(path, "HEAD")
    assert (answer["status"], answer["body"]) == (200, b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"])
@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_other_methods_are_refused(path: str, method: str) -> None:
    answer = await ask(path, method)
    assert (answer["status"], answer["headers"][b"allow"], answer["body"]) == (405, b"GET, HEAD", b"")


async def test_a_harmless_request_id_is_echoed_and_any_other_replaced() -> None:
    assert (await ask("/healthz", x_request_id="my_id-1"))["headers"][b"x-request-id"] == b"my_id-1"
    assert b"<" not in (await ask("/healthz", x_request_id="<script>"))["headers"][b"x-request-id"]


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_no_body_is_read(valkey: Valkey, path: str) -> None:
    from chatapi.asgi import application

    async def receive() -> Any:
        pytest.fail("a probe has no body")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-length", b"8000000")]
    scope: Any = {"type": "http", "method": "GET", "path": path, "headers": headers}
    await application(scope, receive, send)
    assert [message.get("status") for message in sent] == [200, None]
