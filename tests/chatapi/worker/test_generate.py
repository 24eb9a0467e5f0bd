"""What becomes of a run when something happens while it is claimed, when the database is away then, or when
its job can't be read.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from django.db.models import F

from chatapi import identity
from chatapi.delta_stream import ByServer, Cancellation, Signs
from chatapi.fair_turns import FairTurns
from chatapi.wire.deltas import AnyDelta
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.protocols.chat.request import parse as parse_chat
from chatapi.wire.protocols.embeddings.request import parse as parse_embeddings
from chatapi.wire.protocols.text_completions.request import parse as parse_text
from chatapi.wire.upstream.upstream_errors import QUOTA_TOO_SMALL
from chatapi.worker import absences, attempts, generate
from chatapi.worker.deployments import SANDBOX, Route
from chatapi.worker.engines import Call, EngineError, Target, Timeouts
from chatapi.worker.routing import router as router_module
from chatapi.worker.routing.retries import BURST, RetryBudgets, Step
from chatapi.worker.routing.router import Router
from chatapi.worker.runs.run import SHUTTING_DOWN, Run
from chatapi.worker.runs.run_usage import End, Ending
from chatapi.worker.worker_services import WorkerServices
from tests.cast import Person, admit
from usage.books import ledger
from usage.books.ledger import Candidate, Claimed
from usage.database.clock import database_now
from usage.database.group_commit import GroupCommit
from usage.errors import AlreadyResolved, DatabaseUnavailable
from usage.models import Generation
from usage.pricing import FREE

REQUEST = parse_chat(b'{"model": "served", "messages": [{"role": "user", "content": "hello"}]}')
BEST_OF_TWO = parse_text(b'{"model": "served", "prompt": "hello", "best_of": 2}')
EMBEDDINGS = parse_embeddings(b'{"model": "served", "input": "hello"}')
SILENT = Target("silent", timeouts=Timeouts(first_delta_ms=6))


class Routes:
    """The routes of a database that is away for a while; a reading that was kept is from before the model was
    made.
    """

    def __init__(self, failures: int, routes: Sequence[Route] = ()) -> None:
        self.failures = failures
        self.now = {"served": list(routes)}

    async def get(self, max_age_s: float) -> dict[str, list[Route]]:
        if self.failures:
            self.failures -= 1
            raise DatabaseUnavailable("away")
        return {} if max_age_s else self.now


class SilentEngine:
    """The engine of an upstream that never answers."""

    async def stream(self, call: Call) -> AsyncGenerator[Sequence[AnyDelta], None]:
        await asyncio.Event().wait()
        yield []


class RefusingEngine:
    """The engine of an upstream whose whole rate limit is smaller than the request."""

    async def stream(self, call: Call) -> AsyncGenerator[Sequence[AnyDelta], None]:
        raise EngineError(QUOTA_TOO_SMALL, is_retryable=True)
        yield []  # type: ignore[unreachable]  # a generator has a yield


def new_run() -> Run:
    return Run(Claimed(identity.new_id(), 1, "served", 10, 1, is_test=False, organization_id=1), "web")


@pytest.fixture
def run() -> Run:
    return new_run()


def services(failures: int, *routes: Route) -> WorkerServices:
    parts: Any = SimpleNamespace(
        routes=Routes(failures, routes),
        router=Router(),
        retry_budgets=RetryBudgets(),
        engines={"silent": SilentEngine(), "refusing": RefusingEngine()},
        publishers=ByServer([None]),
    )
    return cast(WorkerServices, parts)


async def test_a_cancellation_is_heard_while_the_generation_is_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker may have read the flag just before it was set, and there is no run yet."""
    claimed = Claimed(identity.new_id(), 1, "served", 10, 1, is_test=False, organization_id=1)
    worker = WorkerServices.__new__(WorkerServices)
    worker.name, worker.running, worker._awaited = "worker", {}, {}
    ends = []

    async def write(*_: object) -> Claimed:
        await worker._cancel(claimed.id, Cancellation.ASKED)
        return claimed

    async def job(_: UUID) -> tuple[None, None]:
        return None, None

    async def run(_: WorkerServices, run: Run) -> None:
        ends.append(run.stopped)

    monkeypatch.setattr(worker, "commits", SimpleNamespace(write=write), raising=False)
    monkeypatch.setattr(worker, "jobs", ByServer([job]), raising=False)
    monkeypatch.setattr(worker, "streams", ByServer([None]), raising=False)
    monkeypatch.setattr(generate, "_run", run)
    await generate.generate(worker, claimed.id)
    assert ends == [End(Ending.CANCELLED)]
    assert (worker.running, worker._awaited) == ({}, {})


