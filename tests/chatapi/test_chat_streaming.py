"""What a client sees of a stream, in the default dialect and under /openai/v1."""

from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk

from tests.chatapi.http_client import Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

Chunk = dict[str, Any]
FIVE_WORDS = [" the", " of", " and", " to", " in"]
INCLUDE_USAGE = {"include_usage": True}


def published(chunk: Chunk) -> Chunk:
    """Return the chunk, after a check that it has OpenAI's published type and no unknown members."""
    parsed = ChatCompletionChunk.model_validate(chunk)
    deltas = [choice.delta for choice in parsed.choices]
    unknown = [set(part.model_extra or ()) for part in (parsed, *parsed.choices, *deltas)]
    assert set().union(*unknown) <= {"reasoning_content"}
    return chunk


def deltas(chunks: list[Chunk], index: int = 0) -> list[dict[str, Any]]:
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


def finish_reasons(chunks: list[Chunk]) -> list[str | None]:
    return [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]


# ---- the default dialect, opentoken


def test_a_stream_is_role_content_finish_usage_done(client: Client) -> None:
    *chunks, usage = [published(chunk) for chunk in client.stream("five")]
    assert deltas(chunks) == [{"role": "assistant"}, *({"content": word} for word in FIVE_WORDS), {}]
    assert finish_reasons(chunks) == [None] * 6 + ["stop"]
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}])
def test_opentoken_sends_one_usage_chunk_with_any_stream_options(
    client: Client, options: dict[str, Any] | None
) -> None:
    chunks = client.stream("five", dialect="opentoken", stream_options=options)
    assert [chunk["choices"] for chunk in chunks if "usage" in chunk] == [[]]
    assert "usage" in chunks[-1]


# ---- the canonical dialect


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_openai_sends_no_usage_unasked(client: Client, options: dict[str, Any] | None) -> None:
    chunks = [published(chunk) for chunk in client.stream("five", dialect="openai", stream_options=options)]
    assert all("usage" not in chunk for chunk in chunks)
    assert finish_reasons(chunks)[-1] == "stop"


def test_openai_sends_usage_when_asked_and_null_before(client: Client) -> None:
    *chunks, usage = [
        published(chunk) for chunk in client.stream("five", dialect="openai", stream_options=INCLUDE_USAGE)
    ]
    assert [chunk["usage"] for chunk in chunks] == [None] * 7
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5


# ---- which dialect


@pytest.mark.parametrize(
    ("key", "dialect", "header", "is_opentoken"),
    [
        ("live", "", None, True),
        ("live", "opentoken", None, True),
        ("live", "openai", None, False),
        ("live", "", "openai", False),
        ("live", "opentoken", "openai", False),
        ("live", "openai", "opentoken", True),
        ("speaks openai", "", None, False),
        ("speaks openai", "opentoken", None, True),
        ("speaks openai", "", "opentoken", True),
    ],
)
def test_the_dialect_is_the_headers_then_the_prefixs_then_the_keys_then_the_servers(
    installation: Installation,
    keys: dict[str, str],
    key: str,
    dialect: str,
    header: str | None,
    is_opentoken: bool,
) -> None:
    client = Client(installation.url, {**keys, **installation.keys}[key])
    chunks = client.stream("five", dialect=dialect, header=header)
    assert ("usage" in chunks[-1]) is is_opentoken
    receipt = client.send("GET", f"/v1/generations/{chunks[0]['id']}").json
    assert receipt["dialect"] == ("opentoken" if is_opentoken else "openai")


# ---- what stays the same, and what is true


