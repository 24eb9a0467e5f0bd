"""A stream that is followed from its log, when the books have forgotten its generation."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chatapi import identity
from chatapi.delta_stream import DeltaStream, Entry
from chatapi.redis_client import connect
from chatapi.web import resumption
from chatapi.wire import deltas
from chatapi.wire.deltas import AnyDelta, Failed, Text
from tests.cast import Person, admit
from tests.chatapi.worker.processes import Valkey
from usage.database.group_commit import GroupCommit
from usage.models import Generation

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
async def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """What following needs: a log in Valkey and the books, which are asked soon."""
    monkeypatch.setattr(resumption, "ASK_BOOKS_S", 0.1)
    with Valkey(tmp_path) as valkey:
        redis, commits = connect(f"unix://{valkey.socket}"), GroupCommit()
        yield SimpleNamespace(stream=DeltaStream(redis, "test:", ttl_ms=5_000), commits=commits)
        await commits.close()
        await redis.aclose()


async def test_a_stream_whose_row_is_gone_ends(services: Any) -> None:
    lost = identity.new_id()
    await services.stream.publish([Entry(lost, 1, 1, deltas.encode([Text("hello")]))])
    async with asyncio.timeout(10):
        found = [delta async for batch in resumption.follow(services, lost) for delta in batch]
    assert found[0] == Text("hello")
    assert isinstance(found[1], Failed)
    assert (len(found), found[1].code) == (2, "generation_not_found")


async def test_a_stream_whose_row_is_open_waits(services: Any, waiting: Generation) -> None:
    batches: list[list[AnyDelta]] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            batches = [batch async for batch in resumption.follow(services, waiting.pk)]
    assert batches == []


@pytest.fixture
def waiting(alice: Person, transactional_db: None) -> Generation:
    """One that no worker has begun."""
    return admit(alice)
