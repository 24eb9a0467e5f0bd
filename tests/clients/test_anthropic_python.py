"""Anthropic's own Python client, and the bytes behind it: messages, streams, tools, counts, errors."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic
from anthropic.types import MessageParam, ToolParam

from chatapi.wire.sse import Parser
from tests.chatapi.http_client import Answer, Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("clients"), pytest.mark.timeout(120)]

HELLO: list[MessageParam] = [{"role": "user", "content": "hello"}]
TOOL: ToolParam = {
    "name": "get_weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture(params=["", "/anthropic"])
def client(installation: Installation, request: pytest.FixtureRequest) -> Iterator[Anthropic]:
    """Anthropic's client with each base URL that is meant for it."""
    with Anthropic(
        base_url=installation.url + request.param, api_key=installation.keys["live"], max_retries=0
    ) as client:
        yield client


def post(http: Client, path: str = "/v1/messages", key: str | None = None, **members: Any) -> Answer:
    body = {"model": "sandbox", "max_tokens": 99, "messages": HELLO} | members
    return http.send("POST", path, json.dumps(body).encode(), authorization=None, x_api_key=key or http.key)


def events(body: bytes) -> list[str]:
    found = [event.type for event in Parser().feed(body)]
    return [
        kind for index, kind in enumerate(found) if kind != "content_block_delta" or kind != found[index - 1]
    ]


def user(content: str) -> list[MessageParam]:
    return [{"role": "user", "content": content}]


def input_tokens(usage: Any) -> int:
    """All kinds together."""
    read, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    return int(usage.input_tokens + read + written)


# ---- answers


def test_a_message(client: Anthropic, installation: Installation) -> None:
    message = client.messages.create(model="sandbox-echo", max_tokens=99, messages=HELLO)
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "hello"}]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message._request_id is not None
    assert message._request_id.startswith("req_")
    receipt = installation.receipt(message.id)
    assert (receipt["endpoint"], receipt["dialect"]) == ("messages", "anthropic")
    used = receipt["usage"]
    assert input_tokens(message.usage) == used["prompt_tokens"]
    assert message.usage.output_tokens == used["completion_tokens"]


def test_a_stream_begins_with_an_estimate_and_ends_with_what_is_charged(
    client: Anthropic, installation: Installation
) -> None:
    with client.messages.stream(model="sandbox-reasoning", max_tokens=99, messages=HELLO) as stream:
        starts = [event.message.usage.input_tokens for event in stream if event.type == "message_start"]
        message = stream.get_final_message()
    used = installation.receipt(message.id)["usage"]
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert starts == [used["prompt_tokens"]] == [input_tokens(message.usage)]
    assert message.usage.output_tokens == used["completion_tokens"]
    assert message.usage.output_tokens_details is not None
    assert message.usage.output_tokens_details.thinking_tokens == 16


@pytest.mark.parametrize(
    ("model", "content", "stop_reason"),
    [
        ("sandbox", "[sandbox tokens=3]", "end_turn"),
        ("sandbox-length", "hello", "max_tokens"),
        ("sandbox-content-filter", "hello", "refusal"),
        ("sandbox-refusal", "hello", "refusal"),
    ],
)
def test_why_it_ended(client: Anthropic, model: str, content: str, stop_reason: str) -> None:
    message = client.messages.create(model=model, max_tokens=99, messages=user(content))
    assert message.stop_reason == stop_reason
    assert message.content[0].type == "text"


def test_which_sequence_matched(client: Anthropic) -> None:
    with client.messages.stream(
        model="sandbox-echo", max_tokens=99, messages=user("one two three"), stop_sequences=["two", "x"]
    ) as stream:
        message = stream.get_final_message()
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "two")
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "one "}]


def test_a_loop_with_tools(client: Anthropic) -> None:
    asked = {"model": "sandbox-parallel-tool-calls", "max_tokens": 99, "tools": [TOOL]}
    with client.messages.stream(messages=HELLO, **asked) as stream:  # type: ignore[arg-type]
        message = stream.get_final_message()
    calls = [block for block in message.content if block.type == "tool_use"]
    assert (message.stop_reason, len(calls)) == ("tool_use", 2)
    assert all(call.name == "get_weather" and isinstance(call.input["city"], str) for call in calls)
    results: MessageParam = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"} for call in calls],
    }
    turn: MessageParam = {"role": "assistant", "content": message.content}
    answer = client.messages.create(messages=[*HELLO, turn, results], **asked)  # type: ignore[call-overload]
    assert answer.stop_reason == "end_turn"


def test_two_calls_of_an_upstream(client: Anthropic) -> None:
    with client.messages.stream(model="calls-tools", max_tokens=99, messages=HELLO, tools=[TOOL]) as stream:
        streamed = stream.get_final_message()
    message = client.messages.create(model="calls-tools", max_tokens=99, messages=HELLO, tools=[TOOL])
    assert [block.to_dict() for block in streamed.content] == [block.to_dict() for block in message.content]
    assert [block.type for block in message.content].count("tool_use") == 2


