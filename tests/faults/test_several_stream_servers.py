"""Two servers of streams beside the broker: one that dies ends its own streams only."""

import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from chatapi.serving import embedded_valkey
from tests.chatapi.http_client import Client
from tests.fake_completion import WORDS
from tests.faults.bookkeeper import Bookkeeper
from tests.faults.conftest import MODELS, Ask
from tests.faults.listener import Listener
from tests.installation import Installation, answers, wait_for

pytestmark = pytest.mark.xdist_group("faults")

SERVERS = ("0", "1")


def folder_of(installation: Installation, server: str) -> Path:
    return installation.folder / server


def start(installation: Installation, server: str) -> None:
    folder = folder_of(installation, server)
    folder.mkdir(exist_ok=True)
    embedded_valkey.prepare(folder)
    installation.run(server, embedded_valkey.command(folder))
    wait_for(lambda: answers(embedded_valkey.socket_path(folder)), f"server {server}")


def listed(installation: Installation, *servers: str) -> dict[str, str]:
    """Return the environment of a process that knows these servers."""
    urls = [embedded_valkey.url(folder_of(installation, server)) for server in servers]
    return {"CHATAPI_STREAMS_URL": ",".join(urls)}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    settings = {"CHATAPI_QUEUE_TTL_MS": "20000", "CHATAPI_METRICS_TOKEN": "a-token-of-the-tests"}
    with Installation(tmp_path_factory.mktemp("several"), **settings) as installation:
        installation.environment |= listed(installation, *SERVERS)
        installation.folder.mkdir(exist_ok=True)
        for server in SERVERS:
            start(installation, server)
        installation.start(MODELS)
        installation.start_reaper()
        yield installation
        installation.verify()


@pytest.fixture
def installation(installed: Installation, bookkeeper: Bookkeeper) -> Iterator[Installation]:
    """Start all processes that the last test has killed; at the end the books are right."""
    for server in SERVERS:
        if server not in installed.processes:
            start(installed, server)
    installed.revive()
    wait_for(lambda: installed.get("/readyz")[1]["stream_servers"] == [True, True], "both servers")
    yield installed
    bookkeeper.close_the_books()


def server_of(answer: Listener) -> str:
    """Return the number of the server that the id names."""
    return answer.generation_id[-1]


def on_both(ask: Ask, model: str, tokens: int = 5) -> dict[str, list[Listener]]:
    """Return running streams by server: at least two on each, and ten in all."""
    for _ in range(20):
        streams = [ask(model).heard(tokens) for _ in range(10)]
        found = {server: [each for each in streams if server_of(each) == server] for server in SERVERS}
        if min(map(len, found.values())) >= 2:
            return found
    raise AssertionError("the ids do not spread")


def ends_alone(streams: list[Listener], code: str, since: float, within_s: float) -> None:
    """Check that each ends with this one error, in time."""
    for stream in streams:
        stream.end()
        assert (stream.ends, stream.is_done, stream.error["code"]) == (1, True, code)
        assert stream.ended_at - since < within_s


def completes(stream: Listener, tokens: int) -> None:
    """Check that it has the whole answer, and was charged for it."""
    stream.end()
    assert (stream.ends, stream.is_done) == (1, True)
    assert stream.words == (WORDS * 50)[:tokens]


def test_streams_are_spread_and_each_is_on_one_server(installation: Installation, ask: Ask) -> None:
    streams = on_both(ask, "a-second")
    for server in SERVERS:
        path = embedded_valkey.socket_path(folder_of(installation, server))
        with Redis(unix_socket_path=str(path), decode_responses=True) as redis:
            logs = {key.rpartition(":")[2] for key in redis.scan_iter("chatapi:log:*")}
            assert not list(redis.scan_iter("chatapi:limit*"))
        assert {log[-1] for log in logs} == {server}
        assert {each.generation_id.rpartition("-")[2] for each in streams[server]} <= logs
    for stream in streams["0"] + streams["1"]:
        completes(stream, 60)


@pytest.mark.parametrize("dying", SERVERS)
def test_the_death_of_a_server_ends_its_own_streams_only(
    installation: Installation, ask: Ask, dying: str
) -> None:
    [other] = set(SERVERS) - {dying}
    streams = on_both(ask, "five-seconds")
    installation.end(dying)
    killed_at = time.monotonic()
    new = [ask("five").end() for _ in range(6)]
    assert [(each.status, server_of(each), each.is_done) for each in new] == [(200, other, True)] * 6
    ends_alone(streams[dying], "stream_unavailable", killed_at, 7)
    for stream in streams[other]:
        completes(stream, 250)
    status, ready = installation.get("/readyz")
    assert (status, ready["stream_servers"]) == (200, [server != dying for server in SERVERS])
    assert f'chatapi_stream_server_up{{server="{dying}"}} 0.0' in metrics(installation)
    for stream in streams[dying]:
        receipt = installation.receipt(stream.generation_id)
        assert abs(receipt["usage"]["completion_tokens"] - len(stream.words)) <= 2  # a tick may be half done
    start(installation, dying)
    wait_for(lambda: server_of(ask("five").end()) == dying, "new streams on it", pause_s=0.2)
    assert installation.manage("doctor", "--no-upstreams").returncode == 0


