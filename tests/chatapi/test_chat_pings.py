"""A stream is never silent for long: comments keep its connection open, from the first second on."""

import json
import time
from collections.abc import Iterator

import pytest
from openai import OpenAI, Stream
from openai.types.chat import ChatCompletionChunk

from tests.chatapi.http_client import HELLO, Answer, Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def impatient(installation: Installation) -> Iterator[Installation]:
    """Start a second web process of the same installation, which pings after 200 ms."""
    with installation.another_web(CHATAPI_PING_MS="200") as impatient:
        yield impatient


@pytest.fixture
def client(impatient: Installation) -> Client:
    """Return a client of the process that pings."""
    return Client(impatient.url, impatient.keys["live"])


def events(client: Client, model: str) -> list[str]:
    """Return the events of a stream."""
    answer = client.complete(model, stream=True)
    assert answer.status == 200
    *pieces, rest = answer.body.decode().split("\n\n")
    assert rest == ""
    assert all(piece == ": ping" or piece.startswith("data: ") for piece in pieces)
    return pieces


def test_pings_come_before_the_first_token(client: Client) -> None:
    pieces = events(client, "begins-late")
    assert pieces[0] == ": ping"
    assert pieces[-1] == "data: [DONE]"
    assert sum('"content"' in piece for piece in pieces) == 5


def test_pings_come_between_events_and_never_inside_one(client: Client) -> None:
    pieces = events(client, "three-then-silence")
    first_ping, last_ping = pieces.index(": ping"), len(pieces) - 1 - pieces[::-1].index(": ping")
    assert sum('"content"' in piece for piece in pieces[:first_ping]) == 3
    assert '"error"' in pieces[last_ping + 1]
    assert pieces[-1] == "data: [DONE]"


def test_after_a_ping_a_refusal_comes_inside_the_stream(client: Client) -> None:
    *pings, failure, done = events(client, "refuses-late")
    assert set(pings) == {": ping"}
    assert '"code":"upstream_error"' in failure
    assert done == "data: [DONE]"


def test_an_answer_in_one_piece_is_waited_for_in_silence(client: Client) -> None:
    assert client.complete("begins-late").json["usage"]["completion_tokens"] == 5
    assert client.complete("refuses-late").status == 502


def follow(client: Client, model: str) -> Answer:
    """Return the stream of a new generation as a follower gets it from the beginning."""
    return client.send("GET", accepted(client, model)["stream_url"])


def accepted(client: Client, model: str) -> dict[str, str]:
    body = json.dumps({"model": model, "messages": HELLO, "stream": True}).encode()
    found: dict[str, str] = client.send(
        "POST", "/openai/v1/chat/completions", body, prefer="respond-async"
    ).json
    return found


def test_a_follower_gets_the_head_before_the_first_token(installation: Installation) -> None:
    # At the usual web process, which pings only after 15 s.
    client = Client(installation.url, installation.keys["live"])
    address = accepted(client, "slow-to-begin")["stream_url"]
    began = time.monotonic()
    with client.exchange("GET", address, None, {}) as exchange:
        assert exchange.response.status == 200
        assert time.monotonic() - began < 1
        assert exchange.read().body.endswith(b"data: [DONE]\n\n")


def test_a_follower_is_pinged_with_blank_lines_only_before_the_first_id(client: Client) -> None:
    head, first_id, rest = follow(client, "pauses").body.decode().partition("id: ")
    assert first_id
    assert head == ": ping\n\n" * head.count(":")
    assert head
    assert "\n: ping\n" in rest
    assert "\n: ping\n\n" not in rest
    # Each event begins with its id, apart from the pings before it.
    for event in f"id: {rest}".removesuffix("\n\n").split("\n\n"):
        assert event.replace(": ping\n", "").startswith("id: "), event


def test_what_follows_a_ping_is_the_same_stream(client: Client) -> None:
    accepted_one = accepted(client, "pauses")
    pinged = client.send("GET", accepted_one["stream_url"]).body
    assert (
        pinged.replace(b": ping\n\n", b"").replace(b": ping\n", b"")
        == client.send("GET", accepted_one["stream_url"]).body
    )


@pytest.mark.parametrize("path", ["responses/{}?stream=true", "generations/{}/stream"])
def test_a_follower_is_pinged_while_what_comes_is_held_back(client: Client, path: str) -> None:
    """A second call comes whole, at the end of the response."""
    tools = [{"type": "custom", "name": name} for name in ("first", "second")]
    request = {"model": "sandbox", "input": "[sandbox tool_calls=2 delay_ms=100]", "background": True}
    queued = client.send("POST", "/v1/responses", json.dumps(request | {"tools": tools}).encode()).json
    followed = client.send("GET", "/v1/" + path.format(queued["id"])).body.decode()
    first_call, _, _ = followed.partition("response.custom_tool_call_input.done")
    assert ": ping\n" in first_call.rpartition("response.custom_tool_call_input.delta")[2]
    assert followed.count("event: response.output_item.done\n") == 2


def test_openais_client_does_not_notice_pings_behind_ids(client: Client, impatient: Installation) -> None:
    with OpenAI(
        base_url=f"{impatient.url}/openai/v1", api_key=impatient.keys["live"], max_retries=0
    ) as openai:
        path = accepted(client, "pauses")["stream_url"].removeprefix("/openai/v1")
        chunks = list(
            openai.get(path, cast_to=ChatCompletionChunk, stream=True, stream_cls=Stream[ChatCompletionChunk])
        )
    assert (
        "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        == " the of and to"
    )


def test_openais_client_does_not_notice(impatient: Installation) -> None:
    with OpenAI(
        base_url=f"{impatient.url}/openai/v1", api_key=impatient.keys["live"], max_retries=0
    ) as client:
        helper = client.chat.completions.stream(
            model="begins-late", messages=[{"role": "user", "content": "hello"}]
        )
        with helper as stream:
            completion = stream.get_final_completion()
    assert completion.choices[0].message.content == " the of and to in"
