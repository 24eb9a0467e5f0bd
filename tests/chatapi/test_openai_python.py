"""OpenAI's own Python client against this service."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import islice

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionChunk, ChatCompletionUserMessageParam

from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hello"}]
TEXT = " the of and to in"


@pytest.fixture(params=["/v1", "/openai/v1"])
def client(installation: Installation, request: pytest.FixtureRequest) -> Iterator[OpenAI]:
    """The client with either base URL that a user may choose."""
    with OpenAI(base_url=installation.url + request.param, api_key=installation.keys["live"], max_retries=0) as client:
        yield client


@pytest.fixture
def canonical(installation: Installation) -> Iterator[OpenAI]:
    """The client under /openai/v1, where everything is as at OpenAI's."""
    with OpenAI(base_url=f"{installation.url}/openai/v1", api_key=installation.keys["live"], max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(installation: Installation) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{installation.url}/openai/v1", api_key=installation.keys["live"], max_retries=0) as client:
        yield client


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def wait_for_cut(installation: Installation, model: str) -> None:
    wait_for(lambda: bool(installation.calls(model)[-1]["is_peer_gone"]), "the cut", timeout_s=2)


# ---- answers


def test_a_completion(client: OpenAI, installation: Installation) -> None:
    completion = client.chat.completions.create(model="five", messages=HELLO)
    assert completion.choices[0].message.content == TEXT
    assert completion.usage is not None
    assert completion.usage.to_dict() == installation.receipt(completion.id)["usage"]
    assert completion._request_id is not None
    assert completion._request_id.startswith("req_")


def test_a_stream(client: OpenAI, installation: Installation) -> None:
    with client.chat.completions.create(model="five", messages=HELLO, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = [ChatCompletionChunk.model_validate(chunk.to_dict()) for chunk in stream]
    assert text_of(chunks) == TEXT
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.to_dict() == installation.receipt(chunks[0].id)["usage"]


def test_the_usual_loop_never_meets_a_chunk_without_choices(canonical: OpenAI) -> None:
    with canonical.chat.completions.create(model="five", messages=HELLO, stream=True) as stream:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == TEXT


def test_the_stream_helper(canonical: OpenAI, installation: Installation) -> None:
    with canonical.chat.completions.stream(model="five", messages=HELLO, stream_options={"include_usage": True}) as stream:
        kinds = [event.type for event in stream]
        completion = stream.get_final_completion()
    assert kinds.count("content.delta") == 5
    assert kinds.count("content.done") == 1
    assert (completion.choices[0].message.role, completion.choices[0].message.content) == ("assistant", TEXT)
    assert completion.usage is not None
    assert completion.usage.to_dict() == installation.receipt(completion.id)["usage"]


def test_the_stream_helper_puts_tool_calls_together(canonical: OpenAI) -> None:
    with canonical.chat.completions.stream(model="calls-tools", messages=HELLO, n=2) as stream:
        completion = stream.get_final_completion()
    for choice in completion.choices:
        calls = choice.message.tool_calls or []
        assert [(call.id, call.function.name, call.function.arguments) for call in calls] == [
            ("call_up_0", "lookup", '{"city":" the"}'),
            ("call_up_1", "lookup", '{"city":" the"}'),
        ]


def test_raw_responses_have_the_headers(canonical: OpenAI) -> None:
    raw = canonical.chat.completions.with_raw_response.create(model="five", messages=HELLO, extra_headers={"X-Request-Id": "my-own"})
    assert raw.headers["x-request-id"] == "my-own"
    assert raw.headers["x-generation-id"] == raw.parse().id


def test_models_are_listed_and_retrieved(client: OpenAI) -> None:
    listed = {model.id: model for model in client.models.list()}
    assert {"five", "org/with-slash"} <= listed.keys()
    for name in ("five", "org/with-slash"):
        assert client.models.retrieve(name) == listed[name]


async def test_the_async_client(async_client: AsyncOpenAI) -> None:
    completion = await async_client.chat.completions.create(model="five", messages=HELLO)
    stream = await async_client.chat.completions.create(model="five", messages=HELLO, stream=True)
    async with stream:
        chunks = [chunk async for chunk in stream]
    assert completion.choices[0].message.content == text_of(chunks) == TEXT


async def test_many_at_once(async_client: AsyncOpenAI) -> None:
    answers = await asyncio.gather(*(async_client.chat.completions.create(model="five", messages=HELLO) for _ in range(20)))
    assert [answer.choices[0].message.content for answer in answers] == [TEXT] * 20
    assert len({answer.id for answer in answers}) == 20


# ---- errors


def ask(client: OpenAI, model: str = "five", *, max_tokens: int = 5) -> None:
    client.chat.completions.create(model=model, messages=HELLO, max_tokens=max_tokens)


def test_a_wrong_key_is_an_authentication_error(client: OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError) as raised:
        ask(client.with_options(api_key="ck_live_wrong"))
    assert raised.value.code == "invalid_api_key"


def test_an_unknown_model_is_a_not_found_error(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        ask(client, "gpt-99")
    assert (raised.value.code, raised.value.param, raised.value.type) == ("model_not_found", "model", "invalid_request_error")
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


def test_an_empty_budget_is_402_and_not_tried_again(installation: Installation, keys: dict[str, str]) -> None:
    base_url = f"{installation.url}/v1"
    with OpenAI(base_url=base_url, api_key=keys["poor key"]) as client, pytest.raises(openai.APIStatusError) as raised:
        ask(client)
    assert (raised.value.status_code, raised.value.code) == (402, "insufficient_quota")


@pytest.mark.parametrize("model", ["breaks-by-error", "breaks-by-reset"])
def test_a_failure_in_mid_stream_is_raised_after_the_text(client: OpenAI, model: str) -> None:
    chunks: list[ChatCompletionChunk] = []
    with client.chat.completions.create(model=model, messages=HELLO, stream=True) as stream, pytest.raises(openai.APIError) as raised:
        chunks.extend(stream)
    assert raised.value.type == "server_error"
    with client.chat.completions.create(model=model, messages=HELLO, stream=True) as stream:
        assert text_of(list(islice(stream, 4))) == " the of and"


def test_the_stream_helper_raises_a_failure_too(canonical: OpenAI) -> None:
    with canonical.chat.completions.stream(model="breaks-by-error", messages=HELLO) as stream, pytest.raises(openai.APIError):
        stream.until_done()


# ---- leaving


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
    await asyncio.to_thread(wait_for, lambda: len(installation.calls("slow-to-begin")) > calls, "the upstream's call")
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.to_thread(wait_for_cut, installation, "slow-to-begin")
