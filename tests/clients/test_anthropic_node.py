"""Anthropic's TypeScript SDK, whose reader of streams is the strictest; anthropic_node/messages.mjs is the
program.
"""

from typing import Any

import pytest

from tests.clients import programs
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("clients"), pytest.mark.timeout(180)]
STOP_REASONS = {
    "five": "end_turn",
    "calls-tools": "tool_use",
    "sandbox-reasoning": "end_turn",
    "sandbox-refusal": "refusal",
    "sandbox-length": "max_tokens",
    "sandbox-content-filter": "refusal",
}


@pytest.fixture(scope="module")
def result(installation: Installation) -> dict[str, Any]:
    script = programs.node_packages("anthropic_node") / "messages.mjs"
    return programs.result(installation, [programs.NODE, script])


def test_streams_end_with_their_reason_and_the_charge_is_their_usage(
    result: dict[str, Any], installation: Installation
) -> None:
    for model, message in result["streamed"].items():
        assert message["stop_reason"] == STOP_REASONS[model]
        usage = installation.receipt(message["id"])["usage"]
        tokens = [message["usage"][kind] for kind in ("input_tokens", "output_tokens")]
        assert tokens == [usage["prompt_tokens"], usage["completion_tokens"]]


def test_a_stream_and_an_object_have_the_same_blocks(result: dict[str, Any]) -> None:
    for model, message in result["whole"].items():
        kinds = [block["type"] for block in message["content"]]
        assert kinds == [block["type"] for block in result["streamed"][model]["content"]]
        texts = [block["text"] for block in message["content"] if block["type"] == "text"]
        assert texts == [
            block["text"] for block in result["streamed"][model]["content"] if block["type"] == "text"
        ]
    calls = result["streamed"]["calls-tools"]["content"]
    assert [(block["type"], block["name"]) for block in calls] == [("tool_use", "lookup")] * 2


def test_errors_counts_and_models(result: dict[str, Any]) -> None:
    assert result["broken"] is not None
    assert result["unknown"] == ["NotFoundError", 404]
    assert result["counted"] > 0
    assert len(result["models"]) == len(set(result["models"])) > 3
