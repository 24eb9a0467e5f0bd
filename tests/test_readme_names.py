"""READMEs name only what exists: tests in the tables of invariants, files in all of them, and the identifiers
of "Where would I put …" and of docs/changes.md, to which its entries lead.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PLACES = ("chatapi", "chatapi/worker", "faults", ".", "..")
"""Where a file that a table of the tests names may be, under `tests/`."""


def named(text: str) -> set[tuple[str, str]]:
    """Return the files and tests that the text names; `::name` alone is in the file before it."""
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


def test_no_two_invariants_have_one_name() -> None:
    names = re.findall(r"^\| ([A-Z]\d+) \|", (TESTS / "README.md").read_text(), re.MULTILINE)
    assert len(names) > 60
    assert [name for name, count in Counter(names).items() if count > 1] == []


def missing(readme: Path) -> Iterator[str]:
    """Yield the names of files that are not there: neither in the README's folder or the project's, nor
    beside the file or in the folder that the paragraph or item names before.
    """
    for item in re.split(r"\n(?=\n|\d\. |- |\|)", readme.read_text()):
        beside = readme.parent
        for name in re.findall(r"`((?!/)[\w./*]+(?:\.(?:py|md|toml|js|css|lua)\b|/(?=`)))", item):
            found = next(
                (path for folder in (readme.parent, ROOT, beside) for path in folder.glob(name)), None
            )
            if found is None and not name.endswith("/"):
                yield name
            elif found is not None:
                beside = found if found.is_dir() else found.parent


@pytest.mark.parametrize(
    "folder", [".", "accounts", "bench", "chatapi", "chatapi/console", "chatapi/wire", "docs", "usage"]
)
def test_a_file_that_a_readme_names_is_there(folder: str) -> None:
    readmes = list((ROOT / folder).glob("*.md" if folder == "docs" else "README.md"))
    assert readmes
    assert [(readme.name, name) for readme in readmes for name in missing(readme)] == []


def test_a_file_that_is_not_there_is_found_missing(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    for name in ("here.py", "room/inside.py", "room/beside.py"):
        (tmp_path / name).touch()
    lines = [
        "`here.py`, `room/inside.py`, `beside.py`",
        "`room/*.py`, `there*.py`",
        "`inside.py`, `pyproject.toml`",
    ]
    (tmp_path / "README.md").write_text("\n\n".join(lines))
    assert list(missing(tmp_path / "README.md")) == ["there*.py", "inside.py"]


def defined() -> Iterator[str]:
    """Yield the names that the code defines, names of modules, and texts that are names, as of a setting."""
    for path in (
        path for folder in ("accounts", "chatapi", "tests", "usage") for path in (ROOT / folder).rglob("*.py")
    ):
        yield from defined_in(path)


def defined_in(path: Path) -> Iterator[str]:
    yield path.stem
    for node in ast.walk(ast.parse(path.read_bytes())):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.Constant(value=str(text)) if text.isidentifier() and text.isupper():
                yield text


SECTION = (ROOT / "README.md").read_text().partition("\n## Where would I put")[2].partition("\n## ")[0]
CHANGES = (ROOT / "docs" / "changes.md").read_text()


def test_an_entry_of_where_would_i_put_has_three_lines_and_leads_to_its_files() -> None:
    entries = [entry.splitlines() for entry in SECTION.strip().split("\n\n") if entry.startswith("**")]
    assert [entry[0] for entry in entries if len(entry) > 3 or max(map(len, entry)) > 110] == []
    led = [re.findall(r"(\*\*.*\*\*) .*\(docs/changes\.md#(.*?)\)", entry[0]) for entry in entries]
    there = re.findall(r"^## (.*)\n\n(\*\*.*\*\*)$", CHANGES, re.MULTILINE)
    assert led == [
        [(entry, re.sub(r"[^\w-]", "", title.lower().replace(" ", "-")))] for title, entry in there
    ]


def test_what_is_said_to_be_in_a_file_is_there() -> None:
    said = re.findall(r"`(\w+)`\s+(?:in|of)\s+`([\w/]+/\w+\.py)`", CHANGES)
    assert len(said) > 10
    assert [(name, path) for name, path in said if name not in set(defined_in(ROOT / path))] == []


def test_an_identifier_of_where_would_i_put_is_there() -> None:
    quoted = re.findall(r"`((?:[A-Za-z_]\w*\.)?[A-Za-z_]\w*)`", SECTION + CHANGES)
    names = {
        name for each in quoted if not each.endswith((".py", ".html", ".yml")) for name in each.split(".")
    }
    assert len(names) > 60
    assert sorted(names - set(defined())) == []
