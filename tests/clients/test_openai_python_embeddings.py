"""OpenAI's own Python client and embeddings (`client.embeddings`), which it asks for in base64."""

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.installation import Installation

pytestmark = [pytest.mark.xdist_group("clients"), pytest.mark.timeout(120)]

MODEL = "sandbox-embedding"


def test_the_client_decodes_what_it_asked_for(client: OpenAI, installation: Installation) -> None:
    raw = client.embeddings.with_raw_response.create(model=MODEL, input=["a cat", "a dog"])
    found = raw.parse()
    assert [(each.index, len(each.embedding)) for each in found.data] == [(0, 1_536), (1, 1_536)]
    usage = installation.receipt(raw.headers["x-generation-id"])["usage"]
    assert found.usage.to_dict() == {name: usage[name] for name in ("prompt_tokens", "total_tokens")}
    numbers = client.embeddings.create(model=MODEL, input=["a cat", "a dog"], encoding_format="float")
    assert [each.embedding for each in numbers.data] == [pytest.approx(each.embedding) for each in found.data]


async def test_the_asynchronous_client(async_client: AsyncOpenAI) -> None:
    found = await async_client.embeddings.create(model=MODEL, input=[[13225], [1354]], dimensions=256)
    assert [len(each.embedding) for each in found.data] == [256, 256]


def test_as_many_as_a_vector_store_sends_at_once(canonical: OpenAI) -> None:
    found = canonical.embeddings.create(model=MODEL, input=[f"text {number}" for number in range(1_000)])
    assert len(found.data) == 1_000


def test_what_is_wrong_is_an_error_of_the_client(canonical: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        canonical.embeddings.create(model=MODEL, input="")
    assert refused.value.param == "input"
    with pytest.raises(openai.BadRequestError) as refused:
        canonical.embeddings.create(model="five", input="hello")
    assert (refused.value.code, refused.value.param) == ("model_not_supported", "model")
    with pytest.raises(openai.RateLimitError):
        canonical.embeddings.create(model=MODEL, input="[sandbox error=rate_limit]")