Happens = Callable[[GroupCommit], Awaitable[None]]


class Interrupted(GroupCommit):
    """The real one, but something happens between the first commit and its answer."""

    def __init__(self, happens: Happens) -> None:
        super().__init__()
        self._happens = [happens]

    async def write(self, operation: Any, item: Any) -> Any:
        result = await super().write(operation, item)
        while self._happens:
            await self._happens.pop()(self)
        return result


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, End | None]]:
    """Return the fence of each run, and the reason to end it, as it begins."""
    begun: list[tuple[int, End | None]] = []

    async def run(_: WorkerServices, run: Run) -> None:
        begun.append((run.fence, run.stopped))

    monkeypatch.setattr(generate, "_run", run)
    return begun


async def run_interrupted(alice: Person, happens: Happens) -> None:
    """Claim and run a generation of hers."""
    commits = Interrupted(happens)
    row = await commits.read(lambda: admit(alice))

    async def job(_: UUID) -> tuple[None, None]:
        return None, None

    worker = WorkerServices.__new__(WorkerServices)
    worker.name, worker.commits, worker.running, worker._awaited = "worker", commits, {}, {}
    worker.jobs = ByServer([job])  # type: ignore[list-item]  # nothing else of it is asked for
    worker.streams = ByServer([None])  # type: ignore[assignment]
    try:
        await generate.generate(worker, row.pk)
    finally:
        await commits.close()


