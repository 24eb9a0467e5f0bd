"""How runs are settled when their deltas, or the answer to their commit, are lost on the way: real books, a
Redis that can be away.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chatapi import process_metrics
from chatapi.delta_stream import ByServer, Cancellation, DeltaStream
from chatapi.fair_turns import FairTurns
from chatapi.wire import deltas, requests, tokens
from chatapi.wire.deltas import Annotations, AnyDelta, Failed, Finished, Started, Text, Usage
from chatapi.wire.protocols.chat.request import parse as parse_chat
from chatapi.worker import generate
from chatapi.worker.deployments import SANDBOX, Route
from chatapi.worker.engines import Call, Target
from chatapi.worker.routing.retries import RetryBudgets
from chatapi.worker.routing.router import Router
from chatapi.worker.runs import publisher as publisher_module
from chatapi.worker.runs.publisher import Publisher
from chatapi.worker.runs.run import Run
from chatapi.worker.runs.run_usage import RunUsage
from chatapi.worker.worker_services import WorkerServices
from tests.cast import Person, admit
from tests.chatapi.worker.test_publisher import Writes
from usage.books import ledger
from usage.database.clock import database_now
from usage.database.group_commit import GroupCommit
from usage.errors import DatabaseUnavailable
from usage.models import Generation, Outcome, UsageSource
from usage.pricing import Tokens

pytestmark = pytest.mark.django_db(transaction=True)

REQUEST = parse_chat(b'{"model": "small", "messages": [{"role": "user", "content": "hello"}]}')
CONTENT = requests.to_bytes(REQUEST)


class Commits(GroupCommit):
    """The real one, but the answers to the next commits can be lost."""

    lost_answers = 0

    async def write(self, *arguments: Any) -> Any:
        result = await super().write(*arguments)
        if self.lost_answers:
            self.lost_answers -= 1
            raise DatabaseUnavailable("the connection broke")
        return result


class Engine:
    """Says the batches, one after the other; what is no batch among them is done instead."""

    def __init__(self, *steps: Sequence[AnyDelta] | Callable[[], Awaitable[None]]) -> None:
        self._steps = steps
        self.said = 0

    async def stream(self, _: Call) -> AsyncGenerator[Sequence[AnyDelta], None]:
        for step in self._steps:
            if callable(step):
                await step()
            else:
                self.said += 1
                yield step


@pytest.fixture
async def commits() -> AsyncIterator[Commits]:
    commits = Commits()
    yield commits
    await commits.close()


@pytest.fixture
def writes() -> Writes:
    return Writes()


@pytest.fixture
async def publisher(writes: Writes, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Publisher]:
    """Yield a publisher that gives up at once."""
    monkeypatch.setattr(publisher_module, "GIVE_UP_S", 0)
    publisher = Publisher(cast(DeltaStream, writes))
    flushing = asyncio.create_task(publisher.run())
    yield publisher
    flushing.cancel()


@pytest.fixture
def run(alice: Person) -> Run:
    generation = admit(alice)
    (claimed,) = ledger.claim(database_now(), [ledger.Claim(generation.pk, "worker", 10_000)])
    assert isinstance(claimed, ledger.Claimed)
    return Run(claimed, "web", content=CONTENT)


async def settled(commits: Commits, publisher: Publisher, run: Run, engine: Engine) -> Generation:
    """Run it to its end; the row that there is then."""

    async def routes(_max_age_s: float) -> dict[str, list[Route]]:
        return {"small": [replace(SANDBOX, target=Target(engine="scripted", name="the deployment"))]}

    parts: Any = SimpleNamespace(
        routes=SimpleNamespace(get=routes),
        router=Router(),
        retry_budgets=RetryBudgets(),
        turns=FairTurns(),
        engines={"scripted": engine},
        publishers=ByServer([publisher]),
        commits=commits,
    )
    await generate._run(cast(WorkerServices, parts), run)
    await publisher.drained()
    return await commits.read(Generation.objects.get, pk=run.id)


def published(writes: Writes) -> list[AnyDelta]:
    return [delta for entries in writes.calls for entry in entries for delta in deltas.decode(entry.batch)]


END: list[AnyDelta] = [Finished("stop"), Usage(7, 5)]


async def test_unpublished_tokens_are_not_charged_even_if_the_upstream_reported_them(
    commits: Commits, publisher: Publisher, writes: Writes, run: Run
) -> None:
    async def redis_goes_away() -> None:
        await publisher.flushed(run)
        writes.failures = 1

    engine = Engine([Started(), Text(" the of")], redis_goes_away, [Text(" and to in"), *END])
    row = await settled(commits, publisher, run, engine)
    assert (row.outcome, row.error_code, row.deployment) == (
        Outcome.FAILED,
        "stream_unavailable",
        "the deployment",
    )
    assert (row.usage_source, row.completion_tokens) == (UsageSource.COUNTED, 2)
    last = published(writes)[-1]
    assert isinstance(last, Failed)
    assert last.code == "stream_unavailable"


@pytest.mark.parametrize(("reasoning", "is_observed"), [(None, True), (0, True), (3, False)])
async def test_the_time_between_tokens_is_that_of_answers_without_reasoning(
    commits: Commits,
    publisher: Publisher,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    reasoning: int | None,
    is_observed: bool,
) -> None:
    """Reasoning may be hidden, and is then no token after the first."""
    for histogram in (process_metrics.FIRST_TOKEN, process_metrics.BETWEEN_TOKENS):
        monkeypatch.setattr(histogram, "series", {})
    end: list[AnyDelta] = [Finished("stop"), Usage(7, 5, reasoning_tokens=reasoning)]
    await settled(commits, publisher, run, Engine([Started(), Text(" the of"), *end]))
    assert list(process_metrics.FIRST_TOKEN.series) == ["small"]
    assert bool(process_metrics.BETWEEN_TOKENS.series) is is_observed


async def test_a_run_of_which_nothing_could_be_published_costs_nothing(
    commits: Commits, publisher: Publisher, writes: Writes, run: Run
) -> None:
    writes.failures = 1
    row = await settled(commits, publisher, run, Engine([Started(), Text(" the of"), *END]))
    assert (row.outcome, row.usage_source, row.completion_tokens) == (Outcome.FAILED, UsageSource.NONE, 0)
    assert (row.is_waived, row.amount_nanodollars) == (True, 0)


async def test_a_delta_that_can_not_be_encoded_is_no_good_end(
    commits: Commits, publisher: Publisher, writes: Writes, run: Run
) -> None:
    async def the_text_is_published() -> None:
        await publisher.flushed(run)

    engine = Engine(
        [Started(), Text(" the of")],
        the_text_is_published,
        [Text(" and"), Annotations([{"n": 1 << 64}]), *END],
    )
    row = await settled(commits, publisher, run, engine)
    assert (row.outcome, row.error_code, row.completion_tokens) == (Outcome.FAILED, "stream_unavailable", 2)
    assert isinstance(published(writes)[-1], Failed)


async def test_an_upstream_whose_stream_is_lost_is_not_read_any_more(
    commits: Commits, publisher: Publisher, run: Run
) -> None:
    async def the_stream_is_lost() -> None:
        await publisher.flushed(run)
        run.lose_stream([])

    engine = Engine([Started(), Text(" the")], the_stream_is_lost, *[[Text(" of")]] * 100)
    row = await settled(commits, publisher, run, engine)
    assert (row.completion_tokens, engine.said) == (1, 2)


@pytest.mark.parametrize("counts", [(RunUsage, "add"), (tokens.Counter, "encode_pieces")])
async def test_what_is_charged_of_a_run_that_is_stopped_while_it_counts_is_published(
    commits: Commits,
    publisher: Publisher,
    writes: Writes,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    counts: tuple[type, str],
) -> None:
    """A long batch is counted in a thread, meanwhile anything can happen on the event loop."""
    loop, count = asyncio.get_running_loop(), getattr(*counts)

    def count_slowly(*arguments: Any) -> Any:
        is_stopped = threading.Event()
        loop.call_soon_threadsafe(run.cancel, Cancellation.ASKED)
        loop.call_soon_threadsafe(is_stopped.set)
        is_stopped.wait()
        return count(*arguments)

    monkeypatch.setattr(*counts, count_slowly)
    row = await settled(commits, publisher, run, Engine([Started(), Text(" the" * 10_000), *END]))
    text = "".join(delta.text for delta in published(writes) if isinstance(delta, Text))
    assert row.outcome == Outcome.CLIENT_CANCELLED
    assert row.completion_tokens <= tokens.count(text)
    assert isinstance(published(writes)[0], Started)


async def test_a_commit_whose_answer_was_lost_is_published_like_any_other(
    commits: Commits, publisher: Publisher, writes: Writes, run: Run
) -> None:
    commits.lost_answers = 1
    row = await settled(commits, publisher, run, Engine([Started(), Text(" the of"), *END]))
    assert (row.outcome, row.completion_tokens) == (Outcome.COMPLETED, 5)
    assert row.settled_at is not None
    usage = Usage(7, 5, completed_at=int(row.settled_at.timestamp()))
    assert published(writes)[-2:] == [END[0], usage]


@pytest.mark.parametrize(
    ("error", "codes"), [(asyncio.CancelledError, None), (RuntimeError, ["internal_error"])]
)
async def test_a_run_that_is_cut_short_names_the_deployment_that_it_was_on(
    commits: Commits, publisher: Publisher, run: Run, error: type[BaseException], codes: list[str] | None
) -> None:
    """The deployment's own failure is recorded too, but not the end of our process."""

    async def it_ends() -> None:
        raise error

    row = await settled(commits, publisher, run, Engine([Started(), Text(" the of")], it_ends))
    assert (row.outcome, row.completion_tokens, row.deployment, row.attempts) == (
        Outcome.FAILED,
        2,
        "the deployment",
        1,
    )
    assert (row.attempt_log and [each["error_code"] for each in row.attempt_log]) == codes


async def test_what_somebody_else_has_settled_is_theirs_to_tell(
    commits: Commits, publisher: Publisher, writes: Writes, run: Run
) -> None:
    async def the_lease_runs_out() -> None:
        await commits.write(ledger.beat, ledger.Beat("worker", [ledger.Pulse(run.id, run.fence, 1, "")], -1))
        taken = await commits.write(
            ledger.take_over, ledger.TakeOver(1, 10_000, await commits.read(database_now))
        )
        (orphan,) = taken
        lost = ledger.Settlement(orphan.id, orphan.fence, Outcome.WORKER_LOST, Tokens(), UsageSource.NONE)
        await commits.write(ledger.settle, lost)

    row = await settled(
        commits, publisher, run, Engine([Started(), Text(" the of")], the_lease_runs_out, END)
    )
    assert row.outcome == Outcome.WORKER_LOST
    assert published(writes)[-1] == Text(" the of")
