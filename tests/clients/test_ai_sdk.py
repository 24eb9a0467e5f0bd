"""The Vercel AI SDK with its providers: `@ai-sdk/openai` (Responses by default, and chat completions),
`@ai-sdk/openai-compatible` and `@ai-sdk/anthropic`.
"""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.clients import programs
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("heavy clients"), pytest.mark.timeout(180)]

Result = dict[str, Any]
Node = Callable[[str], Result]


@pytest.fixture(scope="session")
def folder() -> Path:
    """Return the scripts beside the pinned packages."""
    return programs.node_packages("ai_sdk")


PROVIDERS = [
    ("openai", "openai"),
    ("anthropic", "openai"),
    *(
        (provider, dialect)
        for provider in ("chat", "compatible")
        for dialect in ("openai", "opentoken", "llama")
    ),
]


@pytest.fixture(scope="session", params=PROVIDERS, ids="-".join)
def target(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Return a provider, and the dialect that it is pointed at."""
    target: tuple[str, str] = request.param
    return target


@pytest.fixture(scope="session")
def provider(target: tuple[str, str]) -> str:
    return target[0]


@pytest.fixture(scope="session")
def node(installation: Installation, folder: Path, target: tuple[str, str]) -> Node:
    """Runs a script with the provider against a dialect, once, and returns what it tells."""
    provider, dialect = target
    return cache(
        lambda script: programs.result(
            installation, [programs.NODE, folder / f"{script}.mjs", provider], dialect
        )
    )


def test_answers(node: Node, installation: Installation) -> None:
    result = node("answers")
    assert (len(result["texts"]), "".join(result["texts"])) == (6, result["text"])
    assert result["finishReason"] == result["streamedFinishReason"] == "stop"
    usage = installation.receipt(result["id"])["usage"]
    names = {
        "inputTokens": "prompt_tokens",
        "outputTokens": "completion_tokens",
        "totalTokens": "total_tokens",
    }
    assert result["usage"] == result["streamedUsage"] == {name: usage[ours] for name, ours in names.items()}
    assert result["structured"].keys() == {"title"}


def test_reasoning_is_understood_where_the_provider_knows_it(node: Node, provider: str) -> None:
    # With Responses it shows summaries of reasoning, which no upstream here makes.
    assert bool(node("answers")["reasoning"]) == (provider in {"compatible", "anthropic"})


def test_embeddings(node: Node) -> None:
    assert node("answers")["embeddings"] == [1536, 1536]


def test_text_completions_are_the_same_streamed_or_not(node: Node) -> None:
    result = node("answers")
    assert result["completion"] == result["completed"] != ""


def test_tools_are_run_until_there_is_an_answer(node: Node) -> None:
    result = node("tools")
    assert sorted(result["asked"]) == [["time", "string"]] * 2 + [["weather", "string"]] * 2
    (called, nothing), (stopped, text) = result["whole"]
    assert (called, nothing, stopped, bool(text)) == ("tool-calls", "", "stop", True)
    assert result["streamed"] == result["whole"]


def test_errors(node: Node, provider: str) -> None:
    expected = {
        "unknownModel": (404, False),
        "wrongParameter": (400, False),
        "busyUpstream": (429, True),
        "failingUpstream": (502, True),
    }
    if provider == "anthropic":
        del expected["wrongParameter"]  # a temperature above 1 is lowered before it is sent
    result = node("errors")
    refused = {name: result[name] for name in expected}
    assert all(error["isOurs"] for error in refused.values())
    assert {name: (error["status"], error["isRetryable"]) for name, error in refused.items()} == expected
    assert "gpt-99" in refused["unknownModel"]["message"]


def test_a_stream_that_breaks_off_tells_an_error_after_its_text(node: Node) -> None:
    result = node("errors")
    assert result["brokenOff"].count("text-delta") == 3
    assert "error" in result["brokenOff"]
    assert result["error"]


def test_a_stream_that_is_left_cuts_the_upstream(node: Node, installation: Installation) -> None:
    result = node("errors")
    assert result["left"][-1] == "abort"
    wait_for(
        lambda: bool(installation.calls("three-then-silence")[-1]["is_peer_gone"]), "the cut", timeout_s=2
    )


def test_the_example_of_the_guide_to_responses_works(installation: Installation, folder: Path) -> None:
    # As minutes later, when the answer is not kept any more.
    next_turn = f"""
        const headers = {{ authorization: `Bearer ${{process.env.CHATAPI_KEY}}` }};
        await fetch(`{installation.url}/v1/responses/${{response.id}}`, {{ method: "DELETE", headers }});
        const messages = [...response.messages, {{ role: "user", content: "And again!" }}];
        console.log(text, (await generateText({{ model, providerOptions, messages }})).text);
    """
    code = programs.guide_example(installation, "responses", "js") + next_turn
    environment = os.environ | {"CHATAPI_KEY": installation.keys["live"]}
    command: programs.Command = [programs.NODE, "--input-type=module", "--eval", code]
    assert programs.output_of(command, cwd=folder, env=environment) == "Hello! And again!\n"
