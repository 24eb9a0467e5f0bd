"""OpenAI's own Python client when something goes wrong: error classes, retries, timeouts, leaving."""

import asyncio
from itertools import islice

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionChunk, ChatCompletionUserMessageParam

from chatapi.models import USUAL_RETRIES
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("clients"), pytest.mark.timeout(120)]

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hello"}]


def ask(client: OpenAI, model: str = "five", *, max_tokens: int = 5) -> None:
    client.chat.completions.create(model=model, messages=HELLO, max_tokens=max_tokens)


def wait_for_cut(installation: Installation, model: str) -> None:
    wait_for(lambda: bool(installation.calls(model)[-1]["is_peer_gone"]), "the cut", timeout_s=2)


# ---- refused before the first token


def test_a_wrong_key_is_an_authentication_error(client: OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError) as raised:
        ask(client.with_options(api_key="ck_live_wrong"))
    assert raised.value.code == "invalid_api_key"


def test_an_unknown_model_is_a_not_found_error(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        ask(client, "gpt-99")
    assert (raised.value.code, raised.value.param, raised.value.type) == (
        "model_not_found",
        "model",
        "invalid_request_error",
    )
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-99")


def test_a_wrong_parameter_is_a_bad_request_error(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, max_tokens=-1)
    assert (raised.value.code, raised.value.param) == ("invalid_value", "max_tokens")
    assert raised.value.request_id is not None


def test_a_busy_upstream_is_a_rate_limit_error(client: OpenAI) -> None:
    with pytest.raises(openai.RateLimitError) as raised:
        ask(client, "status-429")
    assert raised.value.response.headers["retry-after"] == "7"


@pytest.mark.parametrize("model", ["status-401", "status-500", "status-503", "breaks-by-reset"])
def test_a_failing_upstream_is_an_internal_server_error(client: OpenAI, model: str) -> None:
    with pytest.raises(openai.InternalServerError):
        ask(client, model)


def test_an_empty_budget_is_402_and_not_tried_again(installation: Installation, poor_key: str) -> None:
    base_url = f"{installation.url}/v1"
    with (
        OpenAI(base_url=base_url, api_key=poor_key) as client,
        pytest.raises(openai.APIStatusError) as raised,
    ):
        ask(client)
    assert (raised.value.status_code, raised.value.code) == (402, "insufficient_quota")
    assert raised.value.response.request.headers["x-stainless-retry-count"] == "0"


def test_a_rate_limit_is_tried_again_as_often_as_the_client_likes(
    installation: Installation, canonical: OpenAI
) -> None:
    with pytest.raises(openai.RateLimitError) as raised:
        ask(canonical.with_options(max_retries=2), "status-429-soon")
    assert raised.value.response.request.headers["x-stainless-retry-count"] == "2"
    assert len(installation.calls("status-429-soon")) == 3 * (1 + USUAL_RETRIES)


# ---- broken off


@pytest.mark.parametrize("model", ["breaks-by-error", "breaks-by-reset"])
def test_a_failure_in_mid_stream_is_raised_after_the_text(client: OpenAI, model: str) -> None:
    chunks: list[ChatCompletionChunk] = []
    with (
        client.chat.completions.create(model=model, messages=HELLO, stream=True) as stream,
        pytest.raises(openai.APIError) as raised,
    ):
        chunks.extend(stream)
    assert raised.value.type == "server_error"
    with client.chat.completions.create(model=model, messages=HELLO, stream=True) as stream:
        texts = [choice.delta.content or "" for chunk in islice(stream, 4) for choice in chunk.choices]
    assert "".join(texts) == " the of and"


def test_the_stream_helper_raises_a_failure_too(client: OpenAI) -> None:
    with (
        client.chat.completions.stream(model="breaks-by-error", messages=HELLO) as stream,
        pytest.raises(openai.APIError),
    ):
        stream.until_done()


def test_a_streams_wrong_parameter_is_raised_in_the_llama_dialect_too(installation: Installation) -> None:
    """In this dialect the error is an event of a stream with status 200."""
    base_url, key = f"{installation.url}/llama/v1", installation.keys["live"]
    with (
        OpenAI(base_url=base_url, api_key=key) as client,
        pytest.raises(openai.APIError, match="temperature") as raised,
    ):
        list(client.chat.completions.create(model="five", messages=HELLO, temperature=5, stream=True))
    assert raised.value.param == "temperature"


# ---- leaving


def test_a_client_that_waits_no_longer_cuts_the_upstream(
    installation: Installation, canonical: OpenAI
) -> None:
    with pytest.raises(openai.APITimeoutError):
        ask(canonical.with_options(timeout=0.5), "slow-to-begin")
    wait_for_cut(installation, "slow-to-begin")


def test_a_closed_stream_is_cut(client: OpenAI, installation: Installation) -> None:
    stream = client.chat.completions.create(model="three-then-silence", messages=HELLO, stream=True)
    chunks = list(islice(stream, 4))
    stream.close()
    wait_for_cut(installation, "three-then-silence")
    receipt = installation.receipt(chunks[0].id)
    assert (receipt["outcome"], receipt["usage"]["completion_tokens"]) == ("client_cancelled", 3)


async def test_a_cancelled_task_is_cut(async_client: AsyncOpenAI, installation: Installation) -> None:
    calls = len(installation.calls("slow-to-begin"))
    asking = asyncio.create_task(async_client.chat.completions.create(model="slow-to-begin", messages=HELLO))
    await asyncio.to_thread(
        wait_for, lambda: len(installation.calls("slow-to-begin")) > calls, "the upstream's call"
    )
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.to_thread(wait_for_cut, installation, "slow-to-begin")
