"""A request that an operator stops gets an error, and no SDK and no idempotency key repeats it."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from openai import OpenAI, PermissionDeniedError

from chatapi.delta_stream import Cancellation
from chatapi.redis_client import connect
from chatapi.serving import embedded_valkey
from chatapi.transports.redis_stream import RedisStream
from tests.chatapi.open_generations import OpenGenerations
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120)]


def stop(installation: Installation, generation_id: str) -> None:
    """Stop the generation, as the button of the operator's pages does."""

    async def cancel() -> None:
        url = embedded_valkey.url(installation.folder)
        redis = connect(url)
        stream = RedisStream(redis, "chatapi:", url=url, ttl_ms=60_000)
        await stream.cancel(UUID(generation_id), Cancellation.STOPPED, ttl_ms=60_000)
        await redis.aclose()

    asyncio.run(cancel())


@contextmanager
def asking(installation: Installation, model: str, **parameters: Any) -> Iterator[Any]:
    """Send a request with a client that repeats it twice; yield the error that it raises."""
    url, key = f"{installation.url}/openai/v1", installation.keys["live"]
    with OpenAI(base_url=url, api_key=key) as client, ThreadPoolExecutor(1) as pool:
        create: Any = client.chat.completions.create
        yield pool.submit(create, model=model, messages=[{"role": "user", "content": "hello"}], **parameters)


WAYS = [("never-begins", True, True), ("never-begins", False, False), ("steady", False, True)]


@pytest.mark.parametrize(("model", "stream", "is_named"), WAYS)
def test_nobody_asks_again(
    installation: Installation, open_generations: OpenGenerations, model: str, stream: bool, is_named: bool
) -> None:
    calls = len(installation.calls(model))
    headers = {"Idempotency-Key": uuid4().hex} if is_named else {}
    with asking(installation, model, stream=stream, extra_headers=headers) as asked:
        wait_for(lambda: len(installation.calls(model)) > calls, "the upstream's call")
        (generation_id,) = open_generations.new()
        if model == "steady":
            wait_for(lambda: open_generations.has_published(generation_id, "the"), "a token")
        stop(installation, generation_id)
        with pytest.raises(PermissionDeniedError, match="stopped this request") as raised:
            asked.result(timeout=30)
    assert raised.value.code == "stopped_by_operator"
    receipt = installation.receipt(generation_id)
    assert (receipt["outcome"], receipt["error"]["code"]) == ("client_cancelled", "stopped_by_operator")
    if is_named:
        with (
            asking(installation, model, stream=stream, extra_headers=headers) as again,
            pytest.raises(PermissionDeniedError) as raised,
        ):
            again.result(timeout=30)
    assert raised.value.response.headers.get_list("x-should-retry") == ["false"]
    assert len(installation.calls(model)) == calls + 1
