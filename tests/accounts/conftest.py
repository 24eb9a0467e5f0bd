"""A real Valkey for rate limits."""

from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from chatapi.redis_client import connect
from tests.chatapi.worker.processes import Valkey


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """Start one server for all tests; each test has a key prefix of its own."""
    with Valkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
async def redis(valkey: Valkey) -> AsyncIterator[Redis]:
    """Yield a client like that of a web process."""
    redis = connect(f"unix://{valkey.socket}")
    yield redis
    await redis.aclose()
