"""What a web process keeps of a request, and that it says the same as the request itself."""

import hashlib
import json
from typing import Any

import msgspec
import pytest

from chatapi.wire import parsed_request, requests
from chatapi.wire.parsed_request import parse
from chatapi.wire.protocols import PROTOCOLS
from chatapi.wire.protocols.chat.request import NAME as CHAT
from chatapi.wire.protocols.messages.request import NAME as MESSAGES
from chatapi.wire.protocols.responses.request import NAME as RESPONSES
from chatapi.wire.protocols.text_completions.request import NAME as TEXT
from tests.wire.request_bodies import HELLO, chat_body, summary, text_body

PICTURE = {"type": "image_url", "image_url": {"url": "https://pictures.example/a.png"}}


@pytest.mark.parametrize(
    ("body", "endpoint"), [(chat_body(n=2, top_k=5, dream=1), CHAT), (text_body(best_of=3, n=2), TEXT)]
)
def test_its_content_is_the_request(body: bytes, endpoint: str) -> None:
    parsed, request = parse(body, endpoint, None), PROTOCOLS[endpoint].parse(body)
    assert requests.from_bytes(parsed.content) == request
    assert (parsed.summary.choices_count, parsed.summary.sampled_count) == (
        request.choices_count,
        request.sampled_count,
    )
    assert (parsed.summary.ignored, parsed.summary.extras) == (request.ignored, tuple(request.extras))
    assert parsed_request.read(parsed.content) == parsed


CHAT_DIGESTED = (
    b'chat.completions\n{"request":"chat","model":"m","stream":true,"max_tokens":5,"temperature":0.5,'
    b'"user":"u","extras":{"top_k":5},"ignored":["dream"],"messages":[{"role":"user","content":"Hello!"}],'
    b'"logprobs":true,"metadata":{"a":"b"}}'
)
TEXT_DIGESTED = (
    b'completions\n{"request":"text","model":"m","seed":1,"prompt":["a","b"],"logprobs":false,"best_of":2}'
)
SENT_CHAT = {"top_k": 5, "max_tokens": 5, "user": "u", "temperature": 0.5, "dream": 1, "metadata": {"a": "b"}}


def test_its_digest_is_that_of_the_protocol_and_what_was_sent() -> None:
    """The books store the digest for a day, so it may not change from one version to the next."""
    chat = summary(**SENT_CHAT, stream=True, logprobs=True)
    assert chat.digest == hashlib.sha256(CHAT_DIGESTED).hexdigest()
    text = summary(prompt=["a", "b"], seed=1, logprobs=False, best_of=2)
    assert text.digest == hashlib.sha256(TEXT_DIGESTED).hexdigest()
    assert summary(n=1).digest != summary().digest


def test_a_tickets_content_streams_even_if_its_body_does_not() -> None:
    ticket = parse(chat_body(stream_options={"include_usage": True}), CHAT, None, is_ticket=True)
    assert (ticket.summary.stream, ticket.summary.idle_parameters) == (True, ())
    assert requests.from_bytes(ticket.content).stream
    streamed = parse(chat_body(stream=True, stream_options={"include_usage": True}), CHAT, None)
    assert ticket.summary.digest == streamed.summary.digest


SAID = {"role": "assistant", "content": "Hi"}
THOUGHTS = [
    {"type": "thinking", "thinking": "é" * 250, "signature": "s"},
    {"type": "redacted_thinking", "data": "x" * 500},
]


@pytest.mark.parametrize(
    ("protocol", "param", "thoughtful"),
    [
        (CHAT, "messages", [SAID | {"reasoning_content": "é" * 500}]),
        (MESSAGES, "messages", [SAID | {"content": [*THOUGHTS, {"type": "text", "text": "Hi"}]}]),
        (
            RESPONSES,
            "input",
            [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "é" * 500}]}, SAID],
        ),
    ],
)
def test_reasoning_of_earlier_turns_is_held_but_not_counted(
    protocol: str, param: str, thoughtful: list[dict[str, Any]]
) -> None:
    """Most deployments do not get it."""
    with_thoughts, without = (
        parse(
            json.dumps({"model": "m", "max_tokens": 5, param: [HELLO, *turns, HELLO]}).encode(),
            protocol,
            None,
        )
        for turns in (thoughtful, [SAID])
    )
    texts = [requests.from_bytes(each.content).counted_texts for each in (with_thoughts, without)]
    assert texts[0] == texts[1]
    bounds = [each.summary.prompt_tokens_bound(8_192) for each in (with_thoughts, without)]
    assert bounds[0] >= bounds[1] + 1_000


def test_it_names_the_first_remote_picture() -> None:
    messages = [HELLO, {"role": "user", "content": [{"type": "text", "text": "?"}, PICTURE, PICTURE]}]
    assert summary(messages=messages).remote_media_param == "messages[1].content[1].image_url.url"
    assert summary().remote_media_param is None


def test_it_has_no_prompt() -> None:
    assert b"Hello" not in msgspec.json.encode(summary(user="me"))
