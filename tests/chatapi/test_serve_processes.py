"""`manage.py serve --web N --worker N`: several processes behind one port, with real processes."""

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
from openai import OpenAI

from chatapi import __version__
from chatapi.serving.all_in_one import processes_for
from tests.chatapi.serve_process import Serve, Start, answers, start
from tests.installation import free_port

__all__ = ["start"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Run two web and two worker processes."""
    serve = Serve(tmp_path_factory.mktemp("state"), free_port(), "--web", "2", "--worker", "2")
    try:
        serve.wait_until_ready()
        yield serve
    finally:
        serve.kill()


def test_it_starts_that_many_of_each_on_one_port(pair: Serve) -> None:
    assert len(pair.children("web")) == len(pair.children("worker")) == 2
    # More than twice if a test before has killed one.
    started = f"starts role=web version={__version__} address=http://127.0.0.1:{pair.port} "
    assert pair.text.count(started) >= 2
    pair.wait_until(lambda: len(pair.children("reaper")) == 1)
    with client_of(pair) as client, ThreadPoolExecutor(16) as threads:
        assert all(threads.map(lambda _: answer(client), range(64)))
    with ExitStack() as stack:

        def each_has_some() -> bool:
            """Open more connections; one started again after an earlier test accepts a little later."""
            for _ in range(32):
                connection = stack.enter_context(closing(HTTPConnection("127.0.0.1", pair.port)))
                connection.request("GET", "/healthz")
                assert connection.getresponse().read()
            return all(connections(web, pair.port) for web in pair.children("web"))

        pair.wait_until(each_has_some)
    assert pair.run([sys.executable, "manage.py", "verifyledger"]).returncode == 0


@pytest.mark.parametrize("role", ["web", "worker"])
def test_one_that_dies_is_started_again_while_the_other_serves(pair: Serve, role: str) -> None:
    pair.wait_until(lambda: len(pair.children(role)) == 2)
    victim = pair.children(role)[0]
    os.kill(victim, signal.SIGKILL)
    with client_of(pair) as client:
        assert answer(client)
    pair.wait_until(lambda: victim not in pair.children(role) and len(pair.children(role)) == 2)
    assert f"{role} 1 was killed by SIGKILL; it is started again in 0.2 s." in pair.lines


def test_a_connection_waits_while_the_only_web_process_is_started_again(start: Start) -> None:
    serve = start("--web", "1", "--worker", "1")
    serve.wait_until_ready()
    os.kill(serve.child("web"), signal.SIGKILL)
    with client_of(serve) as client:
        assert answer(client)
    assert "web was killed by SIGKILL; it is started again in 0.2 s." in serve.lines


def test_ctrl_c_stops_them_all(start: Start) -> None:
    serve = start("--web", "2", "--worker", "2")
    serve.wait_until_ready()
    assert answers(serve, "/readyz")
    assert serve.stop() == 0
    assert serve.lines[-1] == "Stopped."
    assert not answers(serve, "/healthz")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--web", "0"], "--web '0' is not allowed. Use a number from 1 to 64."),
        (["--worker", "65"], "--worker '65' is not allowed. Use a number from 1 to 64."),
        (
            ["--only", "web", "--web", "2"],
            "--web and --worker belong to the whole service: leave out --only.",
        ),
        (["--fd", "0"], "--fd belongs to --only web."),
        (["--only", "worker", "--fd", "0"], "--fd belongs to --only web."),
    ],
)
def test_options_that_do_not_fit_are_one_line(start: Start, arguments: list[str], says: str) -> None:
    serve = start(*arguments)
    assert serve.wait() == 1
    assert serve.text == f"chatapi: {says}"


@pytest.mark.parametrize(
    ("cores", "web", "worker"), [(1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 2), (8, 2, 4), (16, 4, 8)]
)
def test_the_default_fits_the_cores(cores: int, web: int, worker: int) -> None:
    assert processes_for(cores) == (web, worker)


def client_of(serve: Serve) -> OpenAI:
    return OpenAI(base_url=f"http://127.0.0.1:{serve.port}/v1", api_key=serve.key, max_retries=0, timeout=30)


def answer(client: OpenAI) -> str:
    """Return the text of a short stream."""
    chunks = client.completions.create(model="sandbox", prompt="[sandbox tokens=8 delay_ms=5]", stream=True)
    return "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)


def connections(process_id: int, port: int) -> int:
    """Return the number of the process's open connections to this local port."""
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    established = "01"
    accepted = {
        f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{port:04X}") and row[3] == established
    }
    return sum(os.readlink(path) in accepted for path in Path(f"/proc/{process_id}/fd").iterdir())
