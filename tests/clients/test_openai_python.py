"""OpenAI's own Python client: answers, streams, headers, models. What goes wrong is in
test_openai_python_errors.py.
"""

import asyncio

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionChunk, ChatCompletionUserMessageParam

from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("clients"), pytest.mark.timeout(120)]

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hello"}]
TEXT = " the of and to in"


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def test_a_completion(client: OpenAI, installation: Installation) -> None:
    completion = client.chat.completions.create(model="five", messages=HELLO)
    assert completion.choices[0].message.content == TEXT
    assert completion.usage is not None
    assert completion.usage.to_dict() == installation.receipt(completion.id)["usage"]
    assert completion._request_id is not None
    assert completion._request_id.startswith("req_")


def test_a_stream(client: OpenAI, installation: Installation) -> None:
    with client.chat.completions.create(
        model="five", messages=HELLO, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    assert text_of(chunks) == TEXT
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.to_dict() == installation.receipt(chunks[0].id)["usage"]


def test_the_usual_loop_never_meets_a_chunk_without_choices(canonical: OpenAI) -> None:
    with canonical.chat.completions.create(model="five", messages=HELLO, stream=True) as stream:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == TEXT


def test_the_usual_loop_reads_bitseeks_dialect(installation: Installation) -> None:
    with OpenAI(base_url=f"{installation.url}/bitseek/v1", api_key=installation.keys["live"]) as client:
        chunks = list(client.chat.completions.create(model="five", messages=HELLO, stream=True))
        assert text_of(chunks) == TEXT
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert chunks[-1].usage is not None
        with pytest.raises(openai.APIError):
            list(client.chat.completions.create(model="breaks-by-error", messages=HELLO, stream=True))


def test_the_stream_helper(client: OpenAI, installation: Installation) -> None:
    with client.chat.completions.stream(
        model="five", messages=HELLO, stream_options={"include_usage": True}
    ) as stream:
        kinds = [event.type for event in stream]
        completion = stream.get_final_completion()
    assert kinds.count("content.delta") == 5
    assert kinds.count("content.done") == 1
    assert (completion.choices[0].message.role, completion.choices[0].message.content) == ("assistant", TEXT)
    assert completion.usage is not None
    assert completion.usage.to_dict() == installation.receipt(completion.id)["usage"]


def test_raw_responses_have_the_headers(canonical: OpenAI) -> None:
    raw = canonical.chat.completions.with_raw_response.create(
        model="five", messages=HELLO, extra_headers={"X-Request-Id": "my-own"}
    )
    assert raw.headers["x-request-id"] == "my-own"
    assert raw.headers["x-generation-id"] == raw.parse().id
    assert int(raw.headers["openai-processing-ms"]) >= 0
    assert raw.headers["openai-version"] == "2020-10-01"


def test_a_streaming_response_has_its_headers_before_its_lines(canonical: OpenAI) -> None:
    create = canonical.chat.completions.with_streaming_response.create
    with create(model="five", messages=HELLO, stream=True) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-store"
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"


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


async def test_the_async_stream_helper(async_client: AsyncOpenAI) -> None:
    async with async_client.chat.completions.stream(model="five", messages=HELLO) as stream:
        texts = [event.delta async for event in stream if event.type == "content.delta"]
        completion = await stream.get_final_completion()
    assert "".join(texts) == completion.choices[0].message.content == TEXT


async def test_many_at_once(async_client: AsyncOpenAI) -> None:
    answers = await asyncio.gather(
        *(async_client.chat.completions.create(model="five", messages=HELLO) for _ in range(20))
    )
    assert [answer.choices[0].message.content for answer in answers] == [TEXT] * 20
    assert len({answer.id for answer in answers}) == 20
