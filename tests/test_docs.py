"""The shell examples of README and docs/, and some in Python and JavaScript, run as they stand, against a
real installation; data can be parsed.

In a `console` block the lines after `$ ` are run, the others are output; `sh` blocks are run whole. Values
that differ between readers are put in: the port, the key, the interpreter, and the id that the example
before has shown.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chatapi.http_client import Client
from tests.clients import programs
from tests.curl import needs_curl
from tests.installation import ROOT, Installation

pytestmark = [pytest.mark.xdist_group("docs"), pytest.mark.timeout(180), needs_curl]

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(console|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
DATA = re.compile(r"^```(toml|yaml|json)\n(.*?)^```", re.MULTILINE | re.DOTALL)
GENERATION = re.compile(r"(?:chatcmpl-|resp_)[0-9a-f]{32}")
STARTS_THE_SERVICE = ("make run",)
"""CI runs this one in a fresh clone."""
CHARGE = """
from usage.models import LedgerEntry
print(LedgerEntry.objects.get(generation="ID").pk)
"""


def commands(document: Path) -> list[str]:
    found: list[str] = []
    for language, text in BLOCK.findall(document.read_text()):
        if language == "sh":
            found.append(text)
        else:
            found += re.findall(r"^\$ ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    return [command for command in found if command.strip() not in STARTS_THE_SERVICE]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with Installation(
        tmp_path_factory.mktemp("docs"), CHATAPI_METRICS_TOKEN="what-a-reader-invents"
    ) as installation:
        installation.start({})
        installation.output_of("loadcatalog", "chatapi/catalog/sandbox.toml")
        yield installation


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_the_shell_examples_work(service: Installation, document: Path, tmp_path: Path) -> None:
    (tmp_path / "catalog.toml").write_bytes((ROOT / "docs" / "catalog.example.toml").read_bytes())
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "provision.py").write_bytes((ROOT / "docs" / "provision.py").read_bytes())
    (tmp_path / "manage.py").write_text(
        f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); "
        f"runpy.run_path({str(ROOT / 'manage.py')!r}, run_name='__main__')"
    )
    environment = service.environment | {"CHATAPI_KEY": service.keys["live"]}
    reader = {
        "http://127.0.0.1:8000": service.url,
        ".venv/bin/python": sys.executable,
        "client/bin/python": sys.executable,
        "ck_test_…": service.keys["test"],
    }
    shown = ""
    for command in commands(document):
        here = command
        for written, real in reader.items():
            here = here.replace(written, real)
        ids = GENERATION.findall(shown)
        here = GENERATION.sub(ids[-1], here) if ids else here
        done = subprocess.run(
            ["bash", "-euc", here],
            cwd=tmp_path,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert "invalid_request_error" not in done.stdout, f"{command}\n{done.stdout}"
        shown = done.stdout


def test_each_block_of_data_can_be_parsed() -> None:
    """Those that a test loads or runs are here, too."""
    parsers: dict[str, Callable[[str], Any]] = {
        "toml": tomllib.loads,
        "yaml": yaml.safe_load,
        "json": json.loads,
    }
    blocks: dict[str, list[Any]] = {language: [] for language in parsers}
    for document in DOCUMENTS:
        for language, text in DATA.findall(document.read_text()):
            blocks[language].append(parsers[language](text))
    assert all(blocks.values()), "documents have blocks of each"
    assert all(isinstance(each, dict) for found in blocks.values() for each in found)


def test_the_model_for_embeddings_is_loaded(service: Installation, tmp_path: Path) -> None:
    catalog = tmp_path / "catalog.toml"
    catalog.write_text(programs.guide_example(service, "embeddings", "toml"))
    assert "bge-m3" in service.output_of("loadcatalog", str(catalog))


@pytest.mark.parametrize("document", ["quickstart", "messages"])
def test_the_python_example_works(service: Installation, document: str) -> None:
    code = programs.guide_example(service, document, "python")
    assert programs.output_of([sys.executable, "-c", code]).strip()


def test_the_node_example_works(service: Installation) -> None:
    code = programs.guide_example(service, "quickstart", "js")
    command: programs.Command = [programs.NODE, "--input-type=module", "--eval", code]
    assert programs.output_of(command, cwd=programs.node_packages("openai_node")) == "Hello!"


def test_the_correction_of_a_charge_works(service: Installation) -> None:
    words = [{"role": "user", "content": "word " * 100}]
    generation_id = Client(service.url, service.keys["live"]).complete("sandbox", messages=words).json["id"]
    charged = service.receipt(generation_id)["net_nanodollars"]
    charge = service.shell(CHARGE.replace("ID", generation_id.removeprefix("chatcmpl-")))
    service.shell(programs.guide_example(service, "books", "python").replace("4711", charge))
    assert service.receipt(generation_id)["net_nanodollars"] == charged - 20_000


def test_a_line_of_prose_has_110_columns_at_most() -> None:
    """Tables and blocks of code may be wider, and the target of a link does not count."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    long = []
    for name in listed.stdout.split():
        text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / name).read_text(), flags=re.MULTILINE | re.DOTALL)
        lines = [re.sub(r"\]\([^)]*\)", "]", line) for line in text.splitlines()]
        long += [(name, line) for line in lines if len(line) > 110 and not line.lstrip().startswith("|")]
    assert long == []


def test_each_row_of_a_table_has_a_line_of_its_own() -> None:
    """An editor that wraps paragraphs can join the rows of a table, which is no table then."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = listed.stdout.split()
    lines = [(name, line) for name in names for line in (ROOT / name).read_text().splitlines()]
    joined = [each for each in lines if "|---" in each[1] and not re.fullmatch(r" *(\|-+)+\|", each[1])]
    assert joined == []


def test_a_line_of_code_other_than_python_has_110_columns_at_most() -> None:
    """Ruff checks Python. A line may be wider if one word alone, such as a URL, is.

    Templates may be wider, because a tag of Django can't be wrapped, and because a line break outside of tags
    is content of the page; so may data.
    """
    kinds = ["*.css", "*.js", "*.mjs", "*.cjs", "*.lua", "*.toml", "Dockerfile", "Makefile"]
    kinds += ["*.yaml", "*.yml", "*.conf", "*.in", ".ci/*"]
    command = ["git", "ls-files", *kinds]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.split() if name != "chatapi/static/alpine/alpine.csp.js"]
    lines = [(name, line) for name in names for line in (ROOT / name).read_text().splitlines()]
    assert [each for each in lines if len(each[1]) > 110 and max(map(len, each[1].split())) <= 110] == []


def test_no_entry_of_the_changelog_is_there_twice() -> None:
    """A merge can leave an entry that one side has moved or changed in both places."""
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    times = Counter(line[:60] for line in lines if line.startswith("- "))
    assert [beginning for beginning, count in times.items() if count > 1] == []
