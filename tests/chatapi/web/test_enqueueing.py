"""A request that can't be queued leaves nothing behind: no hold in the books, and its prompt in no Redis.
Requests whose clients leave at once are cancelled together.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from pytest_django.fixtures import Settings
from redis.exceptions import RedisError

from accounts import redis_time_limit
from chatapi import identity
from chatapi.delta_stream import Cancellation, Job, StreamUnavailable
from chatapi.task_queue import Entry
from chatapi.web.services import Services
from chatapi.web.tickets import Ticket
from tests.cast import Person, admit
from tests.chatapi.worker.processes import Valkey
from tests.installation import free_port
from usage.models import Generation, Outcome

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
async def services(valkey: Valkey) -> AsyncIterator[Services]:
    """Yield the services of a web process; a test may first set a second, unreachable broker."""
    services = Services()
    yield services
    await services._redis.close()
    await services.commits.close()


async def refuse_one(alice: Person, services: Services, error: type[Exception]) -> None:
    row = await services.commits.read(lambda: admit(alice))
    with pytest.raises(error):
        await services.queue.enqueue(Entry(row.pk.hex, row.organization_id), Job("web", b"the prompt"))
    assert (await services.commits.read(Generation.objects.get)).outcome == Outcome.NOT_STARTED


@pytest.fixture
def no_broker(valkey: Valkey, settings: Settings) -> None:
    settings.BROKER_URL = f"redis://127.0.0.1:{free_port()}/0"


@pytest.mark.usefixtures("no_broker")
async def test_a_broker_that_is_away(alice: Person, services: Services, valkey: Valkey) -> None:
    await refuse_one(alice, services, StreamUnavailable)
    await asyncio.gather(*services._background)
    assert valkey.client.keys() == []


async def test_a_redis_that_is_frozen_for_a_while(
    alice: Person, services: Services, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_time_limit, "REPLY_TIMEOUT_S", 0.3)
    await services._redis.shared.ping()
    with valkey.frozen():
        await refuse_one(alice, services, StreamUnavailable)
    await asyncio.gather(*services._background)
    assert list(valkey.client.scan_iter("*job:*")) == []


@pytest.mark.parametrize(
    "command",
    [
        lambda services: services.states.take(1, 1),
        lambda services: services.states.release("counter", 1),
        lambda services: services.tickets.issue(Ticket(identity.new_id(), 1, "openai", b"{}")),
        lambda services: services.tickets.redeem("secret"),
    ],
    ids=["take", "release", "issue", "redeem"],
)
async def test_room_and_tickets_do_not_wait_for_a_frozen_redis(
    services: Services,
    valkey: Valkey,
    monkeypatch: pytest.MonkeyPatch,
    command: Callable[[Services], Awaitable[object]],
) -> None:
    monkeypatch.setattr(redis_time_limit, "REPLY_TIMEOUT_S", 0.3)
    await services._redis.shared.ping()
    with valkey.frozen():
        async with asyncio.timeout(1):
            with pytest.raises(RedisError):
                await command(services)


async def test_a_counter_that_redis_has_lost_expires(services: Services, valkey: Valkey) -> None:
    counter = await services.states.take(1, 1)
    valkey.client.flushall()
    await services.states.release(counter, 1)
    assert valkey.client.pttl(counter) > 0


async def test_a_request_is_kept_and_enqueued_in_one_round_trip(services: Services, valkey: Valkey) -> None:
    def reads() -> int:
        return int(valkey.client.info("stats")["total_reads_processed"])

    async def enqueue() -> None:
        await services.queue.enqueue(Entry(identity.new_id().hex, 1), Job("web", b"{}"), b"state")

    await enqueue()  # connects
    before = reads()
    await enqueue()
    assert reads() - before == 2  # with the second `reads`


async def test_many_clients_that_leave_at_once_share_a_connection(services: Services, valkey: Valkey) -> None:
    await services._redis.shared.ping()
    before = valkey.client.info("stats")["total_connections_received"]
    ids = [identity.new_id() for _ in range(300)]
    for generation_id in ids:
        services.cancellations.abandon(generation_id)
    await asyncio.gather(*services._background)
    cancelled = await services.streams.cancelled_among(ids)
    assert cancelled == dict.fromkeys(ids, Cancellation.CLIENT_LEFT)
    assert valkey.client.info("stats")["total_connections_received"] - before <= 1
