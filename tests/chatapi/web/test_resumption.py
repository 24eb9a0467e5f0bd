"""A stream that is followed from its log, when the log or the books are away, or have forgotten it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

import pytest

from accounts.errors import NotAuthenticated, PermissionDenied
from chatapi import errors, identity
from chatapi.delta_stream import Entry, Frame, Job, KeptRequest, Rest, StreamServers, StreamUnavailable
from chatapi.fair_turns import FairTurns
from chatapi.redis_client import connect
from chatapi.transports.redis_stream import RedisStream
from chatapi.web import relay, resumption
from chatapi.web.failures import send_failure
from chatapi.web.following import silence
from chatapi.web.following.follower import Follower
from chatapi.web.following.inbox import Inbox
from chatapi.web.following.inboxes import Inboxes
from chatapi.web.following.silence import Silence
from chatapi.web.relay import CLOSING, LOST
from chatapi.web.resumption import Position
from chatapi.wire import deltas
from chatapi.wire.deltas import TERMINAL, AnyDelta, Failed, Finished, Started, Text, Usage
from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.protocols import PROTOCOLS
from chatapi.wire.protocols.chat.encoder import ChatEncoder
from chatapi.wire.protocols.envelope import END_LOST
from chatapi.wire.protocols.protocol import Answer
from tests.cast import Person, admit, run
from tests.chatapi.web.exchange_by_hand import Client
from tests.chatapi.worker.processes import Valkey
from usage.database.group_commit import GroupCommit
from usage.errors import DatabaseUnavailable
from usage.models import Generation, Outcome

pytestmark = pytest.mark.django_db(transaction=True)

P = ParamSpec("P")
Result = TypeVar("Result")
FROM_THE_BEGINNING = Position(0, None)
TOLD: list[AnyDelta] = [Started(), Text("hello"), Text(" world")]
GOOD_END: list[AnyDelta] = [Finished("stop"), Usage(1_000, 200, 400)]


class Books(GroupCommit):
    """The books, which can be away."""

    is_away = False
    refusals = 0

    async def read(self, function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Read the row, or raise `DatabaseUnavailable`."""
        if self.is_away:
            self.refusals += 1
            raise DatabaseUnavailable("away")
        return await super().read(function, *args, **kwargs)


class Stream(RedisStream):
    """The logs; counts how often they were out of reach."""

    failures = 0

    async def tail(
        self, generation_id: UUID, after: bytes, seq: int, *, most_entries: int = 256
    ) -> tuple[bytes, Rest]:
        """Read the log."""
        try:
            return await super().tail(generation_id, after, seq, most_entries=most_entries)
        except StreamUnavailable:
            self.failures += 1
            raise

    async def read_logs(
        self, after: Mapping[UUID, bytes], *, block_ms: int | None
    ) -> dict[UUID, list[Frame]]:
        """Read some logs."""
        try:
            return await super().read_logs(after, block_ms=block_ms)
        except StreamUnavailable:
            self.failures += 1
            raise


