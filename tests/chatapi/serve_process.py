"""A `manage.py serve` for tests: started with a state folder of its own, read line by line, signalled by its
process id.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.installation import free_port

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 50
SETTINGS = ("CHATAPI_", "DATABASE_URL", "REDIS_URL", "PYTHONDONTWRITEBYTECODE")


class Serve:
    """The process, and what it has printed."""

    def __init__(self, state_dir: Path, port: int, *arguments: str, **environment: str) -> None:
        self.state_dir = state_dir
        self.port = port
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)
        }
        self.environment |= {"CHATAPI_STATE_DIR": str(state_dir), "CHATAPI_DRAIN_MS": "4000"} | environment
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "serve", "--port", str(port), *arguments],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        """Return the output so far."""
        return "\n".join(self.lines)

    @property
    def key(self) -> str:
        """Return the demo key of a first start."""
        found = re.search(r"API key +(ck_live_\w+)", self.text)
        assert found, self.text
        return found[1]

    def wait_until_ready(self) -> None:
        """Wait until it has printed the last line of its greeting."""
        self.wait_until(lambda: "print(completion" in self.text)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for the condition; fails with the output when it ends before, or takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.text
            assert self.process.poll() is None, self.text
            time.sleep(0.05)

    def wait(self) -> int:
        """Wait for its end; the exit code."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join()
        return code

    def stop(self) -> int:
        """Send SIGINT, as Ctrl-C does, and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def kill(self) -> None:
        """End it without a word, if it is still there; its children go with it."""
        self.process.kill()
        self.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def children(self, role: str) -> list[int]:
        """Return the process ids of `web`, `worker`, `reaper` or `valkey`."""
        mark = "valkey-server" if role == "valkey" else f"--only\0{role}\0"
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(child) for child in children if mark in _command_line(child)]

    def child(self, role: str) -> int:
        """Return the first of its process ids, or 0 if there is none."""
        return next(iter(self.children(role)), 0)

    def run(self, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the project's folder with the settings of this service."""
        return subprocess.run(
            command,
            cwd=ROOT,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def snippet(self, beginning: str) -> str:
        """Return the output from the line with this beginning to the next empty line."""
        start = next(number for number, line in enumerate(self.lines) if line.startswith(beginning))
        return "\n".join(self.lines[start:]).partition("\n\n")[0]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))


Start = Callable[..., Serve]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a `serve` in the test's folder."""
    started: list[Serve] = []

    def start(*arguments: str, folder: str = "state", port: int | None = None, **environment: str) -> Serve:
        started.append(Serve(tmp_path / folder, port or free_port(), *arguments, **environment))
        return started[-1]

    yield start
    for serve in started:
        serve.kill()


def answers(serve: Serve, path: str) -> bool:
    """Return whether a GET gives 200."""
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{serve.port}{path}"):
        return True
    return False


def _command_line(process_id: str) -> str:
    try:
        return Path(f"/proc/{process_id}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
