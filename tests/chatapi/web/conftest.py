"""A web process's services with a Valkey of their own, for tests without a server."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from chatapi.web.services import Services
from tests.chatapi.worker.processes import Valkey


@pytest.fixture
def valkey(tmp_path: Path, settings: Settings) -> Iterator[Valkey]:
    with Valkey(tmp_path) as server:
        settings.STREAMS_URL = settings.BROKER_URL = f"unix://{server.socket}"
        yield server


@pytest.fixture
async def services(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Services]:
    """Yield the services that the application finds."""
    services = Services()
    monkeypatch.setattr(Services, "_instance", services)
    yield services
    await asyncio.gather(*services._background)
    await services.parser.close()
    await services._redis.close()
    await services.commits.close()