@pytest.fixture
async def services(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """Yield the services of a follower: a log in Valkey, and the books, which are asked soon."""
    monkeypatch.setattr(silence, "SILENT_S", 0.1)
    monkeypatch.setattr(silence, "LOOK_S", 0.05)
    monkeypatch.setattr(relay, "ASK_RIGHTS_S", 0.1)
    redis, commits = connect(f"unix://{valkey.socket}"), Books()
    stream = Stream(redis, "test:", url=f"unix://{valkey.socket}", ttl_ms=5_000)
    watching = Silence(commits, StreamServers([stream]))
    asking = asyncio.create_task(watching.ask_books())
    inbox = Inbox(stream, "web", turns=FairTurns(), tick_s=0.05)
    await inbox.start()
    yield SimpleNamespace(
        stream=stream,
        streams=StreamServers([stream]),
        commits=commits,
        silence=watching,
        inboxes=Inboxes([inbox]),
        is_closing=False,
    )
    assert not inbox._resuming
    await inbox.stop()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await commits.close()
    await redis.aclose()


async def publish(services: Any, generation_id: UUID, first_seq: int, *batch: AnyDelta) -> None:
    is_last = isinstance(batch[-1], TERMINAL)
    await services.stream.publish([Entry(generation_id, 1, first_seq, deltas.encode(batch), is_last=is_last)])


async def all_of(batches: AsyncIterator[list[AnyDelta]]) -> list[AnyDelta]:
    async with asyncio.timeout(10):
        return [delta async for batch in batches for delta in batch]


async def frames(services: Any, generation_id: UUID, after: Position = FROM_THE_BEGINNING) -> list[bytes]:
    """Return the frames of a client that resumes behind that position."""
    encoder = ChatEncoder(Answer(generation_id.hex, 1, "small", include_usage=True))
    row = Generation(id=generation_id, organization_id=1)
    async with asyncio.timeout(10):
        body = b"".join([part async for part in resumption.remainder(services, encoder, row, after)])
    return body.split(b"\n\n")[:-1]


def event_id(frame: bytes) -> bytes:
    """Return the frame's SSE id; empty if it has none."""
    first, _, _ = frame.partition(b"\n")
    return first.removeprefix(b"id: ") if first.startswith(b"id: ") else b""


# ---- the books have forgotten it, or are away


async def test_a_stream_whose_row_is_gone_ends(services: Any) -> None:
    lost = identity.new_id()
    await publish(services, lost, 1, Text("hello"))
    found = await all_of(resumption.follow(services, Generation(id=lost, organization_id=1)))
    assert found[0] == Text("hello")
    assert isinstance(found[1], Failed)
    assert (len(found), found[1].code) == (2, "generation_not_found")


async def test_a_stream_whose_row_is_open_waits(services: Any, waiting: Generation) -> None:
    batches: list[list[AnyDelta]] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            batches = [batch async for batch in resumption.follow(services, waiting)]
    assert batches == []


async def test_an_unforeseen_error_ends_a_stream_that_has_begun() -> None:
    client = Client()
    exchange = client.exchange("resume", is_started=True)
    exchange.encoder = ChatEncoder(Answer("0" * 32, 1, "small"))
    await send_failure(exchange, ValueError("a bug"))
    (message,) = client.messages
    error, done, _ = message["body"].split(b"\n\n")
    assert (b'"internal_error"' in error, done, message["more_body"]) == (True, b"data: [DONE]", False)


@pytest.fixture
def waiting(alice: Person, transactional_db: None) -> Generation:
    """Return a generation that no worker has begun."""
    return admit(alice)


@pytest.fixture
def completed(alice: Person, transactional_db: None) -> Generation:
    """Return a generation that has completed."""
    return run(alice)


@pytest.fixture
def failed(alice: Person, transactional_db: None) -> Generation:
    """Return a generation that has failed."""
    return run(
        alice, outcome=Outcome.FAILED, finish_reason="", error_code="upstream_error", error_message="it broke"
    )


async def test_a_database_that_is_away_for_a_while_ends_no_stream(services: Any, waiting: Generation) -> None:
    await publish(services, waiting.pk, 1, *TOLD)
    services.commits.is_away = True
    following = asyncio.ensure_future(all_of(resumption.follow(services, waiting)))
    while services.commits.refusals < 2 and not following.done():
        await asyncio.sleep(0.01)
    await publish(services, waiting.pk, 4, *GOOD_END)
    assert await following == [*TOLD, *GOOD_END]


# ---- Valkey is away, or has lost what it had


async def test_a_valkey_that_is_away_for_a_while_ends_no_stream(
    services: Any, valkey: Valkey, waiting: Generation
) -> None:
    await publish(services, waiting.pk, 1, *TOLD)
    following = resumption.follow(services, waiting)
    assert await anext(following) == TOLD
    valkey.stop()
    rest = asyncio.ensure_future(all_of(following))
    while services.stream.failures < 2 and not rest.done():
        await asyncio.sleep(0.01)
    valkey.start()
    await publish(services, waiting.pk, 4, *GOOD_END)
    assert await rest == GOOD_END


async def test_a_stream_ends_when_valkey_stays_away(
    services: Any, valkey: Valkey, waiting: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Follower, "LOST_AFTER_S", 0.3)
    await publish(services, waiting.pk, 1, *TOLD)
    following = resumption.follow(services, waiting)
    assert await anext(following) == TOLD
    valkey.stop()
    assert await all_of(following) == [LOST]


async def test_a_good_end_never_follows_a_text_whose_rest_is_lost(
    services: Any, completed: Generation
) -> None:
    following = await cut_short(services, completed.pk)
    assert await all_of(following) == [LOST]


async def test_a_bad_end_follows_every_loss(services: Any, failed: Generation) -> None:
    following = await cut_short(services, failed.pk)
    assert await all_of(following) == [Failed("it broke", code="upstream_error", status=502)]


async def test_a_good_end_never_follows_an_empty_log(services: Any, completed: Generation) -> None:
    assert await all_of(resumption.follow(services, completed)) == [LOST]


async def test_a_stream_of_which_a_part_is_lost_is_kept_and_says_so(
    services: Any, completed: Generation
) -> None:
    await publish(services, completed.pk, 11, Text("behind what is lost"), *GOOD_END)
    assert await resumption.is_kept(services, completed)
    assert await all_of(resumption.follow(services, completed)) == [LOST]


async def cut_short(services: Any, generation_id: UUID) -> AsyncIterator[list[AnyDelta]]:
    """Return a stream whose log is lost after a part of it has been read."""
    for seq in range(1, 301):
        await publish(services, generation_id, seq, Text(f"{seq} "))
    following = resumption.follow(services, Generation(id=generation_id, organization_id=1))
    assert len(await anext(following)) < 300
    await services.stream.delete(generation_id, has_ended=True)
    return following


@pytest.mark.parametrize("name", ["chat.completions", "completions", "responses", "messages"])
@pytest.mark.parametrize("is_stream", [True, False])
async def test_an_answer_without_its_end_is_an_error(
    services: Any, completed: Generation, name: str, is_stream: bool
) -> None:
    """Its log has a usage: a client must not take the answer for a whole one."""
    await publish(services, completed.pk, 1, *TOLD, Usage(1_000, 200, 400))
    dialect = PROTOCOLS[name].dialect("openai")
    assert dialect.encoder is not None
    answer = Answer(completed.pk.hex, 1, "small")
    encoder, folder = dialect.encoder(answer), dialect.folder(answer)
    if is_stream:
        following = resumption.remainder(services, encoder, completed, FROM_THE_BEGINNING)
        async with asyncio.timeout(10):
            body = b"".join([part async for part in following])
        assert b'"stream_unavailable"' in body.removesuffix(b"data: [DONE]\n\n").rpartition(b"data: ")[2]
        return
    for delta in await all_of(resumption.follow(services, completed)):
        folder.add(delta)
    assert folder.failure == END_LOST


# ---- ids


@pytest.mark.parametrize(("held", "ids"), [(0, [b"", b""]), (2, [b"25-1", b"25-2"])])
async def test_a_client_that_was_further_than_the_log_gets_an_error(
    services: Any, waiting: Generation, held: int, ids: list[bytes]
) -> None:
    """Valkey has lost a part of the log: a client with a later position has made no mistake."""
    behind = Position(20, 1, "Last-Event-ID")
    for seq in range(1, held + 1):
        await publish(services, waiting.pk, seq, Text(f"{seq} "))
    if held:
        await publish(services, waiting.pk, 25, LOST)
    await resumption.check_reached(services, waiting.pk, behind)
    if not held:
        await publish(services, waiting.pk, 25, Text("behind what is lost"))
    error, done = await frames(services, waiting.pk, behind)
    assert (b'"stream_unavailable"' in error, done.endswith(b"data: [DONE]")) == (True, True)
    assert [event_id(error), event_id(done)] == ids


async def test_a_failure_with_a_lower_number_than_the_position_is_sent_without_an_id(
    services: Any, waiting: Generation
) -> None:
    """The reaper numbers its failure behind the log that it finds, and Valkey may have lost that log."""
    await publish(services, waiting.pk, 1, LOST)
    error, done = await frames(services, waiting.pk, Position(20, 1))
    assert (event_id(error), b'"stream_unavailable"' in error, done) == (b"", True, b"data: [DONE]")


async def test_a_position_that_a_whole_log_has_not_reached_is_refused(
    services: Any, waiting: Generation
) -> None:
    await publish(services, waiting.pk, 1, *TOLD)
    await resumption.check_reached(services, waiting.pk, Position(3, 1, "Last-Event-ID"))
    with pytest.raises(InvalidRequest, match="its last event is of delta 3"):
        await resumption.check_reached(services, waiting.pk, Position(4, 1, "Last-Event-ID"))


async def test_a_position_in_a_stream_that_has_not_begun_is_refused(
    services: Any, waiting: Generation
) -> None:
    """The stream would otherwise leave its first deltas out, as if the client had them."""
    await services.stream.keep_again(KeptRequest(waiting.pk, Job("web", b"{}")))
    with pytest.raises(InvalidRequest, match="it has no event yet"):
        await resumption.check_reached(services, waiting.pk, Position(1, None, "starting_after"))


async def test_events_outside_the_log_have_no_id_and_resuming_behind_them_misses_nothing(
    services: Any, waiting: Generation
) -> None:
    await publish(services, waiting.pk, 1, *TOLD)
    services.is_closing = True
    *contents, error, done = await frames(services, waiting.pk)
    assert [event_id(frame) for frame in contents] == [b"1-1", b"2-1", b"3-1"]
    assert (event_id(error), event_id(done)) == (b"", b"")
    services.is_closing = False
    await publish(services, waiting.pk, 4, Text("!"), *GOOD_END)
    missed, *_ = await frames(
        services, waiting.pk, resumption.position(event_id(contents[-1]).decode(), "Last-Event-ID")
    )
    assert event_id(missed) == b"4-1"
    assert b'"content":"!"' in missed


async def test_an_end_from_the_row_has_no_id(services: Any, completed: Generation) -> None:
    await publish(services, completed.pk, 1, *TOLD)
    *contents, finish, usage, done = await frames(services, completed.pk)
    assert [event_id(frame) for frame in contents] == [b"1-1", b"2-1", b"3-1"]
    assert [event_id(frame) for frame in (finish, usage, done)] == [b""] * 3
    assert b'"finish_reason":"stop"' in finish
    assert b'"completion_tokens":200' in usage


@pytest.mark.parametrize("is_published_late", [False, True])
@pytest.mark.parametrize(
    ("after", "ids"),
    [
        (FROM_THE_BEGINNING, [b"12-1", b"12-2"]),
        (Position(1, 1), [b"12-1", b"12-2"]),
        (Position(12, 1), [b"12-2"]),
    ],
)
async def test_a_failure_behind_lost_deltas_is_sent_once_with_its_id(
    services: Any,
    failed: Generation,
    monkeypatch: pytest.MonkeyPatch,
    after: Position,
    ids: list[bytes],
    is_published_late: bool,
) -> None:
    """Valkey has lost the event that the client has. Only the last look finds a failure that comes late."""
    replay = services.stream.replay

    async def publish_and_replay(generation_id: UUID, after_seq: int = 0) -> Any:
        await publish(services, failed.pk, 12, LOST)
        return await replay(generation_id, after_seq)

    if is_published_late:
        monkeypatch.setattr(services.stream, "replay", publish_and_replay)
    else:
        await publish(services, failed.pk, 12, LOST)
    found = await frames(services, failed.pk, after)
    assert [event_id(frame) for frame in found] == ids
    assert [b'"stream_unavailable"' in frame for frame in found[:-1]] == [True] * (len(ids) - 1)
    assert found[-1].endswith(b"data: [DONE]")


# ---- a process that is to end


async def test_a_process_that_closes_ends_its_followers(services: Any, waiting: Generation) -> None:
    await publish(services, waiting.pk, 1, *TOLD)
    following = resumption.follow(services, waiting)
    assert await anext(following) == TOLD
    services.is_closing = True
    assert await all_of(following) == [CLOSING]


async def test_a_closing_process_sends_an_end_that_is_in_the_log(services: Any, waiting: Generation) -> None:
    services.is_closing = True
    await publish(services, waiting.pk, 1, *TOLD, *GOOD_END)
    assert await all_of(resumption.follow(services, waiting)) == [*TOLD, *GOOD_END]


@pytest.mark.parametrize(
    ("refusal", "code"), [(NotAuthenticated, "invalid_api_key"), (PermissionDenied, "permission_denied")]
)
async def test_a_key_that_may_not_look_any_more_is_refused(
    services: Any, waiting: Generation, refusal: type[Exception], code: str
) -> None:
    answers: list[type[Exception] | None] = [refusal, DatabaseUnavailable, None]

    async def authorize() -> None:
        if (answer := answers.pop()) is not None:
            raise answer("asked again")

    await publish(services, waiting.pk, 1, Text("hello"))
    encoder = ChatEncoder(Answer(waiting.pk.hex, 1, "small"))
    remainder = resumption.remainder(services, encoder, waiting, FROM_THE_BEGINNING, authorize)
    async with asyncio.timeout(10):
        assert b'"content":"hello"' in await anext(remainder)
        with pytest.raises(errors.APIError) as refused:
            await anext(remainder)
    assert refused.value.failure.code == code
    assert answers == []
