"""LangChain's ChatOpenAI; langchain/answers.py is the program."""

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
    return programs.told(installation, [*programs.python("langchain/answers.py"), *DIALECTS])


@pytest.fixture(params=DIALECTS)
def told(tellings: Told, request: pytest.FixtureRequest) -> Told:
    """Return the program's report of one dialect."""
    told: Told = tellings[request.param]
    return told


def test_an_answer_and_a_stream_have_the_same_text_and_usage(told: Told) -> None:
    answer, stream = told["answer"], told["stream"]
    assert (answer["text"], len(stream["texts"])) == ("".join(stream["texts"]), 6)
    assert told["stream_asynchronously"] == stream["texts"]
    assert answer["finish_reason"] == stream["finish_reason"] == "stop"
    assert answer["usage"] == stream["usage"]
    assert answer["usage"]["output_tokens"] == 6


def test_tools_are_called_and_answered(told: Told) -> None:
    assert (
        told["tools"]["calls"]
        == told["tools"]["streamed"]
        == [["Weather", ["city"]], ["Event", ["guests", "title"]]]
    )
    assert told["tools"]["text"]


def test_structured_output(told: Told) -> None:
    assert told["structured"] == {"json_schema": "Event", "function_calling": "Event"}


def test_a_batch(told: Told) -> None:
    assert told["batch"] == [told["answer"]["text"]] * 5


def test_errors_are_raised_as_their_classes(told: Told) -> None:
    assert told["errors"] == {
        "gpt-99": ["OpenAIModelNotFoundError", ""],
        "too long": ["OpenAIContextOverflowError", ""],
        "status-429": ["OpenAIRateLimitError", ""],
        "status-500": ["OpenAIAPIError", ""],
        "breaks-by-error": ["APIError", " the of and"],
    }
