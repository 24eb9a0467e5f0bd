"""The connections, caches and background loops of a worker process, shared by all its runs."""

import asyncio
import logging
import resource
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from uuid import UUID

from django.conf import settings

from chatapi import identity
from chatapi.celery import GENERATE_TASK, app
from chatapi.concurrency import Batch, CachedValue, Loop, repeat, supervise
from chatapi.delta_stream import ByServer, Cancellation, DeltaStream, StreamUnavailable
from chatapi.fair_turns import FairTurns
from chatapi.models import Engine as EngineName
from chatapi.process_metrics import publish_forever
from chatapi.redis_servers import RedisServers
from chatapi.task_queue import TaskQueue
from chatapi.wire import tokens
from chatapi.wire.upstream.http_api import ANTHROPIC
from chatapi.worker import deployments
from chatapi.worker.absences import Absences
from chatapi.worker.deployments import Route
from chatapi.worker.engines import Engine
from chatapi.worker.engines.openai_compatible import OpenAICompatibleEngine
from chatapi.worker.engines.sandbox.engine import SandboxEngine
from chatapi.worker.heartbeat import Heartbeat, Held
from chatapi.worker.lost_messages import LostMessages
from chatapi.worker.reaper.garbage_collection import collect_garbage
from chatapi.worker.reaper.reaper import Reaper
from chatapi.worker.reaper.response_storage import store_responses
from chatapi.worker.routing.retries import RetryBudgets
from chatapi.worker.routing.router import Router
from chatapi.worker.routing.shared_cool_downs import exchange_forever
from chatapi.worker.runs.publisher import Publisher
from chatapi.worker.runs.run import KEY_REVOKED, Run
from chatapi.worker.runs.run_usage import End, Ending
from usage.books import ledger, reports
from usage.database.group_commit import GroupCommit
from usage.errors import AlreadyResolved, UsageError

log = logging.getLogger(__name__)

LISTEN_AGAIN_S = 0.2
# The cost of stopping and settling a run, in deltas (`fair_turns.py`).
STOP_UNITS = 16

ENGINES: dict[str, Callable[[], Engine]] = {
    EngineName.OPENAI_COMPATIBLE.value: OpenAICompatibleEngine,
    EngineName.ANTHROPIC.value: partial(OpenAICompatibleEngine, ANTHROPIC),
    EngineName.SANDBOX.value: SandboxEngine,
}


