"""`Prefer: respond-async` by a client that leaves before it has the answer's address."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from chatapi import identity
from chatapi.web.completions import Asked
from chatapi.web.consumers import ChatCompletions
from usage.books.idempotency import Idempotency

KEY = Idempotency("a" * 64, "b" * 64)


class Services:
    """Knows which generations are to be stopped."""

    def __init__(self) -> None:
        self.given_up: list[UUID] = []

    def give_up(self, generation_id: UUID) -> None:
        """As the real ones'."""
        self.given_up.append(generation_id)


@pytest.fixture
def asked() -> Asked:
    return cast(Asked, SimpleNamespace(id=identity.new_id()))


@pytest.mark.parametrize(
    ("key", "is_given_up"), [(None, True), (KEY, False)], ids=["nobody can fetch it", "its key can"]
)
async def test_what_nobody_can_fetch_is_stopped(
    asked: Asked, key: Idempotency | None, is_given_up: bool
) -> None:
    services, consumer = Services(), ChatCompletions()
    consumer.is_started = False
    admission: Any = SimpleNamespace(idempotency=key)
    starting = asyncio.create_task(asyncio.Event().wait())
    answering = asyncio.create_task(
        consumer._respond_later(cast(Any, services), asked, admission, cast(Any, starting))
    )
    await asyncio.sleep(0)
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert (services.given_up, starting.cancelled()) == ([asked.id] if is_given_up else [], False)
    starting.cancel()
