"""LiteLLM as a client; litellm/answers.py is the program."""

from typing import Any

import pytest

from tests.clients import programs
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("heavy clients"), pytest.mark.timeout(180)]

DIALECTS = ["openai", "opentoken", "llama"]
Told = dict[str, Any]


@pytest.fixture(scope="session")
def tellings(installation: Installation) -> Told:
    """Return the program's report of each dialect; it runs once, because its imports take longest."""
    return programs.told(installation, [*programs.python("litellm/answers.py"), *DIALECTS])


@pytest.fixture(params=DIALECTS)
def told(tellings: Told, request: pytest.FixtureRequest) -> Told:
    """Return the program's report of one dialect."""
    told: Told = tellings[request.param]
    return told


def test_an_answer_and_a_stream_have_the_same_text_and_usage(told: Told, installation: Installation) -> None:
    answer, stream = told["answer"], told["stream"]
    assert (answer["text"], len(stream["texts"])) == ("".join(stream["texts"]), 6)
    assert told["stream_asynchronously"] == stream["texts"]
    assert answer["finish_reason"] == stream["finish_reason"] == "stop"
    usage = installation.receipt(answer["id"])["usage"]
    assert (
        answer["usage"]
        == stream["usage"]
        == [usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    )


def test_tool_calls_are_the_same_streamed_or_not(told: Told) -> None:
    assert told["tools"]["calls"] == told["tools"]["streamed"] == [["weather", ["city"]]] * 2


def test_reasoning_is_understood(told: Told) -> None:
    assert told["reasoning"]


def test_text_completions_are_the_same_streamed_or_not(told: Told) -> None:
    assert told["text"]["whole"] == told["text"]["streamed"] != ""


def test_errors_are_raised_as_their_classes(told: Told) -> None:
    assert told["errors"] == {
        "gpt-99": ["NotFoundError", ""],
        "status-429": ["RateLimitError", ""],
        "status-500": ["BadGatewayError", ""],
        "breaks-by-error": ["MidStreamFallbackError", " the of and"],
    }