def slot_count() -> int:
    """Return how many generations this process may run at once: each has a connection to its upstream."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # A quarter of them is left for idle connections, Redis, the database and files.
    most: int = settings.WORKER_CONCURRENCY
    return min(most, descriptors * 3 // 4)


class WorkerServices:
    """The process's connections, engines and running generations."""

    def __init__(self) -> None:
        self.name = identity.process_name()
        self.commits = GroupCommit()
        self._redis = RedisServers()
        self.streams = self._redis.streams
        # One for each server, so that a server that is away holds up nothing of another.
        self.jobs = ByServer([Batch(stream.jobs) for stream in self.streams])
        self.publishers = ByServer([Publisher(stream) for stream in self.streams])
        self.engines: dict[str, Engine] = {name: engine() for name, engine in ENGINES.items()}
        self.routes: CachedValue[dict[str, list[Route]]] = CachedValue(
            lambda: self.commits.read(deployments.load)
        )
        self.router = Router()
        self.retry_budgets = RetryBudgets()
        self.turns = FairTurns()
        # Turns for stopping runs, apart from those for deltas: a thousand cancellations at once are spread
        # over many turns of the loop.
        self._stops = FairTurns()
        self.running: dict[UUID, Run] = {}
        self._awaited: dict[UUID, list[Cancellation]] = {}
        self._absences = Absences()
        self._heartbeat = Heartbeat(self.name, self.commits, self._held, self._fence_off)

    @asynccontextmanager
    async def lifetime(self) -> AsyncIterator["WorkerServices"]:
        """Run the background loops; at exit, publish what is pending and close all connections."""
        # Loading the vocabularies takes half a second, for which no stream may wait.
        await asyncio.get_running_loop().run_in_executor(None, tokens.warm)
        reaper = Reaper(self.commits, self.streams)
        queue = TaskQueue(app, GENERATE_TASK, app.conf.task_default_queue)
        lost_messages = LostMessages(
            self.commits, self._redis.broker, queue, has_free_slot=self._has_free_slot, holds=self._holds
        )
        shared, prefix = self._redis.shared, settings.REDIS_KEY_PREFIX
        work: Sequence[Loop] = (
            *(publisher.run for publisher in self.publishers),
            *(partial(self._listen, stream) for stream in self.streams),
            *(partial(collect_garbage, self.commits, stream) for stream in self.streams),
            *(partial(store_responses, self.commits, stream) for stream in self.streams),
            self._sweep,
            reaper.run,
            lost_messages.run,
            partial(exchange_forever, self.router, shared, prefix, self.name),
            partial(publish_forever, shared, prefix, "worker", lambda: len(self.running)),
        )
        loops = [asyncio.create_task(supervise(loop)) for loop in work]
        self._heartbeat.start()
        try:
            yield self
            for publisher in self.publishers:
                await publisher.drained()
        finally:
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            # Before the commits, which its thread uses.
            await self._heartbeat.close()
            for engine in self.engines.values():
                await engine.close()
            await self._redis.close()
            await self.commits.close()

    def _has_free_slot(self) -> bool:
        return len(self.running) + len(self._awaited) < slot_count()

    def _holds(self, generation_id: UUID) -> bool:
        return generation_id in self._awaited or generation_id in self.running

    def _held(self) -> Held:
        """Return the generations to prolong; called in the heartbeat's thread."""
        # `generate` adds to `running` before it removes from `_awaited`, so no generation is missed; each
        # copy is atomic under the interpreter's lock.
        claiming, runs = list(self._awaited), list(self.running.values())
        running = [ledger.Pulse(run.id, run.fence, run.published_pieces, run.deployment) for run in runs]
        known = {run.id for run in runs}
        claims = [ledger.Pulse(each, ledger.CLAIM_FENCE, 0, "") for each in claiming if each not in known]
        return Held(running, claims)

    def _fence_off(self, lost: set[UUID]) -> None:
        for generation_id in lost:
            # A run that has ended meanwhile was settled by this process.
            if run := self.running.get(generation_id):
                run.fence_off()

    async def _sweep(self) -> None:
        """Stop runs that are cancelled, whose key is revoked, or whose web process is dead, for ever."""
        while True:
            await asyncio.sleep(settings.HEARTBEAT_MS / 1_000)
            try:
                if self.running:
                    # Cancellations that were published while this worker did not listen.
                    cancelled = await self.streams.cancelled_among([*self.running])
                    for generation_id, why in cancelled.items():
                        await self._cancel(generation_id, why)
                    for generation_id in await self.commits.read(reports.with_revoked_keys, [*self.running]):
                        if (run := self.running.get(generation_id)) is not None:
                            await self._turn_to_stop(run)
                            run.stop(End(Ending.FAILED, KEY_REVOKED))
                await self._cancel_for_dead_web(list(self.running.values()))
            except (StreamUnavailable, UsageError) as error:
                # A web process that was missing may have been back meanwhile: the count begins again.
                self._absences.forget()
                log.warning("sweep: %r", error)

    async def _cancel_for_dead_web(self, runs: list[Run]) -> None:
        inboxes = {run.inbox for run in runs if run.inbox}
        found = await self.streams.signs_of_life(sorted(inboxes))
        dead = self._absences.dead(inboxes, found)
        for run in runs:
            if run.inbox in dead:
                await self._turn_to_stop(run)
                run.has_lost_web = True
                run.cancel(Cancellation.CLIENT_LEFT)

    async def _listen(self, stream: DeltaStream) -> None:
        """Stop runs of one server as their cancellations arrive, for ever."""

        async def listen() -> None:
            async for generation_id, why in stream.cancellations(self.name):
                await self._cancel(generation_id, why)

        await repeat(LISTEN_AGAIN_S, "cancellations", listen, expected=(StreamUnavailable,))

    @contextmanager
    def awaiting(self, generation_id: UUID) -> Iterator[list[Cancellation]]:
        """Collect the cancellations that arrive while a generation is being claimed.

        Earlier ones are stored beside its job. Raises `AlreadyResolved` if its queue message came twice.
        """
        if self._holds(generation_id):
            raise AlreadyResolved(generation_id.hex)
        cancellations = self._awaited[generation_id] = []
        try:
            yield cancellations
        finally:
            del self._awaited[generation_id]

    async def _cancel(self, generation_id: UUID, why: Cancellation) -> None:
        if (run := self.running.get(generation_id)) is not None:
            await self._turn_to_stop(run)
            run.cancel(why)
        elif (cancellations := self._awaited.get(generation_id)) is not None:
            cancellations.append(why)

    async def _turn_to_stop(self, run: Run) -> None:
        # A thousand clients can leave at the same moment, and to settle each run takes time of the loop.
        await self._stops.take(run.organization_id, STOP_UNITS)
