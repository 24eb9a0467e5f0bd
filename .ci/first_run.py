"""Does what README's first lines say, in a fresh clone: `make run`, paste the printed command, Ctrl-C.

python3 .ci/first_run.py
"""

# ruff: noqa: S603, S607, T201

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

READY_WITHIN_S = 300
STOPPED_WITHIN_S = 60
ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Exit with 1 and the service's own words when anything is not as promised."""
    with TemporaryDirectory(prefix="chatapi-first-run-") as folder:
        clone = Path(folder) / "chatapi"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        began_at = time.monotonic()
        lines: list[str] = []
        service = _make_run(clone)
        threading.Thread(target=_read, args=(service, lines), daemon=True).start()
        try:
            _wait_until_ready(service, lines)
            print(f"ready {time.monotonic() - began_at:.1f} s after `make run` in a fresh clone")
            _paste_curl(lines)
            _press_ctrl_c(service, lines)
        finally:
            if service.poll() is None:
                os.killpg(service.pid, signal.SIGKILL)


def _make_run(clone: Path) -> "subprocess.Popen[str]":
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    ours = ("CHATAPI_", "DATABASE_URL", "REDIS_URL", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    # A session of its own, as a terminal gives: Ctrl-C reaches make and all that it runs.
    return subprocess.Popen(
        ["make", "run", f"PORT={port}"],
        cwd=clone,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _read(service: "subprocess.Popen[str]", lines: list[str]) -> None:
    assert service.stdout is not None
    for line in service.stdout:
        lines.append(line.rstrip("\n"))


def _wait_until_ready(service: "subprocess.Popen[str]", lines: list[str]) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while not any(line.startswith("print(completion") for line in lines):
        if service.poll() is not None or time.monotonic() > deadline:
            _fail("`make run` did not get ready", lines)
        time.sleep(0.1)


def _paste_curl(lines: list[str]) -> None:
    command = next(line for line in lines if line.startswith("curl "))
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode or not done.stdout.rstrip().endswith("data: [DONE]"):
        _fail(f"the printed command failed: {command}\n{done.stdout}{done.stderr}", lines)


def _press_ctrl_c(service: "subprocess.Popen[str]", lines: list[str]) -> None:
    os.killpg(service.pid, signal.SIGINT)
    code = service.wait(STOPPED_WITHIN_S)
    # make itself always ends by the signal; what it runs must have ended cleanly before.
    if code not in {0, 130, -signal.SIGINT} or not any(re.fullmatch(r"Stopped\.", line) for line in lines):
        _fail(f"Ctrl-C ended it with {code}", lines)
    if any("Traceback" in line for line in lines):
        _fail("there was a traceback", lines)


def _fail(problem: str, lines: list[str]) -> None:
    sys.exit("\n  ".join([problem, *lines]))


if __name__ == "__main__":
    main()
