"""OpenAI's Python client in the major version before the one that the other tests use."""

from typing import Any

import pytest

from tests.clients import programs
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("heavy clients"), pytest.mark.timeout(180)]

Told = dict[str, Any]


@pytest.fixture(scope="session", params=["openai", "opentoken", "llama"])
def told(installation: Installation, request: pytest.FixtureRequest) -> Told:
    """Return the report of openai_python_2/answers.py about the dialect."""
    told = programs.told(installation, programs.python("openai_python_2/answers.py"), request.param)
    assert told["version"].startswith("2.")
    return told


def test_the_loop_and_the_helper_hear_the_same(told: Told) -> None:
    message = told["helped"]["choices"][0]["message"]
    assert (message["role"], message["content"]) == ("assistant", "".join(told["loop"]))
    assert told["helped"]["usage"]["completion_tokens"] == len(told["loop"]) == 6


def test_structured_output(told: Told) -> None:
    assert told["parsed"] == "Event"


def test_errors_are_raised_as_their_classes(told: Told) -> None:
    assert told["errors"] == {
        "gpt-99": "NotFoundError",
        "status-429": "RateLimitError",
        "status-500": "InternalServerError",
        "breaks-by-error": "APIError",
        "breaks-by-reset": "APIError",
    }