@pytest.mark.django_db(transaction=True)
async def test_a_claim_whose_answer_is_lost_is_a_claim(
    alice: Person, ends: list[tuple[int, End | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose(_: GroupCommit) -> None:
        raise DatabaseUnavailable("the answer to COMMIT was lost")

    monkeypatch.setattr(generate, "CLAIM_RETRY_S", (0,))
    await run_interrupted(alice, lose)
    assert ends == [(1, None)]


@pytest.mark.django_db(transaction=True)
async def test_a_claim_of_somebody_else_is_none(
    alice: Person, ends: list[tuple[int, End | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose(commits: GroupCommit) -> None:
        await commits.read(lambda: Generation.objects.update(worker="another"))
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(generate, "CLAIM_RETRY_S", (0,))
    with pytest.raises(AlreadyResolved):
        await run_interrupted(alice, lose)
    assert ends == []


@pytest.mark.django_db(transaction=True)
async def test_a_claim_that_was_taken_over_meanwhile_is_none(
    alice: Person, ends: list[tuple[int, End | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row still has the name of its worker. With the reaper's fence, both would publish and settle it."""

    async def lose(commits: GroupCommit) -> None:
        await commits.read(lambda: Generation.objects.update(lease_expires_at=F("claimed_at")))
        orphans = await commits.write(
            ledger.take_over, ledger.TakeOver(1, 6_000, await commits.read(database_now))
        )
        assert [orphan.fence for orphan in orphans] == [2]
        raise DatabaseUnavailable("the answer to COMMIT was lost, and the next one came late")

    monkeypatch.setattr(generate, "CLAIM_RETRY_S", (0,))
    with pytest.raises(AlreadyResolved):
        await run_interrupted(alice, lose)
    assert ends == []


@pytest.mark.django_db(transaction=True)
async def test_a_task_that_is_cancelled_while_claiming_ends_its_claim(
    alice: Person, ends: list[tuple[int, End | None]]
) -> None:
    claiming = asyncio.current_task()

    async def cancel(_: GroupCommit) -> None:
        assert claiming is not None
        claiming.cancel()
        await asyncio.sleep(0)

    await run_interrupted(alice, cancel)
    assert ends == [(1, End(Ending.FAILED, SHUTTING_DOWN))]


async def test_a_message_that_comes_twice_is_one_run() -> None:
    generation_id, worker = identity.new_id(), WorkerServices.__new__(WorkerServices)
    worker.running, worker._awaited = {}, {}
    with worker.awaiting(generation_id):
        with pytest.raises(AlreadyResolved), worker.awaiting(generation_id):
            pass
        assert generation_id in worker._awaited


async def test_it_asks_the_database_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "ROUTES_RETRY_S", (0, 0))
    end = await attempts.produce(services(failures=2), run, REQUEST)
    assert end.failure is attempts.NO_DEPLOYMENT


async def test_a_model_that_is_newer_than_the_last_reading_is_served(run: Run) -> None:
    assert await attempts.routes_for(services(0, SANDBOX), run, REQUEST) == [SANDBOX]


async def test_a_stop_ends_the_wait_for_the_database(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "ROUTES_RETRY_S", (3_600,))
    asyncio.get_running_loop().call_soon(run.cancel, Cancellation.ASKED)
    async with asyncio.timeout(20):
        end = await attempts.produce(services(failures=1), run, REQUEST)
    assert end.ending is Ending.CANCELLED


async def test_it_gives_up_in_the_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "ROUTES_RETRY_S", (0, 0))
    with pytest.raises(DatabaseUnavailable):
        await attempts.produce(services(failures=3), run, REQUEST)


async def test_it_waits_for_room_no_longer_at_many_deployments_than_at_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (attempts, router_module):
        monkeypatch.setattr(module, "MAX_ROOM_WAIT_S", 0.5, raising=False)
    full = [
        replace(SANDBOX, target=Target("sandbox", name), max_concurrent=1) for name in ("one", "two", "three")
    ]
    parts = services(0, *full)
    for route in full:
        await parts.router.place(route, 2)
    began_at = time.monotonic()
    end = await attempts.produce(parts, run, REQUEST)
    assert end.failure is attempts.BUSY
    assert 0.4 < time.monotonic() - began_at < 0.9


async def test_a_wait_that_ends_with_a_place_counts_among_the_waits_for_room(run: Run) -> None:
    route = replace(SANDBOX, max_concurrent=1)
    parts = services(0, route)
    place = await parts.router.place(route, 2)
    asyncio.get_running_loop().call_later(0.1, place.__exit__)
    assert await attempts._place(parts, run, Step(route)) is not None
    assert run.waited_for_room_s >= 0.1


@pytest.mark.parametrize(
    ("silent_s", "target", "asked", "is_healthy"),
    [
        (0, SILENT, REQUEST, False),
        (60, SILENT, REQUEST, True),
        (0, replace(SILENT, timeouts=Timeouts(first_delta_ms=600)), REQUEST, True),
        (0, replace(SILENT, streaming="never"), REQUEST, True),
        (0, SILENT, EMBEDDINGS, True),
        (0, SILENT, BEST_OF_TWO, True),
    ],
)
async def test_a_deployment_fails_clients_that_leave_it_after_a_long_silence(
    monkeypatch: pytest.MonkeyPatch,
    silent_s: float,
    target: Target,
    asked: GenerationRequest,
    is_healthy: bool,
) -> None:
    monkeypatch.setattr(router_module, "SILENT_S", silent_s)
    route = replace(SANDBOX, target=target)
    parts = services(0, route)
    for _ in range(3):
        run = new_run()
        asyncio.get_running_loop().call_later(0.01, run.cancel, Cancellation.CLIENT_LEFT)
        end = await attempts.produce(parts, run, asked)
        assert end.ending is Ending.CLIENT_LEFT
    assert parts.router.health.is_healthy(route.key) is is_healthy


def new_test_run(*fallbacks: str) -> Run:
    others = tuple(Candidate(model, model, 10, None, FREE) for model in fallbacks)
    return Run(replace(new_run().claimed, is_test=True, fallbacks=others), "web")


async def test_the_sandbox_fails_no_client_that_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "SILENT_S", 0)
    route = replace(SANDBOX, target=SILENT)
    monkeypatch.setattr("chatapi.worker.attempts.SANDBOX", route)
    parts = services(0)
    for _ in range(3):
        run = new_test_run()
        asyncio.get_running_loop().call_later(0.01, run.cancel, Cancellation.CLIENT_LEFT)
        assert (await attempts.produce(parts, run, REQUEST)).ending is Ending.CLIENT_LEFT
    assert parts.router.health.is_healthy(route.key)


async def test_fallbacks_of_test_keys_use_no_retry_budget_of_live_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def switch_model(*_: object) -> GenerationRequest:
        return REQUEST

    monkeypatch.setattr("chatapi.worker.fallbacks.switch_model", switch_model)
    monkeypatch.setattr(
        "chatapi.worker.attempts.SANDBOX", replace(SANDBOX, target=Target("refusing", "sandbox"))
    )
    parts = services(0)
    end = await attempts.produce(parts, new_test_run("other", "third"), REQUEST)
    assert end.failure is QUOTA_TOO_SMALL
    assert all(parts.retry_budgets.spend("served") for _ in range(int(BURST)))


async def test_no_deployment_fails_the_clients_of_a_dead_web_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "SILENT_S", 0)
    route = replace(SANDBOX, target=SILENT)
    parts = services(0, route)
    worker = WorkerServices.__new__(WorkerServices)
    worker.turns, worker._stops, worker._absences = FairTurns(1, 1), FairTurns(), absences.Absences()
    monkeypatch.setattr(absences, "PRESUMED_DEAD_S", -1)

    async def signs_of_life(_: list[str]) -> Signs:
        return Signs(set(), set())

    monkeypatch.setattr(worker, "streams", SimpleNamespace(signs_of_life=signs_of_life), raising=False)
    runs = [new_run() for _ in range(3)]
    producing = [asyncio.create_task(attempts.produce(parts, run, REQUEST)) for run in runs]
    await asyncio.sleep(0.01)
    await worker._cancel_for_dead_web(runs)
    assert [(await each).ending for each in producing] == [Ending.CLIENT_LEFT] * 3
    assert parts.router.health.is_healthy(route.key)


async def test_a_deployment_whose_quota_is_too_small_for_a_request_stays_healthy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A client that repeats one large request must not take the deployment from all others."""
    route = replace(SANDBOX, target=Target("refusing", "west"))
    parts = services(0, route)
    for _ in range(3):
        assert (await attempts.produce(parts, new_run(), REQUEST)).failure is QUOTA_TOO_SMALL
    assert parts.router.health.is_healthy(route.key)
    assert caplog.text.count("deployment west of served failed: upstream_quota_too_small") == 3


async def test_a_job_that_is_not_readable_is_settled_as_our_fault(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = []

    async def finish(_services: WorkerServices, _run: Run, request: object, end: End) -> None:
        ends.append((request, end.failure))

    monkeypatch.setattr(generate, "_finish", finish)
    unreadable = Run(run.claimed, "web", content=b'{"of": "another version"}')
    await generate._run(services(failures=0), unreadable)
    assert ends == [(None, attempts.INTERNAL)]


async def test_deltas_that_wait_for_their_turn_delay_no_cancellation(run: Run) -> None:
    worker = WorkerServices.__new__(WorkerServices)
    worker.running, worker._awaited = {run.id: run}, {}
    worker.turns, worker._stops = FairTurns(1, 1), FairTurns()
    deltas = [asyncio.create_task(worker.turns.take(run.organization_id, 100)) for _ in range(100)]
    await asyncio.sleep(0)
    await worker._cancel(run.id, Cancellation.ASKED)
    assert run.stopped is not None
    assert not all(task.done() for task in deltas)
    await asyncio.gather(*deltas)
