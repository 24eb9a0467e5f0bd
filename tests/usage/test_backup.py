"""docs/backup.md, followed: its commands bring an installation's books and keys back on another machine."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chatapi import upstream_keys
from tests.installation import ROOT
from tests.migrated_database import create_on

pytestmark = pytest.mark.timeout(180)
MANUAL = (ROOT / "docs" / "backup.md").read_text()
COMMANDS = dict(re.findall(r"^```bash ([\w-]+)\n(.*?)^```", MANUAL, re.MULTILINE | re.DOTALL))
ON_POSTGRESQL = os.environ.get("DATABASE_URL", "").startswith("postgres")
FORMS = ("postgresql", "compose") if ON_POSTGRESQL else ("sqlite",)
SECRETS = ("CHATAPI_SECRET_KEY", "CHATAPI_KEY_PEPPER")
COUNTS = (
    "from usage.models import *; from accounts.models import *; "
    "print([each.objects.count() for each in (Generation, LedgerEntry, LedgerSeal, Budget, APIKey)])"
)

ENCRYPT = """
from accounts.models import Project
from chatapi import response_store, upstream_keys
from chatapi.models import Deployment, ServedModel
from chatapi.notifications import webhooks
from chatapi.notifications.models import WebhookEndpoint
from usage.models import Generation
upstream = {"engine": "openai_compatible", "base_url": "http://127.0.0.1:9/v1"}
row = Deployment.objects.create(model=ServedModel.objects.create(id="small"), name="entered", **upstream)
upstream_keys.enter(row, "sk-entered")
Project.objects.update(stores_responses_days=30)
generation = Generation.objects.exclude(settled_at=None).first()
response_store.write(generation.pk, response_store.Content(b"a question", []))
webhooks.add(WebhookEndpoint(url="https://example.com/"))
"""
DECRYPT = """
from chatapi import response_store, upstream_keys
from chatapi.models import Deployment, StoredResponse
content = response_store.decrypt(StoredResponse.objects.get())
print(upstream_keys.entered(Deployment.objects.get()), content and content.state.decode())
"""

ENABLED = (
    "from chatapi.notifications.models import WebhookEndpoint; "
    'print(list(WebhookEndpoint.objects.values_list("is_enabled", flat=True)))'
)
# Docker, as far as the manual needs it: the services are processes of this machine.
DOCKER = """#!/bin/bash
case "$*" in
"compose up"*reaper) exec python manage.py migrate ;;
"compose up"*) ;;
"compose exec -T "*) shift 3 && shift && exec "${@/--dbname=chatapi/--dbname=$DATABASE_URL}" ;;
*) exit 2 ;;
esac
"""


class Machine:
    """A checkout with a state folder, as the manual's commands see it."""

    def __init__(self, folder: Path, backup: Path) -> None:
        folder.mkdir()
        (folder / "manage.py").write_text(
            f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); "
            f"runpy.run_path({str(ROOT / 'manage.py')!r}, run_name='__main__')"
        )
        self.folder = folder
        docker = folder / "bin" / "docker"
        docker.parent.mkdir()
        docker.write_text(DOCKER)
        docker.chmod(0o700)
        usual = {name: value for name, value in os.environ.items() if not name.startswith("CHATAPI_")}
        path = f"{docker.parent}:{Path(sys.executable).parent}:{usual['PATH']}"
        own = {"BACKUP": str(backup), "CHATAPI_STATE_DIR": str(folder / "var"), "PATH": path}
        self.environment = usual | own
        if ON_POSTGRESQL:
            self.environment |= {name: name + "x" * 40 for name in SECRETS}
            self.environment["DATABASE_URL"] = create_on(os.environ["DATABASE_URL"])

    def run(self, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        here = command.replace(".venv/bin/python", sys.executable)
        return subprocess.run(
            ["bash", "-euc", here],
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def says(self, command: str, **environment: str) -> str:
        """Return the output of a command that must succeed."""
        done = self.run(command, **environment)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def shell(self, code: str, **environment: str) -> str:
        return self.says(f".venv/bin/python manage.py shell --no-imports -c '{code}'", **environment).strip()

    def knows(self, key: str, **environment: str) -> bool:
        code = f'from accounts.authentication import look_up_all; print("{key}" in look_up_all({{"{key}"}}))'
        return self.shell(code, **environment) == "True"


def test_the_manual_has_commands_for_both_databases_and_for_compose() -> None:
    assert set(COMMANDS) == {
        *(f"{form}-{act}" for form in ("sqlite", "postgresql", "compose") for act in ("backup", "restore")),
        "check",
        "compose-check",
        "rehearsal",
    }


@pytest.mark.parametrize("form", FORMS)
def test_what_was_backed_up_is_back_on_another_machine(tmp_path: Path, form: str) -> None:
    backup = tmp_path / "backup"
    backup.mkdir()
    old = Machine(tmp_path / "old", backup)
    old.says(".venv/bin/python manage.py migrate")
    key = old.says(".venv/bin/python manage.py createkey --organization Acme").strip()
    old.says(".venv/bin/python manage.py seedusage --add --generations 200 --days 2")
    old.shell(ENCRYPT)
    (old.folder / ".env").write_text("POSTGRES_PASSWORD=kept")
    old.says(COMMANDS[f"{form}-backup"])
    counts = old.shell(COUNTS)
    # After the backup, and so not in it.
    later = old.says(".venv/bin/python manage.py createkey --organization Acme").strip()

    new = Machine(tmp_path / "new", backup)
    kept = new.folder / "var" / "valkey.rdb"
    kept.parent.mkdir()
    kept.touch()
    new.says(COMMANDS[f"{form}-restore"])
    assert (new.folder / ".env").exists() == (form == "compose")
    assert kept.exists() == ON_POSTGRESQL, "the service would not begin with an empty Redis"
    checked = new.says(COMMANDS["compose-check" if form == "compose" else "check"])
    assert "no difference" in checked
    assert new.shell(COUNTS) == counts
    assert new.shell(ENABLED) == "[True]"
    new.says(COMMANDS["rehearsal"])
    assert new.shell(ENABLED) == "[False]"
    assert (new.knows(key), new.knows(later)) == (True, False)
    assert not new.knows(key, CHATAPI_KEY_PEPPER="another" + "x" * 40)

    assert new.shell(DECRYPT) == "sk-entered a question"
    other = {"CHATAPI_SECRET_KEY": "another" + "x" * 50}
    done = new.run(f".venv/bin/python manage.py shell --no-imports -c '{DECRYPT}'", **other)
    assert (done.returncode, done.stdout) == (0, "None None\n")
    (line,) = done.stderr.splitlines()
    assert "can't be decrypted: it was stored under another CHATAPI_SECRET_KEY" in line
    found = new.run(".venv/bin/python manage.py doctor --no-upstreams", **other).stdout
    assert found.count(f"small by entered: {upstream_keys.LOST}") == 1


def test_books_that_are_not_those_of_the_seal_are_found(tmp_path: Path) -> None:
    (tmp_path / "books.txt").write_text(f"Newest seal: {'a' * 64}\n")
    other = Machine(tmp_path / "other", tmp_path)
    other.says(".venv/bin/python manage.py migrate")
    done = other.run(COMMANDS["check"])
    assert done.returncode == 1
    assert "a" * 64 in done.stdout + done.stderr


def test_nobody_else_on_the_machine_reads_a_backup() -> None:
    for form in ("sqlite", "postgresql", "compose"):
        assert COMMANDS[f"{form}-backup"].startswith("umask 077\n")
