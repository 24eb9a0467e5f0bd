"""What a client sees of an answer in one piece: the same completion, folded into one object."""

from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from tests.chatapi.http_client import Answer, Client
from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

TEXT = " the of and to in"


def completion(answer: Answer) -> dict[str, Any]:
    """Return the body, after a check that it has OpenAI's published type and no unknown members."""
    assert answer.status == 200, answer.body
    parsed = ChatCompletion.model_validate(answer.json)
    messages = [choice.message for choice in parsed.choices]
    unknown = [set(part.model_extra or ()) for part in (parsed, *parsed.choices, *messages)]
    assert set().union(*unknown) <= {"reasoning_content"}
    body: dict[str, Any] = answer.json
    return body


@pytest.mark.parametrize("dialect", ["", "opentoken", "openai"])
@pytest.mark.parametrize("stream", [{}, {"stream": False}, {"stream": None}])
def test_an_answer_is_one_object_with_usage(client: Client, dialect: str, stream: dict[str, Any]) -> None:
    body = completion(client.complete("five", dialect=dialect, **stream))
    message = {"role": "assistant", "content": TEXT, "refusal": None}
    assert body["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"] == {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    assert (body["object"], body["model"]) == ("chat.completion", "five")


@pytest.mark.parametrize("model", ["five", "reasons", "tells-no-usage", "tells-zero-usage"])
def test_usage_is_what_the_receipt_and_the_stream_say(
    client: Client, installation: Installation, model: str
) -> None:
    body = completion(client.complete(model))
    receipt = installation.receipt(body["id"])
    assert body["usage"] == receipt["usage"] == client.stream(model)[-1]["usage"]
    assert (receipt["stream"], receipt["created"]) == (False, body["created"])


def test_the_answers_headers(client: Client) -> None:
    answer = client.complete("five")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-length"] == str(len(answer.body))
    assert answer.headers["x-generation-id"] == answer.json["id"]


def test_tool_calls_are_put_together(client: Client) -> None:
    (choice,) = completion(client.complete("calls-tools"))["choices"]
    function = {"name": "lookup", "arguments": '{"city":" the"}'}
    assert choice["message"]["tool_calls"] == [
        {"id": f"call_up_{number}", "type": "function", "function": function} for number in (0, 1)
    ]
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"


def test_reasoning_and_text_are_apart(client: Client) -> None:
    (choice,) = completion(client.complete("reasons"))["choices"]
    assert choice["message"]["reasoning_content"] == " the of and"
    assert choice["message"]["content"] == TEXT


def test_a_refusal_is_no_content(client: Client) -> None:
    (choice,) = completion(client.complete("refuses"))["choices"]
    assert (choice["message"]["content"], choice["message"]["refusal"]) == (None, TEXT)


def test_every_choice_is_there(client: Client) -> None:
    body = completion(client.complete("five", n=3, logprobs=True))
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in body["choices"]} == {TEXT}
    assert all(len(choice["logprobs"]["content"]) == 5 for choice in body["choices"])
    assert body["usage"]["completion_tokens"] == 15


def test_a_limit_ends_the_answer(client: Client) -> None:
    body = completion(client.complete("disobeys-max-tokens", max_tokens=10))
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 10


def test_a_model_id_may_have_a_slash(client: Client) -> None:
    assert completion(client.complete("org/with-slash"))["model"] == "org/with-slash"


def test_a_failure_after_some_tokens_is_an_error_and_they_are_charged(
    client: Client, installation: Installation
) -> None:
    answer = client.complete("breaks-by-reset")
    assert answer.status == 502
    assert answer.error["code"] == "upstream_disconnected"
    receipt = installation.receipt(answer.headers["x-generation-id"])
    assert (receipt["outcome"], receipt["usage"]["completion_tokens"]) == ("failed", 3)
