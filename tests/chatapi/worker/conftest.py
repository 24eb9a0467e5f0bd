"""The worker's parts, and what they talk to."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from chatapi.redis_client import connect
from chatapi.transports.redis_stream import RedisStream
from chatapi.worker.engines.openai_compatible import OpenAICompatibleEngine
from tests import fake_upstream
from tests.chatapi.worker.processes import Valkey
from tests.fake_upstream import Upstream


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with fake_upstream.serve() as server:
        yield server


@pytest.fixture
async def engine() -> AsyncIterator[OpenAICompatibleEngine]:
    engine = OpenAICompatibleEngine()
    yield engine
    await engine.close()


@pytest.fixture
async def redis(shared_valkey: Valkey) -> AsyncIterator[Redis]:
    redis = connect(f"unix://{shared_valkey.socket}")
    yield redis
    await redis.aclose()


@pytest.fixture
def stream(redis: Redis, shared_valkey: Valkey, settings: Any) -> RedisStream:
    """Return a stream of the test's own; its prefix, read as a pattern, matches nothing."""
    return RedisStream(
        redis,
        f"[test]*{uuid4().hex}:",
        url=f"unix://{shared_valkey.socket}",
        ttl_ms=settings.STREAM_TTL_MS,
    )
