"""The example programs of the dialects' documents, word for word but for address and key (documents/): they
must work as shown.

The EventSource example needs a browser: test_browser.py.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients import programs
from tests.curl import CURL, needs_curl
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("clients"), pytest.mark.timeout(120)]

DOCUMENTS = Path(__file__).parent / "documents"
ADDRESS, KEY = "http://127.0.0.1:8080/v1", "not-needed"
TEXT = " the of and to in"


@pytest.fixture
def tool_caller(installation: Installation) -> Iterator[Installation]:
    """Start a second web process, where a request without a model gets one that calls tools."""
    with installation.another_web(CHATAPI_DEFAULT_MODEL="sandbox-tool-call") as tool_caller:
        yield tool_caller


def example(installation: Installation, name: str) -> str:
    """Return the document's example with the changes that a reader makes."""
    text = (DOCUMENTS / name).read_text()
    assert ADDRESS in text
    return text.replace(ADDRESS, f"{installation.url}/llama/v1").replace(KEY, installation.keys["live"])


def printed(
    command: programs.Command, *, folder: Path | None = None, environment: dict[str, str] | None = None
) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def curled(installation: Installation, folder: Path, name: str) -> list[Any]:
    """Return the chunks that the example's curl prints; curl reads the key from its configuration."""
    (folder / ".curlrc").write_text(
        f'header = "Authorization: Bearer {installation.keys["live"]}"\nsilent\nshow-error\n'
    )
    environment = {"CURL_HOME": str(folder), "PATH": str(Path(CURL).parent)}
    out = printed(["sh", "-c", example(installation, name)], environment=environment)
    *frames, done, rest = out.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def test_llamas_python_example_prints_the_answer(installation: Installation) -> None:
    assert printed([sys.executable, "-c", example(installation, "llama.py")]) == TEXT


def test_llamas_javascript_example_prints_the_answer(installation: Installation) -> None:
    folder = programs.node_packages("openai_node")
    command: programs.Command = [
        programs.NODE,
        "--input-type=module",
        "--eval",
        example(installation, "llama.mjs"),
    ]
    assert printed(command, folder=folder) == TEXT


@needs_curl
def test_llamas_chat_with_curl_has_the_documents_order(installation: Installation, tmp_path: Path) -> None:
    first, *contents, last = curled(installation, tmp_path, "llama_chat.sh")
    assert first["choices"][0]["delta"] == {"role": "assistant"}
    assert [chunk["choices"][0]["delta"].keys() for chunk in contents] == [{"content"}] * 16
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "length")


@needs_curl
def test_llamas_tool_call_with_curl_has_the_documents_order(
    tool_caller: Installation, tmp_path: Path
) -> None:
    first, *fragments, last = curled(tool_caller, tmp_path, "llama_tools.sh")
    assert first["choices"][0]["delta"] == {"role": "assistant"}
    named, *more = [call for chunk in fragments for call in chunk["choices"][0]["delta"]["tool_calls"]]
    assert named.keys() == {"index", "id", "type", "function"}
    assert named["function"] == {"name": "get_weather", "arguments": ""}
    assert all(call.keys() == {"index", "function"} for call in more)
    assert json.loads("".join(call["function"]["arguments"] for call in more)).keys() == {"city"}
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "tool_calls")


@needs_curl
def test_llamas_text_completion_with_curl_has_the_documents_members(
    installation: Installation, tmp_path: Path
) -> None:
    chunks = curled(installation, tmp_path, "llama_text.sh")
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert all(chunk["id"].startswith("cmpl-") for chunk in chunks)
    assert all(chunk["choices"][0].keys() >= {"text", "index"} for chunk in chunks)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks)
