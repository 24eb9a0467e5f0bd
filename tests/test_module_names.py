"""No two modules of a package have one name, because an import line then says too little to its reader; and
names of tests are short enough to be read in a line.
"""

import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

# Names that frameworks and patterns give: a reader expects them in every room of their kind.
FRAMEWORKS = {"__init__", "admin", "apps", "errors", "models", "urls", "views"}
OF_A_PROTOCOL = {"encoder", "envelope", "reference", "request"}
# Rooms with a file for each noun, whose code is in a file of the same name in another room.
OF_NOUNS = ("accounts/models/", "usage/models/")

TEST = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)


@pytest.mark.parametrize("package", ["accounts", "usage", "chatapi"])
def test_no_two_modules_of_a_package_have_one_name(package: str) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--", f"{package}/*.py"], capture_output=True, text=True, check=True
    )
    found = defaultdict(list)
    for path in map(Path, listed.stdout.split()):
        if (
            "migrations" in path.parts
            or path.stem in FRAMEWORKS | OF_A_PROTOCOL
            or str(path).startswith(OF_NOUNS)
        ):
            continue
        found[path.stem].append(str(path))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_the_name_of_a_test_has_80_characters_at_most() -> None:
    names = {name for path in Path("tests").rglob("test_*.py") for name in TEST.findall(path.read_text())}
    assert len(names) > 2_000
    assert sorted(name for name in names if len(name) > 80) == []
