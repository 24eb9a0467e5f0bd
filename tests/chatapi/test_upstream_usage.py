"""An upstream's usage from its wire to the receipt: what the client is told is charged, and never more than
was held.
"""

from typing import Any

import pytest

from tests.chatapi.http_client import Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]


def asked(
    installation: Installation, client: Client, model: str, *, stream: bool, **parameters: Any
) -> tuple[Any, dict[str, Any]]:
    """The usage that the client was told, and the receipt."""
    if stream:
        chunks = client.stream(model, **parameters)
        return chunks[-1]["usage"], installation.receipt(chunks[-1]["id"])
    answer = client.complete(model, **parameters)
    return answer.json["usage"], installation.receipt(answer.json["id"])


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("model", ["tells-too-many-tokens", "tells-too-long-a-prompt"])
def test_implausible_usage_is_replaced_by_our_count(
    installation: Installation, client: Client, model: str, stream: bool
) -> None:
    told, receipt = asked(installation, client, model, stream=stream, max_tokens=10)
    assert (receipt["usage_source"], receipt["usage_note"]) == ("counted", "upstream_implausible")
    assert told == receipt["usage"]
    assert told["completion_tokens"] == 3
    assert told["prompt_tokens"] < 50
    assert (
        receipt["amount_nanodollars"]
        == sum(line["amount_nanodollars"] for line in receipt["line_items"])
        < 1_000_000
    )


@pytest.mark.parametrize("stream", [True, False])
def test_usage_of_each_choice_is_added_and_their_prompt_counts_once(
    installation: Installation, client: Client, stream: bool
) -> None:
    told, receipt = asked(installation, client, "tells-usage-by-choice", stream=stream, n=2)
    assert (receipt["usage_source"], receipt["usage_note"]) == ("upstream", "upstream_added")
    assert told == receipt["usage"]
    assert (told["prompt_tokens"], told["completion_tokens"]) == (7, 10)


def test_usage_as_most_tell_it_needs_no_note(installation: Installation, client: Client) -> None:
    _, receipt = asked(installation, client, "five", stream=True, n=2)
    assert (receipt["usage_source"], receipt["usage_note"]) == ("upstream", None)