@pytest.mark.parametrize("dialect", ["openai", "opentoken"])
def test_id_created_and_model_never_change(client: Client, dialect: str) -> None:
    chunks = client.stream("reasons", dialect=dialect, stream_options=INCLUDE_USAGE)
    heads = {(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in chunks}
    assert len(heads) == 1
    public_id, kind, _, model = heads.pop()
    assert public_id.startswith("chatcmpl-")
    assert (kind, model) == ("chat.completion.chunk", "reasons")


@pytest.mark.parametrize(
    "model", ["five", "reasons", "tells-no-usage", "tells-zero-usage", "tells-usage-always", "calls-tools"]
)
def test_the_usage_chunk_is_what_the_receipt_says(
    client: Client, installation: Installation, model: str
) -> None:
    *_, last = client.stream(model)
    receipt = installation.receipt(last["id"])
    assert last["usage"] == receipt["usage"]
    assert receipt["outcome"] == "completed"
    assert receipt["usage_source"] == ("counted" if model == "tells-no-usage" else "upstream")
    assert receipt["stream"] is True
    assert (
        receipt["amount_nanodollars"]
        == 1_000 * last["usage"]["prompt_tokens"] + 2_000 * last["usage"]["completion_tokens"]
    )


def test_what_the_upstream_says_about_usage_counts_even_when_it_is_zero(client: Client) -> None:
    *_, last = client.stream("tells-zero-usage")
    assert last["usage"] == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def test_tokens_are_counted_for_an_upstream_that_tells_no_usage(client: Client) -> None:
    *_, last = client.stream("tells-no-usage")
    assert last["usage"]["completion_tokens"] == 5
    assert last["usage"]["prompt_tokens"] >= 1


def test_content_is_sent_while_the_upstream_still_speaks(client: Client, installation: Installation) -> None:
    with client.asking("steady", stream=True) as exchange:
        assert next(exchange.texts()) == " the"
        assert installation.calls("steady")[-1]["closed_at"] is None


def test_a_streams_headers_forbid_buffering_and_caching(client: Client) -> None:
    with client.asking("five", stream=True) as exchange:
        headers = exchange.response.headers
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-store"
        assert headers["x-accel-buffering"] == "no"
        assert headers["content-encoding"] is None
        assert headers["x-request-id"].startswith("req_")
        first, *_ = exchange.chunks()
        assert headers["x-generation-id"] == first["id"]


# ---- what is in the chunks


def test_reasoning_comes_before_the_text(client: Client) -> None:
    chunks = [published(chunk) for chunk in client.stream("reasons", dialect="openai")]
    reasoning = [{"reasoning_content": word} for word in FIVE_WORDS[:3]]
    assert deltas(chunks) == [
        {"role": "assistant"},
        *reasoning,
        *({"content": word} for word in FIVE_WORDS),
        {},
    ]


def test_a_models_refusal_is_sent_as_a_refusal(client: Client) -> None:
    chunks = [published(chunk) for chunk in client.stream("refuses", dialect="openai")]
    assert deltas(chunks)[1:-1] == [{"refusal": word} for word in FIVE_WORDS]


def test_tool_calls_come_in_fragments_with_id_and_name_once(client: Client) -> None:
    chunks = [published(chunk) for chunk in client.stream("calls-tools", dialect="openai")]
    fragments = [fragment for delta in deltas(chunks) for fragment in delta.get("tool_calls", ())]
    assert [fragment["index"] for fragment in fragments] == [0] * 5 + [1] * 5
    assert [fragment["id"] for fragment in fragments if "id" in fragment] == ["call_up_0", "call_up_1"]
    assert "".join(fragment["function"]["arguments"] for fragment in fragments) == '{"city":" the"}' * 2
    assert finish_reasons(chunks)[-1] == "tool_calls"


def test_each_choice_has_its_role_its_text_and_its_finish(client: Client) -> None:
    *chunks, usage = client.stream("five", n=2)
    for index in (0, 1):
        assert deltas(chunks, index) == [
            {"role": "assistant"},
            *({"content": word} for word in FIVE_WORDS),
            {},
        ]
    assert finish_reasons(chunks)[-2:] == ["stop", "stop"]
    assert usage["usage"]["completion_tokens"] == 10


def test_log_probabilities_come_with_their_tokens(client: Client) -> None:
    chunks = [published(chunk) for chunk in client.stream("five", dialect="openai", logprobs=True)]
    tokens = [
        token["token"]
        for chunk in chunks
        if (logprobs := chunk["choices"][0].get("logprobs"))
        for token in logprobs["content"]
    ]
    assert tokens == FIVE_WORDS


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_a_limit_holds_even_if_the_upstream_disobeys(client: Client, limit: str) -> None:
    *chunks, usage = client.stream("disobeys-max-tokens", **{limit: 10})
    assert finish_reasons(chunks)[-1] == "length"
    assert len(deltas(chunks)) == 12
    assert usage["usage"]["completion_tokens"] == 10


def test_the_sandbox_answers_test_keys_for_nothing(installation: Installation) -> None:
    client = Client(installation.url, installation.keys["test"])
    chunks = client.stream("five", max_tokens=5)
    receipt = client.send("GET", f"/v1/generations/{chunks[0]['id']}").json
    assert (receipt["is_test"], receipt["amount_nanodollars"]) == (True, 0)
    assert receipt["usage"] == chunks[-1]["usage"]


# ---- how a stream breaks off

BROKEN = {
    "breaks-by-error": "upstream_error",
    "breaks-by-reset": "upstream_disconnected",
    "breaks-by-close": "upstream_disconnected",
    "breaks-by-bad-json": "upstream_invalid_response",
    "breaks-by-huge-frame": "upstream_invalid_response",
    "three-then-silence": "upstream_timeout",
}


@pytest.mark.parametrize(("model", "code"), BROKEN.items())
def test_a_failure_in_mid_stream_is_one_error_frame_and_done(
    client: Client, installation: Installation, model: str, code: str
) -> None:
    *chunks, failure = client.stream(model)
    assert [delta.get("content") for delta in deltas(chunks)] == [None, *FIVE_WORDS[:3]]
    assert failure["error"].keys() == {"message", "type", "code"}
    assert (failure["error"]["type"], failure["error"]["code"]) == ("server_error", code)
    assert "10.0.0.7" not in failure["error"]["message"]
    receipt = installation.receipt(chunks[0]["id"])
    assert receipt["outcome"] == "failed"
    assert receipt["error"]["code"] == code
    assert receipt["usage"]["completion_tokens"] == 3


def test_a_page_in_an_error_frame_is_not_passed_on(client: Client) -> None:
    *_, failure = client.stream("breaks-by-page")
    assert (failure["error"]["code"], failure["error"]["message"]) == (
        "bad_request",
        "The upstream refused the request.",
    )
    assert client.complete("breaks-by-page").error["message"] == "The upstream refused the request."


def test_under_openai_the_error_frame_has_all_four_members(client: Client) -> None:
    *_, failure = client.stream("breaks-by-error", dialect="openai", stream_options=INCLUDE_USAGE)
    assert failure["error"].keys() == {"message", "type", "param", "code"}


def test_an_upstream_that_ends_without_a_finish_has_broken_off(client: Client) -> None:
    *_, failure = client.stream("ends-without-finish")
    assert failure["error"]["code"] == "upstream_disconnected"
