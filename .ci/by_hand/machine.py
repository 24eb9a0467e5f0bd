"""The bare Debian on which this program runs: its shell, files and waits."""

import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

PROJECT = Path("/srv/chatapi")
READY_WITHIN_S = 60
PASSWORD = secrets.token_hex(12)
"""The password of roles, servers and the operator."""


def run(command: str, *, folder: str | Path = PROJECT, answers: str = "", online: bool = False) -> str:
    """Return the output of commands in a root shell; exit if one fails. `online`: with the network."""
    words = ["bash", "-euo", "pipefail", "-c", command]
    if online:
        # This machine's own network is loopback only; `.ci/by_hand` has passed its host's as descriptor 9.
        words = ["nsenter", "--net=/proc/self/fd/9", *words]
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            input=answers,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=600 if online else 120,
            check=False,
            pass_fds=(9,),
            start_new_session=True,  # without a terminal, commands ask on stdin
        )
    except subprocess.TimeoutExpired as late:
        fail(f"{command}\nhas not ended within {late.timeout:.0f} s")
    if done.returncode:
        fail(f"{command}\n{done.stdout}")
    return done.stdout


def wait_for(condition: Callable[[], object], what: str, within_s: float = READY_WITHIN_S) -> None:
    """Wait until the condition holds; exit if it does not in time."""
    until = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > until:
            fail(f"waited {within_s:.0f} s for {what}\n{run('journalctl --lines 40 --no-pager')}")
        time.sleep(0.2)


def append(path: str | Path, text: str) -> None:
    with Path(path).open("a") as file:
        file.write(text)


def replace_once(text: str, written: str, ours: str) -> str:
    """Replace a part of the text; exit unless the part is there exactly once."""
    if text.count(written) != 1:
        fail(f"{text.count(written)} times in the file: {written}")
    return text.replace(written, ours)


def expect(wanted: str, said: str) -> None:
    """Exit unless the text contains `wanted`."""
    if wanted not in said:
        fail(f"expected {wanted!r} in: {said}")


def fail(problem: str) -> NoReturn:
    sys.exit(f"WRONG  {problem}")
