"""The JavaScript SDKs read every golden transcript's stream as the object that its body is, or throw its
error.
"""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients import programs
from tests.wire.dialect_cases import TRANSCRIPTS

pytestmark = [pytest.mark.xdist_group("clients"), pytest.mark.timeout(120)]

Found = dict[str, Any]
PARSED = {"parsed", "parsed_arguments"}
"""Members that the SDK adds to what it has read."""
FAILURES = {"upstream_disconnected", "upstream_unavailable", "stream_unavailable"}


def read(package: str, folder: str, *arguments: str) -> dict[Path, Found]:
    """Return what the SDK makes of each of the folder's streams, and of its refusal."""
    script = programs.node_packages(package) / "golden.mjs"
    names = sorted(
        path
        for path in (TRANSCRIPTS / folder).iterdir()
        if path.suffix == ".sse" or path.stem in {"refused", "float", "base64"}
    )
    paths = [path for path in names if not path.name.startswith("completion")]  # no stream helper reads them
    done = subprocess.run(
        [programs.NODE, script, *arguments, *paths], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return {Path(path): found for path, found in json.loads(done.stdout).items()}


def chat(document: Found) -> Found:
    """Return the members of a completion without those that the SDK fills in."""
    choices = [
        (choice["index"], choice["finish_reason"], _said(choice["message"])) for choice in document["choices"]
    ]
    return {"id": document["id"], "model": document["model"], "choices": choices}


def _said(message: Found) -> Found:
    said = {name: message.get(name) or "" for name in ("content", "refusal", "reasoning_content")}
    calls = [
        (call["id"], {name: call["function"][name] for name in ("name", "arguments")})
        for call in message.get("tool_calls") or ()
        if call["type"] == "function"
    ]
    return said | {"calls": calls}


def response(document: Found) -> Found:
    """Return the members of a response without the text and the parsed values, which the SDK adds."""
    found: Found = _without(document, PARSED | {"output_text", "output_parsed"})
    return found


def message(document: Found) -> Found:
    """Return the members of a message; `cache_creation` has no place in a stream's end, and a stream may
    hold a text back behind a call.
    """
    found: Found = _without(document, {"cache_creation", "parsed_output"})
    return found | {"content": sorted(found["content"], key=json.dumps)}


def _without(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {name: _without(member, names) for name, member in value.items() if name not in names}
    return [_without(each, names) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("package", "folder", "arguments", "said"),
    [
        ("openai_node", "openai", ["chat"], chat),
        ("openai_node", "opentoken", ["chat"], chat),
        ("openai_node", "responses", ["responses"], response),
        ("anthropic_node", "messages", [], message),
    ],
    ids=["chat, openai", "chat, opentoken", "responses", "messages"],
)
def test_a_stream_is_read_as_the_object_or_thrown_as_its_error(
    package: str, folder: str, arguments: list[str], said: Callable[[Found], Found]
) -> None:
    found = read(package, folder, *arguments)
    assert len(found) > 15
    for path, document in found.items():
        whole = path.with_suffix(".json")
        if path.stem != "refused" and whole.exists():
            assert "thrown" not in document, path
            assert said(document) == said(json.loads(whole.read_bytes())), path
        else:
            assert document["thrown"] in {"APIError", "InternalServerError", "OverloadedError"}, path
            assert document["code"] in FAILURES, path


def test_vectors_are_read_in_both_forms_or_thrown() -> None:
    found = {
        path.stem: document for path, document in read("openai_node", "embeddings", "embeddings").items()
    }
    for form in ("float", "base64"):
        assert [each["embedding"] for each in found[form]["data"]] == [[1, 0], [0.25, -0.5]]
    assert found["refused"] == {"thrown": "InternalServerError", "code": "upstream_disconnected"}
