"""The tables of who shows what name only tests that there are."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PLACES = ("chatapi", "chatapi/worker", "faults", ".", "..")
"""Where a file that is named may be, under `tests/`."""


def named(text: str) -> set[tuple[str, str]]:
    """Files and the tests in them; `::name` alone is of the file before it."""
    found, file = set(), ""
    for path, test in re.findall(r"`([\w/]+\.py)?(?:::(\w+))?`", text):
        file = path or file
        found.add((file, test))
    return found - {("", "")}


def is_there(file: str, test: str) -> bool:
    paths = [path for place in PLACES if (path := TESTS / place / file).is_file()]
    return any(not test or re.search(rf"def {test}\(", path.read_text()) for path in paths)


@pytest.mark.parametrize("readme", ["README.md", "faults/README.md"])
def test_what_a_table_names_is_there(readme: str) -> None:
    names = named((TESTS / readme).read_text())
    assert len(names) > 20
    assert sorted(name for name in names if not is_there(*name)) == []
