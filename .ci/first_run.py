"""Follows README's first lines in the fresh copy of the project that contains this file: `make run`, paste
the printed command, Ctrl-C; and `make run` again, which must still know the first key. Needs only Python's
own library.

python3 .ci/first_run.py
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import NoReturn, Self

READY_WITHIN_S = 300
STOPPED_WITHIN_S = 60
ROOT = Path(__file__).resolve().parent.parent
OURS = ("CHATAPI_", "DATABASE_URL", "REDIS_URL", "VIRTUAL_ENV")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}


def main() -> None:
    """Exit with status 1 and the service's output if anything differs from README."""
    with MakeRun() as first:
        key = first.key()
        if key is None:
            first.fail("the first `make run` printed no key")
        first.ask(key)
        first.press_ctrl_c()
    with MakeRun() as second:
        if second.key() is not None:
            second.fail("the second `make run` has forgotten the first")
        second.ask(key)
        second.press_ctrl_c()


class MakeRun:
    """A `make run` that is ready for requests in the block; killed if Ctrl-C has not ended it."""

    def __init__(self) -> None:
        """Start it on a free port."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self.lines: list[str] = []
        # A new session, as in a terminal: Ctrl-C reaches make and all processes that it has started.
        self.process = subprocess.Popen(
            ["make", "run", f"PORT={self.port}"],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def __enter__(self) -> Self:
        began_at = time.monotonic()
        while not any(line.startswith("print(completion") for line in self.lines):
            if self.process.poll() is not None or time.monotonic() > began_at + READY_WITHIN_S:
                self.fail("`make run` did not get ready")
            time.sleep(0.1)
        print(f"ready {time.monotonic() - began_at:.1f} s after `make run`")
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    def key(self) -> str | None:
        """Return the key that the service has printed; None after a start that was not the first."""
        found = re.search(r"API key +(ck_live_\w+)", "\n".join(self.lines))
        return found[1] if found else None

    def ask(self, key: str) -> None:
        """Stream an answer with Python's own client and, if curl is installed, with the printed command."""
        if not self._stream(key).endswith("data: [DONE]"):
            self.fail("the stream that Python's http.client got has no good end")
        if shutil.which("curl") is None:
            print(
                "streamed with Python's http.client; there is no curl here to paste the printed command for"
            )
            return
        command = next(line for line in self.lines if line.startswith("curl "))
        environment = ENVIRONMENT | {"CHATAPI_KEY": key}
        done = subprocess.run(
            ["sh", "-c", command], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode or not done.stdout.rstrip().endswith("data: [DONE]"):
            self.fail(f"the printed command failed: {command}\n{done.stdout}{done.stderr}")
        print("streamed with Python's http.client and with the printed curl command")

    def press_ctrl_c(self) -> None:
        """Send SIGINT, and check that the service ends cleanly."""
        os.killpg(self.process.pid, signal.SIGINT)
        code = self.process.wait(STOPPED_WITHIN_S)
        self.reader.join(STOPPED_WITHIN_S)
        # make always ends by the signal; the service must have ended cleanly before.
        if code not in {0, 130, -signal.SIGINT} or "Stopped." not in self.lines:
            self.fail(f"Ctrl-C ended it with {code}")
        if any("Traceback" in line for line in self.lines):
            self.fail("there was a traceback")

    def fail(self, problem: str) -> NoReturn:
        """Exit with the problem and with all that the service has printed."""
        self._kill()
        sys.exit("\n  ".join([problem, *self.lines]))

    def _stream(self, key: str) -> str:
        body = {"model": "sandbox", "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        return connection.getresponse().read().decode().rstrip()

    def _kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))


if __name__ == "__main__":
    main()
