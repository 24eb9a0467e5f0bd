"""The code that the pages show works as it is pasted, but for key and installed packages."""

import subprocess
import sys

import pytest

from chatapi.model_kinds import MODEL_KINDS
from chatapi.models import ModelKind
from chatapi.snippets import Template, written
from tests.clients import programs
from tests.curl import CURL, needs_curl
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("clients"), pytest.mark.timeout(120)]

MODELS = {ModelKind.CHAT: "sandbox", ModelKind.EMBEDDINGS: "sandbox-embedding"}
ALL = [
    pytest.param(kind, api.name, each, id=each.id, marks=[needs_curl] if each.title == "curl" else [])
    for kind in ModelKind
    for api in MODEL_KINDS[kind].apis
    for each in api.code
]


def printed(command: programs.Command, protocol: str) -> str:
    folder = None
    if command[0] == programs.NODE:
        folder = programs.node_packages("anthropic_node" if protocol == "Messages" else "openai_node")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("kind", "protocol", "template"), ALL)
def test_a_snippet_runs(
    installation: Installation, kind: ModelKind, protocol: str, template: Template
) -> None:
    code = written(template.text, origin=installation.url, key=installation.keys["live"], model=MODELS[kind])
    commands: dict[str, programs.Command] = {
        "curl": ["sh", "-c", code.replace("curl ", f"{CURL} --silent --fail-with-body ", 1)],
        "Python": [sys.executable, "-c", code],
        "Node.js": [programs.NODE, "--input-type=module", "--eval", code],
    }
    assert printed(commands[template.title], protocol).strip()
