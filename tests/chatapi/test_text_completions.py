"""What a client of `/v1/completions` sees: streams and bodies in each dialect, and what stands in the books
afterwards.
"""

import json
from typing import Any

import pytest
from openai.types import Completion

from tests.chatapi.http_client import Answer, Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

PROMPT = "Once upon a time [sandbox tokens=5]"
Chunk = dict[str, Any]


def ask(client: Client, dialect: str = "openai", **parameters: Any) -> Answer:
    body = {"model": "sandbox", "prompt": PROMPT, **parameters}
    return client.send("POST", f"/{dialect}/v1/completions", json.dumps(body).encode())


def stream(client: Client, dialect: str = "openai", **parameters: Any) -> list[Chunk]:
    """Return the chunks of a stream that ends with `[DONE]`."""
    *chunks, done = ask(client, dialect, stream=True, **parameters).body.decode().split("\n\n")[:-1]
    assert done == "data: [DONE]"
    return [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]


def text(chunks: list[Chunk], index: int = 0) -> str:
    return "".join(
        choice["text"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == index
    )


def test_a_body_is_openais(client: Client) -> None:
    completion = Completion.model_validate(ask(client).json)
    assert completion.object == "text_completion"
    assert completion.id.startswith("cmpl-")
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 5


def test_a_stream_says_what_the_body_says(client: Client) -> None:
    chunks = stream(client)
    assert text(chunks) == ask(client).json["choices"][0]["text"]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]] == [None] * 5 + [
        "stop"
    ]


def test_usage_is_the_dialects(client: Client) -> None:
    assert not [chunk for chunk in stream(client) if chunk.get("usage")]
    asked = stream(client, stream_options={"include_usage": True})
    assert asked[-1]["usage"]["completion_tokens"] == 5
    assert all(chunk["usage"] is None for chunk in asked[:-1])
    assert stream(client, "opentoken")[-1]["usage"]["completion_tokens"] == 5


def test_the_prompt_is_echoed(client: Client) -> None:
    assert ask(client, echo=True).json["choices"][0]["text"].startswith("Once upon a time")


def test_there_are_n_choices_for_each_prompt(client: Client) -> None:
    body = ask(client, prompt=[PROMPT, "And then"], n=2, max_tokens=3).json
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]


def test_log_probabilities_have_their_offsets(client: Client) -> None:
    logprobs = ask(client, logprobs=2).json["choices"][0]["logprobs"]
    lengths = [len(token) for token in logprobs["tokens"]]
    assert logprobs["text_offset"] == [sum(lengths[:position]) for position in range(len(lengths))]
    assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == 5


def test_it_reaches_an_upstream_and_the_books(client: Client, installation: Installation) -> None:
    answer = ask(client, model="five", prompt="hello", suffix="!", best_of=2)
    assert answer.json["usage"]["completion_tokens"] == 5
    sent = installation.calls("five")[-1]["body"]
    assert (sent["prompt"], sent["suffix"], sent["best_of"]) == ("hello", "!", 2)
    receipt = installation.receipt(answer.headers["x-generation-id"])
    assert (receipt["endpoint"], receipt["outcome"]) == ("completions", "completed")


@pytest.mark.parametrize("stream", [False, True])
def test_a_missing_prompt_is_named(client: Client, stream: bool) -> None:
    answer = ask(client, prompt=None, stream=stream)
    assert (answer.status, answer.error["param"]) == (400, "prompt")


@pytest.mark.parametrize("stream", [False, True])
def test_a_rule_between_parameters_names_one_of_them(client: Client, stream: bool) -> None:
    answer = ask(client, best_of=1, n=2, stream=stream)
    assert (answer.status, answer.error["param"]) == (400, "best_of")
