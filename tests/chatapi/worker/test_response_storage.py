"""A response that is deleted while it is being stored stays deleted."""

from collections.abc import AsyncIterator, Callable
from typing import ParamSpec, TypeVar, cast
from uuid import UUID

import pytest

from accounts.models import Project
from chatapi import response_store
from chatapi.delta_stream import Entry, Job, KeptRequest
from chatapi.models import StoredResponse
from chatapi.response_store import Content
from chatapi.transports.redis_stream import RedisStream
from chatapi.transports.redis_stream import stream as stream_module
from chatapi.wire import deltas
from chatapi.wire.deltas import Finished, Text, Usage
from chatapi.worker.reaper import response_storage
from tests.cast import Person, run
from usage.database.group_commit import GroupCommit
from usage.errors import DatabaseUnavailable

pytestmark = pytest.mark.django_db(transaction=True)

P = ParamSpec("P")
Result = TypeVar("Result")


class Books(GroupCommit):
    """The books; a client deletes the response just before it is written."""

    def __init__(self, stream: RedisStream) -> None:
        super().__init__()
        self._stream = stream
        self.deletes = True
        self.dies_after_writing = False

    async def read(self, function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Run the function; before a response is written, do what `DELETE` does."""
        is_writing = cast(object, function) is response_store.write
        if is_writing and self.deletes:
            (generation_id, _) = cast(tuple[UUID, Content], args)
            await self._stream.delete(generation_id, has_ended=True)
            await super().read(response_store.delete, generation_id)
        result = await super().read(function, *args, **kwargs)
        if is_writing and self.dies_after_writing:
            raise DatabaseUnavailable("this process dies")
        return result


@pytest.fixture
async def books(stream: RedisStream) -> AsyncIterator[Books]:
    books = Books(stream)
    yield books
    await books.close()


@pytest.fixture
async def response(stream: RedisStream, books: Books, alice: Person, monkeypatch: pytest.MonkeyPatch) -> UUID:
    """Return a settled response that is to be stored."""
    monkeypatch.setattr(stream_module, "STORING_MS", 0)
    await books.read(lambda: Project.objects.update(stores_responses_days=7))
    generation_id: UUID = (await books.read(run, alice)).pk
    await stream.keep([KeptRequest(generation_id, Job("web", b"{}"), b"a state", stores_response=True)])
    end = deltas.encode([Text("said"), Finished("stop"), Usage(1, 1)])
    await stream.publish([Entry(generation_id, 1, 1, end, is_last=True)])
    return generation_id


async def rows(books: Books) -> int:
    return await books.read(StoredResponse.objects.count)


async def test_a_response_is_stored_once(stream: RedisStream, books: Books, response: UUID) -> None:
    books.deletes = False
    await response_storage._store_settled(books, stream)
    assert (await rows(books), await stream.responses_to_store(1)) == (1, [])


async def test_a_response_that_is_deleted_before_it_is_written_is_not_there(
    stream: RedisStream, books: Books, response: UUID
) -> None:
    await response_storage._store_settled(books, stream)
    assert (await rows(books), await stream.responses_to_store(1)) == (0, [])
    assert await stream.state(response) == b""  # so that readers do not look for it in the database


async def test_a_deletion_holds_if_the_process_that_stores_dies(
    stream: RedisStream, books: Books, response: UUID
) -> None:
    books.dies_after_writing = True
    with pytest.raises(DatabaseUnavailable):
        await response_storage._store_settled(books, stream)
    assert await rows(books) == 1
    await response_storage._store_settled(books, stream)
    assert (await rows(books), await stream.responses_to_store(1)) == (0, [])