def metrics(installation: Installation) -> str:
    text: str = installation.get("/metrics", "a-token-of-the-tests")[1]
    return text


def test_a_frozen_server_holds_up_no_stream_of_another(installation: Installation, ask: Ask) -> None:
    streams = on_both(ask, "five-seconds")
    installation.send("1", signal.SIGSTOP)
    frozen_at = time.monotonic()
    try:
        for stream in streams["0"]:
            completes(stream, 250)
            assert stream.ended_at - frozen_at < 10
        ends_alone(streams["1"], "stream_unavailable", frozen_at, 14)
        assert ask("five").end().is_done
    finally:
        installation.send("1", signal.SIGCONT)


def test_a_stream_is_read_again_and_cancelled_on_its_server(installation: Installation, ask: Ask) -> None:
    streams = on_both(ask, "steady")
    client = Client(installation.url, installation.keys["live"])
    for [stream, *_] in streams.values():
        path = f"/v1/generations/{stream.generation_id}"
        assert client.send("POST", f"{path}/cancel").status == 202
        stream.end()
        assert (stream.ends, stream.is_done) == (1, True)
        status, text = installation.get(f"{path}/stream?starting_after=1", installation.keys["live"])
        assert (status, text.count("[DONE]")) == (200, 1)
        assert json.dumps(stream.words[-1])[1:-1] in text
        assert installation.receipt(stream.generation_id)["outcome"] == "client_cancelled"
    for stream in streams["0"] + streams["1"]:
        client.send("POST", f"/v1/generations/{stream.generation_id}/cancel")
        stream.end()


def test_the_death_of_a_worker_is_noticed_on_both(installation: Installation, ask: Ask) -> None:
    streams = on_both(ask, "steady")
    installation.end("worker")
    ends_alone(streams["0"] + streams["1"], "worker_lost", time.monotonic(), 4)
    for stream in streams["0"] + streams["1"]:
        receipt = installation.receipt(stream.generation_id)
        assert receipt["usage"]["completion_tokens"] == len(stream.words)


def test_the_death_of_a_web_process_is_noticed_on_both(installation: Installation, ask: Ask) -> None:
    streams = on_both(ask, "steady")
    calls = len(installation.calls("steady"))
    installation.end("web")
    wait_for(
        lambda: all(call["is_peer_gone"] for call in installation.calls("steady")[calls - 10 :]),
        "the upstream to be cut off",
        timeout_s=9,
    )
    installation.start_web()
    for stream in streams["0"] + streams["1"]:
        assert installation.receipt(stream.generation_id)["outcome"] == "client_cancelled"


def test_a_process_starts_while_a_server_is_away_and_uses_it_later(
    installation: Installation, ask: Ask
) -> None:
    for name in ("web", "worker"):
        installation.end(name)
    installation.end("1")
    installation.start_worker()
    installation.start_web()
    assert server_of(ask("five").end()) == "0"
    start(installation, "1")
    wait_for(lambda: server_of(ask("five").end()) == "1", "new streams on it", pause_s=0.2)
    assert all(each.is_done for each in [ask("five").end() for _ in range(6)])


def test_a_server_is_added_in_a_rolling_update(installation: Installation, ask: Ask) -> None:
    start(installation, "2")
    longer = listed(installation, *SERVERS, "2")
    try:
        with installation.another_web(**longer) as new_web:
            streams = [ask("five", url=new_web.url) for _ in range(16)]
            left = "is left to another worker: CHATAPI_STREAMS_URL has no server 2"
            wait_for(lambda: left in installation.log("worker"), "a generation of the new server")
            installation.run("longer", [sys.executable, "manage.py", "serve", "--only", "worker"], **longer)
            installation.end("worker", signal.SIGTERM)
            for stream in streams:
                completes(stream, 5)
            found = next(stream for stream in streams if server_of(stream) == "2")
            path = f"/v1/generations/{found.generation_id}/stream"
            key = installation.keys["live"]
            assert (new_web.get(path, key)[0], installation.get(path, key)[0]) == (200, 503)
    finally:
        installation.end("longer", signal.SIGTERM)
        installation.end("2")
