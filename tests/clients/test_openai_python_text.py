"""OpenAI's own Python client and text completions (`client.completions`)."""

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("clients"), pytest.mark.timeout(120)]

PROMPT = "Once upon a time [sandbox tokens=6]"


def test_a_text_completion(client: OpenAI, installation: Installation) -> None:
    completion = client.completions.create(model="sandbox", prompt=PROMPT)
    assert (completion.object, completion.choices[0].finish_reason) == ("text_completion", "stop")
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 6
    assert completion.usage.to_dict() == installation.receipt(completion.id)["usage"]


def test_a_stream_says_the_same(client: OpenAI) -> None:
    whole = client.completions.create(model="sandbox", prompt=PROMPT)
    with client.completions.create(
        model="sandbox", prompt=PROMPT, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage == whole.usage


def test_the_usual_loop_never_meets_a_chunk_without_choices(canonical: OpenAI) -> None:
    with canonical.completions.create(model="sandbox", prompt=PROMPT, stream=True) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream)


async def test_the_async_client_streams_text_too(async_client: AsyncOpenAI) -> None:
    stream = await async_client.completions.create(model="sandbox", prompt=PROMPT, stream=True)
    async with stream:
        assert len([chunk async for chunk in stream if chunk.choices[0].text]) == 6


def test_several_prompts_and_choices(client: OpenAI) -> None:
    completion = client.completions.create(model="sandbox", prompt=[PROMPT, "And then"], n=2, max_tokens=3)
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]


def test_log_probabilities_and_echo(client: OpenAI) -> None:
    choice = client.completions.create(model="sandbox", prompt=PROMPT, logprobs=2, echo=True).choices[0]
    assert choice.text.startswith("Once upon a time")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert choice.text.endswith("".join(choice.logprobs.tokens))


def test_errors_have_their_classes(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-99", prompt=PROMPT)
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model="sandbox", prompt=PROMPT, logprobs=6)
    assert raised.value.param == "logprobs"
    with (
        client.completions.create(model="sandbox-error-midstream", prompt=PROMPT, stream=True) as stream,
        pytest.raises(openai.APIError),
    ):
        list(stream)
