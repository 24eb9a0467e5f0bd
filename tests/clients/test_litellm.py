"""LiteLLM as a client; litellm/answers.py is the program."""

from typing import Any

import pytest

from chatapi.wire.protocols.chat import CHAT
from tests.clients import programs
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("heavy clients"), pytest.mark.timeout(180)]

# All but Bitseek's, which is for clients of its own.
DIALECTS = [name for name in CHAT.dialects if name != "bitseek"]
Result = dict[str, Any]


@pytest.fixture(scope="session")
def results(installation: Installation) -> Result:
    """Return the program's report of each dialect; it runs once, because its imports take longest."""
    return programs.result(installation, [*programs.python("litellm/answers.py"), *DIALECTS])


@pytest.fixture(params=DIALECTS)
def result(results: Result, request: pytest.FixtureRequest) -> Result:
    """Return the program's report of one dialect."""
    result: Result = results[request.param]
    return result


def test_an_answer_and_a_stream_have_the_same_text_and_usage(
    result: Result, installation: Installation
) -> None:
    answer, stream = result["answer"], result["stream"]
    assert (answer["text"], len(stream["texts"])) == ("".join(stream["texts"]), 6)
    assert result["stream_asynchronously"] == stream["texts"]
    assert answer["finish_reason"] == stream["finish_reason"] == "stop"
    usage = installation.receipt(answer["id"])["usage"]
    assert (
        answer["usage"]
        == stream["usage"]
        == [usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    )


def test_tool_calls_are_the_same_streamed_or_not(result: Result) -> None:
    assert result["tools"]["calls"] == result["tools"]["streamed"] == [["weather", ["city"]]] * 2


def test_reasoning_is_understood(result: Result) -> None:
    assert result["reasoning"]


def test_text_completions_are_the_same_streamed_or_not(result: Result) -> None:
    assert result["text"]["whole"] == result["text"]["streamed"] != ""


def test_errors_are_raised_as_their_classes(result: Result) -> None:
    assert result["errors"] == {
        "gpt-99": ["NotFoundError", ""],
        "status-429": ["RateLimitError", ""],
        "status-500": ["BadGatewayError", ""],
        "breaks-by-error": ["MidStreamFallbackError", " the of and"],
    }
