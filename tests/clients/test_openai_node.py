"""OpenAI's own JavaScript client, on the Node that pip installed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.clients import programs
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("clients"), pytest.mark.timeout(120)]

TEXT = " the of and to in"

Node = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def folder() -> Path:
    """Return the scripts beside the pinned client."""
    return programs.node_packages("openai_node")


@pytest.fixture(params=["openai", "opentoken", "llama"])
def node(installation: Installation, folder: Path, request: pytest.FixtureRequest) -> Node:
    """Runs a script to its end and returns what it tells."""

    def run(script: str) -> dict[str, Any]:
        return programs.result(installation, [programs.NODE, folder / f"{script}.mjs"], request.param)

    return run


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def test_a_completion(node: Node, installation: Installation) -> None:
    result = node("whole")
    completion = ChatCompletion.model_validate(result["completion"])
    assert completion.choices[0].message.content == TEXT
    assert result["generationId"] == completion.id
    assert result["requestId"].startswith("req_")
    assert result["completion"]["usage"] == installation.receipt(completion.id)["usage"]


def test_a_stream_and_the_stream_helper(node: Node, installation: Installation) -> None:
    result = node("stream")
    chunks = [ChatCompletionChunk.model_validate(chunk) for chunk in result["chunks"]]
    assert text_of(chunks) == TEXT
    assert result["chunks"][-1]["usage"] == installation.receipt(chunks[0].id)["usage"]
    helped = ChatCompletion.model_validate(result["helped"])
    assert result["helped"]["usage"] == installation.receipt(helped.id)["usage"]
    assert [call.id for call in helped.choices[0].message.tool_calls or []] == ["call_up_0", "call_up_1"]
    assert {
        call["function"]["arguments"] for call in result["helped"]["choices"][0]["message"]["tool_calls"]
    } == {'{"city":" the"}'}


def test_what_models_can_do(node: Node) -> None:
    result = node("features")
    assert json.loads(result["structured"]).keys() == {"title"}
    assert (len(result["asked"]), bool(result["looped"])) == (1, True)
    assert len(set(result["two"])) == 2
    assert "".join(result["tokens"]) == result["text"] == result["two"][0]


def test_text_completions(node: Node) -> None:
    result = node("text")
    assert result["completion"]["object"] == "text_completion"
    completion = Completion.model_validate(result["completion"])
    assert (
        "".join(choice["text"] for chunk in result["chunks"] for choice in chunk["choices"])
        == completion.choices[0].text
    )


def test_models_are_listed_and_retrieved(node: Node) -> None:
    result = node("models")
    assert {"five", "org/with-slash"} <= set(result["ids"])
    assert (result["one"]["id"], result["one"]["object"]) == ("five", "model")


def test_failures_are_thrown_as_their_classes(node: Node) -> None:
    result = node("errors")
    assert all(error["isOurs"] for error in result.values())
    assert {kind: (error["class"], error["status"], error.get("code")) for kind, error in result.items()} == {
        "wrongKey": ("AuthenticationError", 401, "invalid_api_key"),
        "unknownModel": ("NotFoundError", 404, "model_not_found"),
        "wrongParameter": ("BadRequestError", 400, "invalid_value"),
        "busyUpstream": ("RateLimitError", 429, "upstream_rate_limited"),
        "failingUpstream": ("InternalServerError", 502, "upstream_error"),
        "midStream": ("APIError", None, "upstream_disconnected"),
        "tooSlow": ("APIConnectionTimeoutError", None, None),
    }
    assert result["wrongParameter"]["param"] == "max_tokens"


@pytest.mark.parametrize("way", ["abort", "break"])
def test_leaving_a_stream_cuts_the_upstream(installation: Installation, folder: Path, way: str) -> None:
    with programs.running(installation, [programs.NODE, folder / "cancel.mjs", way]) as process:
        assert process.stdout is not None
        result = json.loads(process.stdout.readline())
        wait_for(
            lambda: bool(installation.calls("three-then-silence")[-1]["is_peer_gone"]), "the cut", timeout_s=2
        )
        assert process.poll() is None
    assert (result["texts"], result["isAborted"]) == (3, True)
    receipt = installation.receipt(result["id"])
    assert (receipt["outcome"], receipt["usage"]["completion_tokens"]) == ("client_cancelled", 3)


def test_responses(installation: Installation, folder: Path) -> None:
    result = programs.result(installation, [programs.NODE, folder / "responses.mjs"], "openai")
    finals = {model: final["response"] for model, final in result["finals"].items()}
    assert [response.get("error") for response in finals.values()] == [None] * len(finals)
    assert {response["status"] for response in finals.values()} == {"completed", "incomplete"}
    assert [item["type"] for item in finals["calls-tools"]["output"]] == ["function_call"] * 2
    assert finals["five"]["output_text"] == TEXT
    assert result["finals"]["five"]["types"][-1] == "response.completed"
    assert result["failed"] == "APIError"
    assert result["next"]["previous_response_id"] == finals["five"]["id"]
