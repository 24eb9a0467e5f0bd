"""What a run does when the database is away between its claim and its first deployment, or when its job can't be read."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from chatapi import identity
from chatapi.delta_stream import Cancellation, Job
from chatapi.wire import requests
from chatapi.worker import generate
from chatapi.worker.deployments import SANDBOX, Health, Route
from chatapi.worker.run import Run
from chatapi.worker.services import Services
from chatapi.worker.tally import End, Ending
from usage.errors import DatabaseUnavailable
from usage.ledger import Claimed

REQUEST = requests.parse_chat(b'{"model": "served", "messages": [{"role": "user", "content": "hello"}]}', remote_media_allowed=True)


class Routes:
    """The routes of a database that is away for a while; a reading that was kept is from before the model was made."""

    def __init__(self, failures: int, routes: Sequence[Route] = ()) -> None:
        self.failures = failures
        self.now = {"served": list(routes)}

    async def get(self, max_age_s: float) -> dict[str, list[Route]]:
        if self.failures:
            self.failures -= 1
            raise DatabaseUnavailable("away")
        return {} if max_age_s else self.now


@pytest.fixture
def run() -> Run:
    return Run(Claimed(identity.new_id(), 1, "served", 10, 1, is_test=False), "web")


def services(failures: int, *routes: Route) -> Services:
    parts: Any = SimpleNamespace(routes=Routes(failures, routes), health=Health())
    return cast(Services, parts)


async def test_a_cancellation_is_heard_while_the_generation_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its flag may have been asked for just before it was set, and its run is not there yet."""
    claimed = Claimed(identity.new_id(), 1, "served", 10, 1, is_test=False)
    worker = Services.__new__(Services)
    worker.name, worker.running, worker._awaited = "worker", {}, {}
    ends = []

    async def write(*_: object) -> Claimed:
        worker._cancel(claimed.id, Cancellation.ASKED)
        return claimed

    async def job(_: UUID) -> tuple[None, None]:
        return None, None

    async def run(_: Services, run: Run, __: object) -> None:
        ends.append(run.stopped)

    monkeypatch.setattr(worker, "commits", SimpleNamespace(write=write), raising=False)
    monkeypatch.setattr(worker, "jobs", job, raising=False)
    monkeypatch.setattr(generate, "_run", run)
    await generate.generate(worker, claimed.id)
    assert ends == [End(Ending.CANCELLED)]
    assert (worker.running, worker._awaited) == ({}, {})


async def test_it_asks_the_database_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "CLAIM_RETRY_S", (0, 0))
    end = await generate._produce(services(failures=2), run, REQUEST)
    assert end.failure is generate.NO_DEPLOYMENT


async def test_a_model_that_is_newer_than_the_last_reading_is_served(run: Run) -> None:
    assert await generate._routes(services(0, SANDBOX), run.claimed, REQUEST) == [SANDBOX]


async def test_it_gives_up_in_the_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "CLAIM_RETRY_S", (0, 0))
    with pytest.raises(DatabaseUnavailable):
        await generate._produce(services(failures=3), run, REQUEST)


async def test_a_job_that_is_not_readable_is_settled_as_our_fault(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []

    async def finish(_services: Services, _run: Run, request: object, end: End) -> None:
        ends.append((request, end.failure))

    monkeypatch.setattr(generate, "_finish", finish)
    await generate._run(services(failures=0), run, Job("web", b'{"of": "another version"}'))
    assert ends == [(None, generate.INTERNAL)]
