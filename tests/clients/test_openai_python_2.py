"""OpenAI's Python client in the major version before the one that the other tests use."""

from typing import Any

import pytest

from tests.clients import programs
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("heavy clients"), pytest.mark.timeout(180)]

Result = dict[str, Any]


@pytest.fixture(scope="session", params=["openai", "opentoken", "llama"])
def result(installation: Installation, request: pytest.FixtureRequest) -> Result:
    """Return the report of openai_python_2/answers.py about the dialect."""
    result = programs.result(installation, programs.python("openai_python_2/answers.py"), request.param)
    assert result["version"].startswith("2.")
    return result


def test_the_loop_and_the_helper_get_the_same(result: Result) -> None:
    message = result["helped"]["choices"][0]["message"]
    assert (message["role"], message["content"]) == ("assistant", "".join(result["loop"]))
    assert result["helped"]["usage"]["completion_tokens"] == len(result["loop"]) == 6


def test_structured_output(result: Result) -> None:
    assert result["parsed"] == "Event"


def test_errors_are_raised_as_their_classes(result: Result) -> None:
    assert result["errors"] == {
        "gpt-99": "NotFoundError",
        "status-429": "RateLimitError",
        "status-500": "InternalServerError",
        "breaks-by-error": "APIError",
        "breaks-by-reset": "APIError",
    }


def test_the_agents_sdk_of_the_guide_to_responses(installation: Installation) -> None:
    code = programs.guide_example(installation, "responses", "python")
    assert programs.output_of([programs.VENV_PYTHON, "-c", code]) == "Hello!\n"
