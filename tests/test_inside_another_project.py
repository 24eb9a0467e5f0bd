"""A clone inside another project's folder installs with its own settings, and with the user's, but not with
that project's.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
UV = Path(sys.prefix) / "bin" / "uv"
NEVER = 'required-version = "==0.0.1"\n'
"""A setting that ends uv wherever it is read."""
ABOVE = {
    "settings": {"pyproject.toml": f'[project]\nname = "other"\nversion = "1"\n[tool.uv]\n{NEVER}'},
    "a workspace": {
        "pyproject.toml": f'[project]\nname = "other"\nversion = "1"\n[tool.uv]\n{NEVER}'
        '[tool.uv.workspace]\nmembers = ["*"]\n'
    },
    "a file of settings": {"uv.toml": NEVER},
    "a broken file": {"pyproject.toml": "[project\n"},
}

pytestmark = pytest.mark.skipif(not UV.exists(), reason="`make` installs uv")


def uv(folder: Path, config_home: Path) -> "subprocess.CompletedProcess[str]":
    """Run uv there as the Makefile does; it fails if it reads `NEVER`."""
    command = [str(UV), "pip", "list", "--quiet", "--python", sys.executable]
    environment = os.environ | {"XDG_CONFIG_HOME": str(config_home)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("above", ABOVE)
def test_settings_of_the_project_above_are_not_read(tmp_path: Path, above: str) -> None:
    clone = tmp_path / "chatapi"
    clone.mkdir()
    for name, text in ABOVE[above].items():
        (tmp_path / name).write_text(text)
    if above == "settings":
        assert uv(clone, tmp_path / "none").returncode != 0, "this setting would end uv"
    shutil.copy(ROOT / "pyproject.toml", clone)
    done = uv(clone, tmp_path / "none")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_users_own_settings_are_read(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "config" / "uv").mkdir(parents=True)
    (tmp_path / "config" / "uv" / "uv.toml").write_text(NEVER)
    assert "Required uv version" in uv(tmp_path, tmp_path / "config").stderr
