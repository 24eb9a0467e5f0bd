"""An upstream's usage from its wire to the receipt: what the client gets is charged, and never more than
was held.
"""

import json
from typing import Any

import pytest

from chatapi.wire.sse import Parser
from tests.chatapi.http_client import Answer, Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]


def asked(
    installation: Installation, client: Client, model: str, *, stream: bool, **parameters: Any
) -> tuple[Any, dict[str, Any]]:
    """Return the usage in the answer, and the receipt."""
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
    sent, receipt = asked(installation, client, model, stream=stream, max_tokens=10)
    assert (receipt["usage_source"], receipt["usage_note"]) == ("counted", "upstream_implausible")
    assert sent == receipt["usage"]
    assert sent["completion_tokens"] == 3
    assert sent["prompt_tokens"] < 50
    assert (
        receipt["amount_nanodollars"]
        == sum(line["amount_nanodollars"] for line in receipt["line_items"])
        < 1_000_000
    )


@pytest.mark.parametrize("stream", [True, False])
def test_usage_of_each_choice_is_added_and_their_prompt_counts_once(
    installation: Installation, client: Client, stream: bool
) -> None:
    sent, receipt = asked(installation, client, "tells-usage-by-choice", stream=stream, n=2)
    assert (receipt["usage_source"], receipt["usage_note"]) == ("upstream", "upstream_added")
    assert sent == receipt["usage"]
    assert (sent["prompt_tokens"], sent["completion_tokens"]) == (7, 10)


@pytest.mark.parametrize("stream", [True, False])
def test_the_kinds_of_input_reach_client_and_receipt(
    installation: Installation, client: Client, stream: bool
) -> None:
    sent, receipt = asked(installation, client, "tells-cache-writes", stream=stream)
    assert sent["prompt_tokens_details"] == {"cached_tokens": 4, "cache_write_tokens": 10}
    details = {**sent["prompt_tokens_details"], "cache_write_1h_tokens": 3}
    assert receipt["usage"] == {**sent, "prompt_tokens_details": details}
    lines = {line["name"]: (line["tokens"], line["amount_usd"]) for line in receipt["line_items"]}
    assert lines == {
        "input": (6, "0.000006"),
        "cached_input": (4, "0.000002"),
        "cache_write": (7, "0.00000875"),
        "cache_write_1h": (3, "0.000006"),
        "output": (5, "0.00001"),
    }
    assert receipt["amount_usd"] == "0.00003275"


def test_responses_have_the_receipts_usage(installation: Installation, client: Client) -> None:
    """In a stream, whole, read again, and stored."""
    for stream in (True, False):
        body = {"model": "tells-cache-writes", "input": "Hi", "stream": stream}
        answer = client.send("POST", "/v1/responses", json.dumps(body).encode())
        generation = answer.headers["x-generation-id"]
        receipt = installation.receipt(generation)["usage"]
        again = client.send("GET", f"/v1/generations/{generation}/stream")
        stored = client.send("GET", f"/v1/responses/{generation}").json
        bodies = [stored, last(again)["response"], last(answer)["response"] if stream else answer.json]
        details = receipt["prompt_tokens_details"]
        for found in (body["usage"] for body in bodies):
            assert found["input_tokens"] == receipt["prompt_tokens"]
            assert found["output_tokens"] == receipt["completion_tokens"]
            assert found["total_tokens"] == receipt["total_tokens"]
            assert found["input_tokens_details"].items() <= details.items()


def test_messages_have_the_receipts_usage(installation: Installation, client: Client) -> None:
    """In a stream, whole, and read again."""
    for stream in (True, False):
        said = [{"role": "user", "content": "Hi"}]
        body = {"model": "tells-cache-writes", "messages": said, "max_tokens": 99, "stream": stream}
        answer = client.send("POST", "/v1/messages", json.dumps(body).encode())
        generation = answer.headers["x-generation-id"]
        receipt = installation.receipt(generation)["usage"]
        again = client.send("GET", f"/v1/generations/{generation}/stream")
        bodies = [last(again, "message_delta"), last(answer, "message_delta") if stream else answer.json]
        details = receipt["prompt_tokens_details"]
        for found in (body["usage"] for body in bodies):
            kinds = [found[f"{kind}input_tokens"] for kind in ("", "cache_creation_", "cache_read_")]
            assert sum(kinds) == receipt["prompt_tokens"]
            assert kinds[1:] == [details["cache_write_tokens"], details["cached_tokens"]]
            assert found["cache_creation"]["ephemeral_1h_input_tokens"] == details["cache_write_1h_tokens"]
            assert found["output_tokens"] == receipt["completion_tokens"]


def last(answer: Answer, kind: str = "") -> dict[str, Any]:
    """Return the last event of that type; without one, the last of all."""
    events: list[dict[str, Any]] = [json.loads(event.data) for event in Parser().feed(answer.body)]
    return [event for event in events if kind in ("", event["type"])][-1]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("model", "prompt", "tokens"),
    [("tells-too-few-tokens", "Hi", (7, 3)), ("tells-too-short-a-prompt", "the of and to in " * 400, (2, 5))],
)
def test_usage_far_below_our_count_is_charged_and_noted(
    installation: Installation, client: Client, stream: bool, model: str, prompt: str, tokens: tuple[int, int]
) -> None:
    messages = [{"role": "user", "content": prompt}]
    sent, receipt = asked(installation, client, model, stream=stream, messages=messages)
    assert (receipt["usage_source"], receipt["usage_note"]) == ("upstream", "upstream_low")
    assert sent == receipt["usage"]
    assert (sent["prompt_tokens"], sent["completion_tokens"]) == tokens


def test_usage_as_most_tell_it_needs_no_note(installation: Installation, client: Client) -> None:
    _, receipt = asked(installation, client, "five", stream=True, n=2)
    assert (receipt["usage_source"], receipt["usage_note"]) == ("upstream", None)
