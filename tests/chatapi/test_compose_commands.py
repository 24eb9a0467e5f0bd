"""What docker-compose.yml tells one to type, typed: its own commands and health checks, on what the image
holds, without Docker.

SQLite and a Valkey on a socket take the place of the two services that are not ours.
"""

import http.client
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chatapi.worker.processes import Valkey
from tests.installation import die_with_parent, free_port, wait_for

pytestmark = [pytest.mark.xdist_group("compose_commands"), pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
FILE = (ROOT / "docker-compose.yml").read_text()
SERVICES: dict[str, Any] = yaml.safe_load(FILE)["services"]
TYPED = [
    (service, shlex.split(line))
    for service, line in re.findall(r"^#   docker compose exec (\w+) (.+)$", FILE, re.MULTILINE)
]
STATE_DIR = "/var/lib/chatapi"
VARIABLES = {
    "CHATAPI_SECRET_KEY": "s" * 64,
    "CHATAPI_KEY_PEPPER": "p" * 64,
    "POSTGRES_PASSWORD": "unused",
    "OPENAI_API_KEY": "unused",
}
"""What the header's first command writes into .env, and an upstream's key."""
SUPERUSER = {
    f"DJANGO_SUPERUSER_{name}": value
    for name, value in (("USERNAME", "root"), ("PASSWORD", "a good 1"), ("EMAIL", "r@a.example"))
}


def substituted(text: str) -> str:
    """Return the value with its `${NAME:-default}` and `${NAME:?complaint}`, as compose reads it."""
    return re.sub(r"\$\{(\w+):[-?]([^}]*)\}", lambda found: VARIABLES.get(found[1], found[2]), text)


class Project:
    """The compose project's own services as processes of this machine."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.port, self.folder, self.image, self._state_dir = (
            free_port(),
            folder,
            folder / "image",
            folder / "state",
        )
        self._stand_ins = {"DATABASE_URL": f"sqlite:///{folder}/books.sqlite3", "REDIS_URL": redis_url}
        self._processes: list[subprocess.Popen[bytes]] = []
        for name in (
            "accounts",
            "chatapi",
            "docs",
            "usage",
        ):  # what .dockerignore lets through, without requirements
            shutil.copytree(ROOT / name, self.image / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "manage.py", self.image)
        self._state_dir.mkdir()

    def environment(self, service: str) -> dict[str, str]:
        """Return the environment that compose gives the service, with the stand-ins."""
        usual = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CHATAPI_", "REDIS_", "DATABASE_", "DJANGO_"))
        }
        own = SERVICES[service]["environment"]
        given = {name: substituted(value) for name, value in own.items() if value is not None}
        return {
            **usual,
            **given,
            **self._stand_ins,
            "CHATAPI_STATE_DIR": str(self._state_dir),
            "HOME": str(self._state_dir),
        }

    def run(self, service: str, command: list[str], **environment: str) -> str:
        """Run it in the service to its end; fails unless it succeeds."""
        done = subprocess.run(
            self._here(command),
            cwd=self.image,
            env=self.environment(service) | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def up(self, service: str) -> None:
        """Start the service's command."""
        port = ["--port", str(self.port)] if service == "web" else []
        command = [*self._here(SERVICES[service]["command"]), *port]
        with (self.folder / f"{service}.log").open("wb") as log:
            options: dict[str, Any] = {
                "cwd": self.image,
                "env": self.environment(service),
                "stdout": log,
                "stderr": log,
            }
            process = subprocess.Popen(command, preexec_fn=die_with_parent, **options)  # noqa: PLW1509
            self._processes.append(process)

    def is_healthy(self, service: str) -> bool:
        """Return the result of its health check."""
        kind, *check = SERVICES[service]["healthcheck"]["test"]
        command = ["sh", "-c", *check] if kind == "CMD-SHELL" else check
        done = subprocess.run(
            self._here(command), env=self.environment(service), capture_output=True, timeout=60, check=False
        )
        return done.returncode == 0

    def down(self) -> None:
        """Stop what runs."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(40)

    def code(self) -> set[Path]:
        """Return the files of the image, except those that Python generates."""
        return {path for path in self.image.rglob("*") if path.is_file() and "__pycache__" not in path.parts}

    def _here(self, command: list[str]) -> list[str]:
        python = {"python": sys.executable}
        return [
            python.get(word, word).replace(":8000", f":{self.port}").replace(STATE_DIR, str(self._state_dir))
            for word in command
        ]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Migrate the database and start all our services."""
    folder = tmp_path_factory.mktemp("compose")
    with Valkey(folder) as valkey:
        project = Project(folder, f"unix://{valkey.socket}")
        files = project.code()
        try:
            project.run("migrate", SERVICES["migrate"]["command"])
            for service in ("web", "worker", "reaper"):
                project.up(service)
            yield project
        finally:
            project.down()
        assert project.code() == files, "the code folder is another user's than the service's"


@pytest.mark.parametrize("service", ["web", "worker", "reaper"])
def test_a_running_service_is_healthy(project: Project, service: str) -> None:
    wait_for(lambda: project.is_healthy(service), f"{service} to be healthy", timeout_s=60, pause_s=0.5)


def test_the_commands_of_the_header_make_an_administrator_models_and_a_key(project: Project) -> None:
    commands = ["createsuperuser", "loadcatalog", "createkey", "loadcatalog"]
    assert [command[2] for _, command in TYPED] == commands
    (project.folder / "catalog.toml").write_text((ROOT / "docs" / "catalog.example.toml").read_text())
    shown: dict[str, str] = {}
    for service, command in TYPED:
        # A person answers its questions; here the environment does, as Django has it.
        answers = ["--noinput"] if command[2] == "createsuperuser" else []
        words = [word.replace("/tmp/catalog.toml", str(project.folder / "catalog.toml")) for word in command]
        shown[command[2]] = project.run(service, [*words, *answers], **SUPERUSER)
    assert "Not set in this environment" in shown["loadcatalog"]
    assert " OPENAI_API_KEY" not in shown["loadcatalog"], "only workers have the upstreams' keys"
    key = re.search(r"ck_live_\w+", shown["createkey"])
    assert key
    wait_for(lambda: project.is_healthy("web"), "web to be healthy", timeout_s=60, pause_s=0.5)
    assert ask(project, key[0]) == (200, "chat.completion")
    who = f"authenticate(username='root', password={SUPERUSER['DJANGO_SUPERUSER_PASSWORD']!r}).is_superuser"
    signed_in = f"from django.contrib.auth import authenticate; print({who})"
    assert (
        project.run("web", ["python", "manage.py", "shell", "--no-imports", "-c", signed_in]).strip()
        == "True"
    )


def ask(project: Project, key: str) -> tuple[int, str]:
    """Send a request through web and worker; return its status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", project.port, timeout=30)
    body = json.dumps({"model": "sandbox", "messages": [{"role": "user", "content": "hello"}]})
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "Host": "chat.lan:8000"}
    connection.request("POST", "/v1/chat/completions", body, headers)
    answer = connection.getresponse()
    status, document = answer.status, json.loads(answer.read())
    connection.close()
    return status, document.get("object", document)
