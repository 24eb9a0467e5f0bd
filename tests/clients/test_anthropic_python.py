"""Anthropic's own Python client, and the bytes behind it: messages, streams, tools, counts, errors."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, beta_tool
from anthropic.types import MessageParam, ModelInfo, ToolParam

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
    """Return Anthropic's client with each base URL that is meant for it."""
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
    """Return the sum of all kinds of input tokens."""
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


def test_a_tool_runner(client: Anthropic) -> None:
    """It sends only what is new of each turn, unless the server says that it keeps no thread."""

    @beta_tool
    def get_weather(city: str) -> str:
        return f"sunny in {city}"

    asked: dict[str, Any] = {"model": "sandbox-parallel-tool-calls", "max_tokens": 99, "tools": [get_weather]}
    run: Any = client.beta.messages.tool_runner
    whole = [turn.stop_reason for turn in run(messages=HELLO, **asked)]
    streamed = [turn.get_final_message().stop_reason for turn in run(messages=HELLO, stream=True, **asked)]
    assert whole == streamed == ["tool_use", "end_turn"]


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
def test_no_retry_is_suggested_without_money(http: Client, poor_key: str, stream: bool) -> None:
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


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/models/unknown", "not_found_error"),
        ("/v1/models?limit=x", "invalid_request_error"),
        ("/messages", "not_found_error"),
        ("/anthropic/messages", "not_found_error"),
    ],
)
def test_shared_routes_refuse_in_the_clients_envelope(http: Client, path: str, kind: str) -> None:
    answer = http.send("GET", path, anthropic_version="2023-06-01")
    assert (answer.json["type"], answer.json["error"]["type"]) == ("error", kind)
    assert answer.json["request_id"] == answer.headers["request-id"]
    if "models" in path:
        assert "param" in http.send("GET", path).json["error"]
    else:
        assert "Did you mean" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/generations/msg_1"),
        ("GET", "/v1/generations/msg_1/stream"),
        ("POST", "/v1/generations/msg_1/cancel"),
        ("GET", "/v1/models/unknown"),
        ("GET", "/v1/unknown"),
    ],
)
def test_the_version_is_enough_for_the_envelope(http: Client, method: str, path: str) -> None:
    for prefix in ("", "/anthropic", "/openai"):
        answer = http.send(method, prefix + path, anthropic_version="2023-06-01")
        assert (answer.json["type"], answer.json["error"]["type"]) == ("error", "not_found_error")
        assert answer.json["request_id"] == answer.headers["request-id"]
        stranger = http.send(method, prefix + path, anthropic_version="2023-06-01", authorization=None)
        assert stranger.json["type"] == "error"
    assert "param" in http.send(method, path).json["error"]


def test_models_have_what_the_published_type_requires(http: Client) -> None:
    models = http.send("GET", "/v1/models", anthropic_version="2023-06-01").json["data"]
    for model in (*models, http.send("GET", "/anthropic/v1/models/sandbox").json):
        assert ModelInfo.model_validate_json(json.dumps(model), strict=True).lifecycle == "active"


# ---- an Anthropic upstream

UPSTREAM = """
[[models]]
id = "{name}"
context_window = 200000
max_output_tokens = 8192
[models.price]
input_per_mtok = "{prices[0]}"
cached_input_per_mtok = "{prices[1]}"
cache_write_per_mtok = "{prices[2]}"
cache_write_1h_per_mtok = "{prices[3]}"
output_per_mtok = "{prices[4]}"
[[models.deployments]]
engine = "anthropic"
base_url = "{url}/v1"
upstream_model = "{name}"
extra_parameters = ["cache_control"]
"""
SONNET, OPUS = (3, 0.3, 3.75, 6, 15), (5, 0.5, 6.25, 10, 25)


@pytest.mark.parametrize(
    ("prices", "tokens", "amount_nanodollars"),
    [
        (SONNET, (3, 0, 12_304, 0, 550), 54_399_000),
        (OPUS, (6, 0, 159_217, 0, 2_745), 1_063_761_250),
        (SONNET, (10, 1_000, 2_000, 500, 30), 30_000 + 300_000 + 7_500_000 + 3_000_000 + 450_000),
    ],
)
def test_every_kind_of_input_is_billed_at_its_price(
    installation: Installation,
    prices: tuple[float, ...],
    tokens: tuple[int, ...],
    amount_nanodollars: int,
) -> None:
    """Numbers of an Anthropic upstream: uncached, read, written for 5 minutes, for an hour, output."""
    name, (uncached, read, written, written_1h, output) = f"billed-{amount_nanodollars}", tokens
    used = {
        "input_tokens": uncached,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written + written_1h,
        "cache_creation": {
            "ephemeral_5m_input_tokens": written,
            "ephemeral_1h_input_tokens": written_1h,
        },
        "output_tokens": output,
    }
    result: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"usage": used | {"output_tokens": 1}}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "the of" * output}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": output}},
        {"type": "message_stop"},
    ]
    raw = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in result)
    installation.script(name, raw=raw)
    installation.load_catalog(UPSTREAM.format(name=name, url=installation.upstream_url, prices=prices))

    mark: Any = {"type": "ephemeral", "ttl": "1h"}
    prompt: Any = {"type": "text", "text": "the " * (uncached + read + written), "cache_control": mark}
    with Anthropic(
        base_url=installation.url, api_key=installation.keys["live"], max_retries=0, timeout=60
    ) as client:
        message = client.messages.create(model=name, max_tokens=8_192, system=[prompt], messages=HELLO)
    receipt = installation.receipt(message.id)
    assert message.usage.to_dict() | used == message.usage.to_dict()
    assert receipt["amount_nanodollars"] == amount_nanodollars
    assert sum(line["amount_nanodollars"] for line in receipt["line_items"]) == amount_nanodollars
    assert receipt["usage"]["prompt_tokens"] == uncached + read + written + written_1h
    assert installation.calls(name)[-1]["body"]["system"][0]["cache_control"] == mark
