"""A whole installation for tests: real Valkey, web, worker and upstream processes on a database of their own.

Its time limits are those of the test profile (lease 1.5 s), so that the death of a process is noticed
quickly. Everything it starts dies with the tests, and is stopped by its own process id.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, Self

from redis import Redis

from chatapi.serving import embedded_valkey
from tests import migrated_database

ROOT = Path(__file__).parent.parent
PROFILE = {
    "CHATAPI_LEASE_MS": "1500",
    "CHATAPI_HEARTBEAT_MS": "500",
    "CHATAPI_REAPER_MS": "300",
    "CHATAPI_QUEUE_TTL_MS": "5000",
    "CHATAPI_LAME_DUCK_MS": "0",
    "CHATAPI_DRAIN_MS": "3000",
    "CHATAPI_LOG_LEVEL": "INFO",
}
SET_UP = """
import json, os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "chatapi.settings"
import django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
call_command("loadcatalog", sys.argv[1], verbosity=0, stdout=sys.stderr)
from accounts.keys import create_key, get_or_create_project
project = get_or_create_project("Tests", "default")
names = ("live", "test")
print(json.dumps({name: create_key(project, name=name, is_test=name == "test")[1] for name in names}))
"""

SANDBOXES = ("sandbox", "sandbox-embedding")
ON_DISCONNECT = {"drains": "drain", "continues": "continue"}
"""Models whose deployments do not stop when a client leaves."""


class Installation:
    """Its processes by name, its URLs and keys; leaving its context stops the processes."""

    def __init__(self, folder: Path, code: Path = ROOT, /, **environment: str) -> None:
        """Prepare an installation that does not run yet; `environment` overrides the test profile."""
        self.folder = folder
        self.code = code
        """The checkout that the next process and the next command run. Valkey's is always of this one."""
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.keys: dict[str, str] = {}
        self.upstream_url = ""
        self.environment = os.environ | PROFILE | {"CHATAPI_STATE_DIR": str(folder)} | environment
        # Without bytecode every process would compile its hundreds of modules again.
        for name in ("REDIS_URL", "CHATAPI_BROKER_URL", "CHATAPI_STREAMS_URL", "PYTHONDONTWRITEBYTECODE"):
            self.environment.pop(name, None)
        if "DATABASE_URL" in os.environ:
            url = os.environ["DATABASE_URL"]
            migrated = [migrated_database.template(url)] if "MIGRATED_DATABASE_FOLDER" in os.environ else []
            self.environment["DATABASE_URL"] = migrated_database.create_on(url, *migrated)

    @property
    def url(self) -> str:
        """Return the URL of the web process, without `/v1`."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- life

    def start(self, scripts: dict[str, dict[str, Any]]) -> None:
        """Set up and start everything; `scripts` maps each served model to the behaviour of its upstream."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.start_valkey()
        self._start_upstream()
        for name, script in scripts.items():
            self.script(name, **script)
        catalog = self.folder / "catalog.toml"
        catalog.write_text("\n".join(self._model(name) for name in [*scripts, *SANDBOXES]))
        if "MIGRATED_DATABASE_FOLDER" in self.environment and "DATABASE_URL" not in self.environment:
            migrated_database.copy_to(self.folder / migrated_database.NAME)
        done = self._finished("-c", SET_UP, str(catalog))
        assert done.returncode == 0, done.stderr
        self.keys = json.loads(done.stdout)
        self.start_worker()
        self.start_web()

    def start_valkey(self) -> None:
        """Start Valkey and wait until it answers."""
        embedded_valkey.prepare(self.folder)
        self._spawn("valkey", embedded_valkey.command(self.folder))
        wait_for(lambda: answers(embedded_valkey.socket_path(self.folder)), "Valkey")

    def start_web(self) -> None:
        """Start the web process and wait until it is ready."""
        self._serve("web", "web", "--port", str(self.port))
        wait_for(lambda: self.get("/readyz")[0] == 200, "the web process")

    def start_worker(self, name: str = "worker") -> None:
        """Start a worker; it takes tasks as soon as it can."""
        self._serve(name, "worker")

    def start_reaper(self) -> None:
        """Start a reaper in a process of its own."""
        self._serve("reaper", "reaper")

    def run(self, name: str, command: list[str], **environment: str) -> None:
        """Start a process under this name, with additions to its environment."""
        usual = self.environment
        self.environment = usual | environment
        try:
            self._spawn(name, command)
        finally:
            self.environment = usual

    def replace(self, role: str, *command: str, **environment: str) -> None:
        """Replace the process of this role, which may be dead, by one of this Python command, and wait until
        it is ready.
        """
        self.end(role)
        sign_of_life = self.folder / f"{role}.alive"
        sign_of_life.unlink(missing_ok=True)
        port = ["--port", str(self.port)] if role == "web" else []
        self.run(role, [self._interpreter, *command, "serve", "--only", role, *port], **environment)
        is_ready = (lambda: self.get("/readyz")[0] == 200) if role == "web" else sign_of_life.exists
        wait_for(is_ready, f"the other {role}")

    @contextmanager
    def another_web(self, **environment: str) -> Iterator[Self]:
        """Start a second web process on a port of its own; yield a copy of this installation with its URL."""
        another = copy(self)
        another.port, another.processes = free_port(), {}
        another.environment = self.environment | environment
        with another:
            another.start_web()
            yield another

    def revive(self) -> None:
        """Start the processes that have died or never ran, as a supervisor would."""
        starts = {
            "valkey": self.start_valkey,
            "worker": self.start_worker,
            "reaper": self.start_reaper,
            "web": self.start_web,
        }
        for name, start in starts.items():
            if name in self.processes and self.processes[name].poll() is not None:
                self.end(name)
            if name not in self.processes:
                start()

    def stop(self) -> None:
        """Stop everything, web first."""
        for name in ("web", "worker", "reaper", "upstream", "valkey", *self.processes):
            self.end(name, signal.SIGTERM)

    def end(
        self, name: str, with_signal: signal.Signals = signal.SIGKILL, timeout_s: float = 20
    ) -> int | None:
        """Send the process a signal, wait for its end, and return its exit code; None without a process."""
        process = self.processes.pop(name, None)
        if process is None:
            return None
        if process.poll() is None:
            process.send_signal(with_signal)
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def is_ready_to_stop(self, name: str) -> bool:
        """Return whether the process has a handler for SIGTERM by now; without one, the signal would just
        kill it.
        """
        status = Path(f"/proc/{self.processes[name].pid}/status").read_text()
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)
        return bool(caught >> (signal.SIGTERM - 1) & 1)

    def send(self, name: str, a_signal: signal.Signals) -> None:
        """Send the process a signal."""
        self.processes[name].send_signal(a_signal)

    # ---- asking

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a management command; the caller checks its exit code."""
        return self._finished("manage.py", *arguments)

    def output_of(self, *arguments: str) -> str:
        """Return what a management command prints; fail if the command fails."""
        done = self.manage(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def shell(self, code: str) -> str:
        """Return what this code prints inside the installation."""
        return self.output_of("shell", "--no-imports", "-c", code)

    def create_key(self, *options: str) -> str:
        """Return the secret of a new key."""
        secret: str = json.loads(self.output_of("createkey", *options, "--json"))["key"]
        return secret

    def load_catalog(self, catalog: str) -> None:
        """Serve the models of this catalog, too."""
        file = self.folder / "loaded.toml"
        file.write_text(catalog)
        self.output_of("loadcatalog", str(file))

    def verify(self) -> None:
        """Fail unless the books are right."""
        self.output_of("verifyledger")

    def get(self, path: str, key: str | None = None) -> tuple[int, Any]:
        """Return the status of a GET and its body, as JSON or text; the status is 0 if nothing answers."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return fetch(urllib.request.Request(self.url + path, headers=headers))

    def receipt(self, generation_id: str) -> dict[str, Any]:
        """Return the receipt of the generation, once it is settled."""
        found: dict[str, Any] = {}

        def is_settled() -> bool:
            nonlocal found
            status, found = self.get(f"/v1/generations/{generation_id}", self.keys["live"])
            return status == 200 and found["state"] == "settled"

        wait_for(is_settled, f"the settlement of {generation_id}")
        return found

    def script(self, model: str, **script: Any) -> None:
        """Set the upstream's behaviour for that model."""
        body = json.dumps({"name": model, "script": script}).encode()
        status, answer = fetch(
            urllib.request.Request(self.upstream_url + "/script", body, {"Content-Type": "application/json"})
        )
        assert status in {200, 201, 204}, answer

    def calls(self, *models: str) -> list[dict[str, Any]]:
        """Return the upstream's records of calls for these models, oldest first."""
        _, answer = fetch(urllib.request.Request(self.upstream_url + "/stats"))
        return [call for call in answer["calls"] if call["body"].get("model") in models]

    def open_valkey(self) -> Redis:
        """Return a client of its Valkey."""
        return Redis(unix_socket_path=str(embedded_valkey.socket_path(self.folder)))

    def log(self, name: str) -> str:
        """Return the output of the process."""
        return (self.folder / f"{name}.log").read_text()

    # ---- inside

    def _start_upstream(self) -> None:
        command = [sys.executable, "-m", "tests.fake_upstream", "--port", "0"]
        process = self._spawn("upstream", command, ROOT)
        wait_for(lambda: bool(self.log("upstream").strip()) or process.poll() is not None, "the upstream")
        self.upstream_url = f"http://127.0.0.1:{json.loads(self.log('upstream').splitlines()[0])['port']}"

    def _model(self, name: str) -> str:
        deployment = '{ name = "sandbox", engine = "sandbox" }'
        if name not in SANDBOXES:
            timeouts = (
                "{ connect_ms = 1000, first_delta_ms = 3000, between_deltas_ms = 1500, total_ms = 60000 }"
            )
            address = f'base_url = "{self.upstream_url}/v1", upstream_model = "{name}", timeouts = {timeouts}'
            rule = f'on_disconnect = "{ON_DISCONNECT.get(name, "cancel")}"'
            deployment = f'{{ name = "upstream", engine = "openai_compatible", {rule}, {address} }}'
        price = 'input_per_mtok = "1", cached_input_per_mtok = "0.5", output_per_mtok = "2"'
        if "cache" in name:
            price += ', cache_write_per_mtok = "1.25", cache_write_1h_per_mtok = "2"'
        limits = "context_window = 8192\nmax_output_tokens = 1024"
        kind = "embeddings" if "embed" in name else "chat"
        model = f'[[models]]\nid = "{name}"\nkind = "{kind}"\n{limits}\nprice = {{ {price} }}\n'
        return f"{model}deployments = [{deployment}]\n"

    @property
    def _interpreter(self) -> str:
        return sys.executable if self.code == ROOT else str(self.code / ".venv/bin/python")

    def _finished(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._interpreter, *arguments],
            cwd=self.code,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def _serve(self, name: str, *options: str) -> None:
        self._spawn(name, [self._interpreter, "manage.py", "serve", "--only", *options])

    def _spawn(self, name: str, command: list[str], folder: Path | None = None) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=folder or self.code,
                env=self.environment,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )
        self.processes[name] = process
        return process


def die_with_parent() -> None:
    """Have the kernel kill this child when the tests end, even by SIGKILL."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def free_port() -> int:
    """Return a port that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 30, pause_s: float = 0.02) -> None:
    """Return when the condition holds; fail when it does not in time."""
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_at, f"waited {timeout_s} s for {what}"
        time.sleep(pause_s)


def answers(path: Path) -> bool:
    """Return whether the Valkey behind this socket answers."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        probe.sendall(b"PING\r\n")
        return probe.recv(64).startswith(b"+PONG")


def fetch(request: urllib.request.Request) -> tuple[int, Any]:
    """Return the status and the body, as JSON or text; the status is 0 if nothing answers."""
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            status, body = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, body = error.code, error.read()
    except OSError:
        return 0, None
    try:
        return status, json.loads(body)
    except ValueError:
        return status, body.decode(errors="replace")
