"""The processes of chatapi, their settings and their restarts."""

import re
import urllib.request
from pathlib import Path

from by_hand.documents import OPERATIONS
from by_hand.machine import fail, run, wait_for

SETTINGS = Path("/etc/chatapi/env")
SET_ENVIRONMENT = OPERATIONS.quoted("set -a; . /etc/chatapi/env; set +a")
PROCESSES = ("worker1", "worker2", "reaper", "web1", "web2")


def run_with_settings(command: str) -> str:
    """Run commands with the settings in the environment, as the document says."""
    return run(f"{SET_ENVIRONMENT}\n{command}")


def doctor() -> str:
    """Return what doctor says; exit unless it ends as the document says."""
    command = OPERATIONS.block("manage.py createkey").splitlines()[1]
    said = run_with_settings(command)
    if OPERATIONS.quoted("0 wrong, 0 warnings") not in said.splitlines()[-1]:
        fail(said)
    return said


def change_settings(lines: str) -> None:
    """Write settings into the file, in place of those with the same names."""
    text = SETTINGS.read_text()
    for line in lines.strip().splitlines():
        name = line.partition("=")[0]
        text = re.sub(rf"^{name}=.*\n", "", text, flags=re.M) + f"{line}\n"
    SETTINGS.write_text(text)


def wait_for_processes() -> None:
    """Wait until both web processes are ready; exit unless all processes run."""
    wait_for(lambda: is_ready(8001) and is_ready(8002), "both web processes to be ready")
    run("systemctl is-active " + " ".join(f"chatapi@{name}" for name in PROCESSES))


def is_ready(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether /readyz of the web process answers 200."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def restart_workers() -> None:
    """Restart workers and reaper by the upgrade's commands."""
    [commands] = re.findall(r"^for each in .* done$", OPERATIONS.block("git pull"), re.M)
    run(commands)


def restart_webs(pause: str = "") -> None:
    """Restart one web process after the other by the upgrade's commands, with a pause between them."""
    [commands] = re.findall(r"^for web in .*?^done$", OPERATIONS.block("git pull"), re.M | re.S)
    run(re.sub(r"^ +until .*$", rf"\g<0>\n{pause}", commands, flags=re.M))
    wait_for_processes()
