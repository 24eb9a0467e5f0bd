"""A rolling restart under load: every process is replaced, and no request fails, for clients that
keep connections, close them, or connect each time.
"""

import http.client
import json
import random
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from urllib.parse import urlsplit

import pytest

from tests.faults.balancer import Balancer
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("rolling"), pytest.mark.timeout(180)]

ENVIRONMENT = {"CHATAPI_LAME_DUCK_MS": "1500", "CHATAPI_DRAIN_MS": "12000", "CHATAPI_QUEUE_TTL_MS": "20000"}
LOOK_S = 0.2


class Caller(threading.Thread):
    """Sends one request after another; reuses a connection until the server says `Connection: close`."""

    def __init__(
        self, balancer: Balancer, key: str, *, is_kept: bool, says_close: bool = False, pause_s: float = 0
    ) -> None:
        super().__init__()
        self._balancer = balancer
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        if says_close:
            self._headers["Connection"] = "close"
        self._is_kept = is_kept
        self._pause_s = pause_s
        self._connection: http.client.HTTPConnection | None = None
        self.is_over = threading.Event()
        self.answers = 0
        self.failures: list[str] = []

    def run(self) -> None:
        while not self.is_over.is_set():
            try:
                self._ask()
                self.answers += 1
            except (OSError, http.client.HTTPException, AssertionError) as error:
                self.failures.append(repr(error))
                self._hang_up()
            self.is_over.wait(self._pause_s * random.uniform(0.5, 1.5))
        self._hang_up()

    def _ask(self) -> None:
        self._connection = self._connection or self._connect()
        is_streaming, model = random.random() < 0.7, random.choice(["five", "five", "a-second"])
        body = {"model": model, "messages": [{"role": "user", "content": "x"}], "stream": is_streaming}
        self._connection.request("POST", "/v1/chat/completions", json.dumps(body), self._headers)
        response = self._connection.getresponse()
        text = response.read()
        assert response.status == 200, (response.status, text)
        assert not is_streaming or (text.endswith(b"data: [DONE]\n\n") and b'"error"' not in text), text[
            -500:
        ]
        if response.will_close or not self._is_kept:
            self._hang_up()

    def _connect(self) -> http.client.HTTPConnection:
        """Open a connection to a ready web process, or to the next one if it refuses."""
        while True:
            address = urlsplit(self._balancer.choose()).netloc
            connection = http.client.HTTPConnection(address, timeout=30)
            with suppress(ConnectionRefusedError):
                connection.connect()
                return connection

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@pytest.mark.parametrize("is_patient", [False, True])
def test_no_request_fails_while_all_processes_are_replaced(
    installation: Installation, is_patient: bool
) -> None:
    pause_s = 1.2 if is_patient else 0.02
    with installation.another_web() as another:
        webs = [installation, another]
        balancer = Balancer(LOOK_S)
        for web in webs:
            balancer.add(web.url)
        key = installation.keys["live"]
        callers = [Caller(balancer, key, is_kept=True, pause_s=pause_s) for _ in range(4)]
        callers += [
            Caller(balancer, key, is_kept=False, says_close=says_close, pause_s=pause_s)
            for says_close in (False, True)
        ]
        for caller in callers:
            caller.start()
        try:
            for web in webs:
                time.sleep(0.5)
                assert web.end("web", signal.SIGTERM) == 0
                web.start_web()
            replace_worker(installation)
            installation.start_reaper()
            installation.end("reaper", signal.SIGTERM)
        finally:
            for caller in callers:
                caller.is_over.set()
            for caller in callers:
                caller.join()
            balancer.stop()
    assert [failure for caller in callers for failure in caller.failures] == []
    assert sum(caller.answers for caller in callers) > (20 if is_patient else 60)
    assert all(balancer.unready_answers[web.url] for web in webs)


def replace_worker(installation: Installation) -> None:
    """Start another worker beside the old one, which then ends."""
    installation.start_worker("worker-2")
    wait_for(partial(installation.is_ready_to_stop, "worker-2"), "the new worker")
    assert installation.end("worker", signal.SIGTERM) == 0
    installation.start_worker("worker")
    wait_for(partial(installation.is_ready_to_stop, "worker"), "the worker")
    assert installation.end("worker-2", signal.SIGTERM) == 0
