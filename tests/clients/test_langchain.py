"""LangChain's ChatOpenAI; langchain/answers.py is the program."""

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
    return programs.result(installation, [*programs.python("langchain/answers.py"), *DIALECTS])


@pytest.fixture(params=DIALECTS)
def result(results: Result, request: pytest.FixtureRequest) -> Result:
    """Return the program's report of one dialect."""
    result: Result = results[request.param]
    return result


def test_an_answer_and_a_stream_have_the_same_text_and_usage(result: Result) -> None:
    answer, stream = result["answer"], result["stream"]
    assert (answer["text"], len(stream["texts"])) == ("".join(stream["texts"]), 6)
    assert result["stream_asynchronously"] == stream["texts"]
    assert answer["finish_reason"] == stream["finish_reason"] == "stop"
    assert answer["usage"] == stream["usage"]
    assert answer["usage"]["output_tokens"] == 6


def test_tools_are_called_and_answered(result: Result) -> None:
    assert (
        result["tools"]["calls"]
        == result["tools"]["streamed"]
        == [["Weather", ["city"]], ["Event", ["guests", "title"]]]
    )
    assert result["tools"]["text"]


def test_structured_output(result: Result) -> None:
    assert result["structured"] == {"json_schema": "Event", "function_calling": "Event"}


def test_a_batch(result: Result) -> None:
    assert result["batch"] == [result["answer"]["text"]] * 5


def test_errors_are_raised_as_their_classes(result: Result) -> None:
    assert result["errors"] == {
        "gpt-99": ["OpenAIModelNotFoundError", ""],
        "too long": ["OpenAIContextOverflowError", ""],
        "status-429": ["OpenAIRateLimitError", ""],
        "status-500": ["OpenAIAPIError", ""],
        "breaks-by-error": ["APIError", " the of and"],
    }
