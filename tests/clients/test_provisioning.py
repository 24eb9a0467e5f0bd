"""docs/provision.py provisions a tenant, and changes nothing when it runs again."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from openai import OpenAI

from tests.installation import ROOT, Installation

pytestmark = [pytest.mark.xdist_group("clients"), pytest.mark.timeout(120)]


def provision(installation: Installation, folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "docs/provision.py", f"{installation.url}/v1"]
    return subprocess.run(
        [*command, str(folder / "admin-key"), str(folder / "key")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def create_admin_key(installation: Installation, organization: str, folder: Path) -> str:
    """Write the admin key's file and return the key."""
    names = ("--organization", organization, "--project", "management")
    made = installation.manage("createkey", *names, "--manages-as", "owner", "--json")
    (folder / "admin-key").write_text(made.stdout)
    return str(json.loads(made.stdout)["key"])


def test_the_second_run_changes_nothing(installation: Installation, tmp_path: Path) -> None:
    admin_key = create_admin_key(installation, "Shop", tmp_path)
    first = provision(installation, tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("\n") == 6
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    key = (tmp_path / "key").read_text()
    with OpenAI(base_url=f"{installation.url}/v1", admin_api_key=admin_key) as client:
        log = client.admin.organization.audit_logs
        before = [each.id for each in log.list(limit=100)]
        again = provision(installation, tmp_path)
        assert (again.returncode, again.stdout.count("\n")) == (0, 1), again.stdout + again.stderr
        assert [each.id for each in log.list(limit=100)] == before
    assert (tmp_path / "key").read_text() == key
    with OpenAI(base_url=f"{installation.url}/v1", api_key=key.strip(), max_retries=0) as client:
        answer = client.chat.completions.create(
            model="sandbox", messages=[{"role": "user", "content": "Say hello."}]
        )
    assert answer.choices[0].message.content


def test_the_empty_key_file_of_an_interrupted_run_is_no_key(
    installation: Installation, tmp_path: Path
) -> None:
    create_admin_key(installation, "Interrupted shop", tmp_path)
    (tmp_path / "key").touch()
    again = provision(installation, tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "key").read_text().startswith("ck_live_")
    (tmp_path / "key").write_text("")
    refused = provision(installation, tmp_path)
    assert refused.returncode == 1
    assert "has no key" in refused.stderr
