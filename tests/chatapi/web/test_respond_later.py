"""`Prefer: respond-async` by a client that leaves before it has the answer's address."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from chatapi.web.responses import respond_later
from chatapi.wire.protocols.chat import CHAT
from tests.chatapi.web.exchange_by_hand import Client
from usage.books.idempotency import Idempotency

KEY = Idempotency("a" * 64, "b" * 64)


class Services:
    """Knows which generations are to be stopped."""

    def __init__(self) -> None:
        self.given_up: list[UUID] = []
        self.cancellations = self

    def give_up(self, generation_id: UUID) -> None:
        """Note that the generation was given up."""
        self.given_up.append(generation_id)


@pytest.mark.parametrize(
    ("key", "is_given_up"), [(None, True), (KEY, False)], ids=["nobody can fetch it", "its key can"]
)
async def test_what_nobody_can_fetch_is_stopped(key: Idempotency | None, is_given_up: bool) -> None:
    services, exchange = Services(), Client().exchange("chat")
    admission: Any = SimpleNamespace(id=exchange.id, idempotency=key)
    admitting: asyncio.Task[Any] = asyncio.create_task(asyncio.Event().wait())
    answering = asyncio.create_task(
        respond_later(exchange, cast(Any, services), admission, CHAT.dialect("openai"), admitting, b"")
    )
    await asyncio.sleep(0)
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert (services.given_up, admitting.cancelled()) == ([exchange.id] if is_given_up else [], False)
    admitting.cancel()
