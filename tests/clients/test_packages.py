"""The lock files of npm's packages: each package is pinned by its hash, and no registry is named."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
LOCKS = sorted([*ROOT.glob("tests/clients/*/package-lock.json"), *ROOT.glob("bench/*/package-lock.json")])


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.parent.name)
def test_a_lock_file_has_hashes_and_no_addresses(lock: Path) -> None:
    packages = json.loads(lock.read_text())["packages"]
    installed = [package for path, package in packages.items() if path]
    assert all("integrity" in package for package in installed)
    assert not any("resolved" in package for package in installed)
