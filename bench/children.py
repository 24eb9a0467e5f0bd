"""Starts a comparison's processes and stops each by its id, also when the comparison itself is killed."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import processes

PROJECT_FOLDER = Path(__file__).resolve().parent.parent
READY_SECONDS = 60
STOP_SECONDS = 40
"""More than the 30 s after which `serve` kills a web process that does not end."""


class ChildError(Exception):
    """A process failed; the message ends with the last lines of its log."""


@dataclass(frozen=True)
class Child:
    """A started process and the file that it writes to."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def assert_alive(self) -> None:
        """Raise ChildError if the process has ended."""
        if self.process.poll() is not None:
            raise self.error(f"ended with status {self.process.returncode}")

    def error(self, problem: str) -> ChildError:
        """Return an error that quotes the end of the log."""
        last_lines = self.log.read_text(errors="replace").splitlines()[-30:]
        return ChildError("\n  ".join([f"{self.name} {problem}", *last_lines]))


@contextmanager
def running(
    name: str,
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    project_folder: Path = PROJECT_FOLDER,
) -> Iterator[Child]:
    """Yield a process in a session of its own, which Ctrl-C does not reach, and stop it in the end."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            mortal(command),
            cwd=project_folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield Child(name, process, log)
    finally:
        stop(name, process)


def mortal(command: Sequence[str]) -> list[str]:
    """Return a command whose process gets SIGTERM when this process ends, even by SIGKILL (prctl(2),
    PR_SET_PDEATHSIG).
    """
    return ["setpriv", "--pdeathsig", "TERM", *command]


def stop(name: str, process: "subprocess.Popen[bytes]") -> None:
    """Send SIGTERM and wait; kill the processes of its tree that are left."""
    tree = processes.descendants(process.pid)
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"{name} did not stop within {STOP_SECONDS} s", file=sys.stderr)
    for pid in tree:
        if command := processes.command_line(pid):  # a process that has ended has none
            print(f"{name} left process {pid} behind: {command}", file=sys.stderr)
            os.kill(pid, signal.SIGKILL)


def wait_until_ready(
    child: Child, port: int, path: str, *, status: int = 200, seconds: float = READY_SECONDS
) -> None:
    """Wait until GET of this path is answered with this status; raises ChildError."""
    give_up_at = time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        child.assert_alive()
        if get_status(port, path) == status:
            return
        time.sleep(0.1)
    raise child.error(f"did not answer GET {path} with {status} within {seconds:.0f} s")


def get_status(port: int, path: str) -> int | None:
    """Return the status of one GET on this machine; None if nothing answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def free_port() -> int:
    """Return a port that no process listens on at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