def test_what_newer_clients_send_is_accepted_and_named(http: Client) -> None:
    answer = post(
        http,
        "/v1/messages?beta=true",
        thinking={"type": "adaptive"},
        container="c",
        context_management={"edits": []},
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        tools=[TOOL, {"type": "web_search_20250305", "name": "web_search"}],
    )
    assert (answer.status, answer.headers["request-id"]) == (200, answer.headers["x-request-id"])
    named = set((answer.headers["x-chatapi-ignored"] or "").split(", "))
    assert named == {"thinking", "container", "context_management", "tools[1]", "cache_control"}


def test_the_bytes_of_a_stream(http: Client) -> None:
    answer = post(http, stream=True)
    assert events(answer.body) == [
        *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    path = f"/v1/generations/{answer.headers['x-generation-id']}/stream"
    again = http.send("GET", path, None, authorization=None, x_api_key=http.key).body
    lines = again.splitlines(keepends=True)
    assert b"".join(line for line in lines if not line.startswith(b"id: ")) == answer.body


def test_a_keep_alive_is_an_event(installation: Installation) -> None:
    with installation.another_web(CHATAPI_PING_MS="200") as impatient:
        http = Client(impatient.url, installation.keys["live"])
        answer = post(http, stream=True, messages=user("[sandbox tokens=2 first_delay_ms=700]"))
    assert answer.body.startswith(b'event: ping\ndata: {"type":"ping"}\n\n')
    assert b": ping" not in answer.body.replace(b"event: ping", b"")


def test_a_cancelled_stream_is_whole(http: Client) -> None:
    body = {"model": "sandbox", "max_tokens": 99, "stream": True, "messages": user("[sandbox delay_ms=300]")}
    with http.exchange("POST", "/v1/messages", json.dumps(body).encode(), {}) as exchange:
        generation_id = exchange.response.headers["x-generation-id"]
        cancelled = http.send("POST", f"/v1/generations/{generation_id}/cancel")
        answer = exchange.read()
    assert cancelled.status == 202
    assert events(answer.body)[-2:] == ["message_delta", "message_stop"]


# ---- counting


def test_tokens_are_counted_for_nothing(client: Anthropic) -> None:
    asked: Any = {"model": "sandbox", "messages": HELLO, "system": "Be brief.", "tools": [TOOL]}
    counted = client.messages.count_tokens(**asked)
    assert counted.input_tokens == client.messages.create(max_tokens=9, **asked).usage.input_tokens
    with pytest.raises(anthropic.NotFoundError):
        client.messages.count_tokens(model="unknown", messages=HELLO)


def test_large_prompts_are_counted_in_a_bounded_time(http: Client) -> None:
    words = "morning river harbor light stone garden " * 50_000
    counted = post(http, "/v1/messages/count_tokens", messages=user(words))
    assert (counted.status, abs(counted.json["input_tokens"] / 300_000 - 1) < 0.05) == (200, True)


# ---- errors


def test_an_unknown_model(client: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as raised:
        client.messages.create(model="unknown", max_tokens=9, messages=HELLO)
    assert raised.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    assert raised.value.request_id is not None


def test_a_wrong_parameter_is_named(client: Anthropic) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "<svg>"}
    messages: Any = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content\[0\]\.source\.data"):
        client.messages.create(model="sandbox", max_tokens=9, messages=messages)


def test_a_wrong_key(installation: Installation) -> None:
    with (
        Anthropic(base_url=installation.url, api_key="wrong", max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError),
    ):
        client.messages.create(model="sandbox", max_tokens=9, messages=HELLO)


def test_a_bearer_token(installation: Installation) -> None:
    with Anthropic(base_url=installation.url, auth_token=installation.keys["live"]) as client:
        assert client.messages.create(model="sandbox", max_tokens=9, messages=HELLO).content


@pytest.mark.parametrize("stream", [False, True])
def test_no_retry_helps_who_has_no_money(http: Client, poor_key: str, stream: bool) -> None:
    answer = post(http, key=poor_key, stream=stream)
    assert (answer.status, answer.headers["x-should-retry"]) == (402, "false")
    assert answer.json["error"]["type"] == "billing_error"


@pytest.mark.parametrize(
    ("model", "status", "kind"),
    [
        ("status-503", 529, "overloaded_error"),
        ("status-500", 502, "api_error"),
        ("status-429", 429, "rate_limit_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_first_byte(
    http: Client, model: str, status: int, kind: str, stream: bool
) -> None:
    answer = post(http, model=model, stream=stream)
    assert (answer.status, answer.json["error"]["type"]) == (status, kind)
    assert answer.json["request_id"] == answer.headers["request-id"]


def test_a_failure_inside_the_stream(client: Anthropic) -> None:
    with (
        pytest.raises(anthropic.APIStatusError) as raised,
        client.messages.stream(model="breaks-by-error", max_tokens=99, messages=HELLO) as stream,
    ):
        stream.until_done()
    assert raised.value.body["error"]["type"] == "api_error"  # type: ignore[index]


def test_another_method_and_another_type_are_refused_in_the_same_envelope(http: Client) -> None:
    refused = [
        http.send("GET", "/v1/messages"),
        http.send("POST", "/v1/messages/count_tokens", b"{}", content_type="text/plain"),
    ]
    assert [answer.status for answer in refused] == [405, 415]
    assert {answer.json["error"]["type"] for answer in refused} == {"invalid_request_error"}
