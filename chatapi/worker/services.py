"""What a worker process holds once and all its runs share, and the loops that keep the runs honest."""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from uuid import UUID

from django.conf import settings
from redis.exceptions import RedisError

from accounts.rate_limits import LEASE_MS, RateLimits
from chatapi.celery import GENERATE_TASK, app
from chatapi.concurrency import Batch, CachedValue, supervise
from chatapi.delta_stream import Cancellation, DeltaStream
from chatapi.fair_turns import FairTurns
from chatapi.models import Engine as EngineName
from chatapi.presence import signs
from chatapi.redis_client import connect
from chatapi.task_queue import TaskQueue
from chatapi.wire import tokens
from chatapi.worker import deployments
from chatapi.worker.absences import Absences
from chatapi.worker.deployments import Health, Route
from chatapi.worker.engines import Engine
from chatapi.worker.engines.openai_compatible import OpenAICompatibleEngine
from chatapi.worker.engines.sandbox import SandboxEngine
from chatapi.worker.heartbeat import Heartbeat, Held
from chatapi.worker.lost_messages import LostMessages
from chatapi.worker.orphaned_reservations import LeftBehind
from chatapi.worker.reaper.garbage_collection import collect_garbage
from chatapi.worker.reaper.reaper import Reaper
from chatapi.worker.runs.publisher import Publisher
from chatapi.worker.runs.run import KEY_REVOKED, Run
from chatapi.worker.runs.run_usage import End, Ending
from usage.books import ledger, reports
from usage.database.group_commit import GroupCommit
from usage.errors import AlreadyResolved, UsageError

log = logging.getLogger(__name__)

STOP_UNITS = 16
"""The cost of stopping and settling a run, in deltas (`fair_turns.py`)."""

ENGINES: dict[str, type[Engine]] = {
    EngineName.OPENAI_COMPATIBLE.value: OpenAICompatibleEngine,
    EngineName.SANDBOX.value: SandboxEngine,
}


class Services:
    """A worker process: its database door, Redis, engines, and the runs that are under way."""

    def __init__(self) -> None:
        self.name = f"{socket.gethostname()[:40]}:{os.getpid()}"
        self.commits = GroupCommit()
        streams = connect(settings.STREAMS_URL)
        self._broker = (
            streams if settings.BROKER_URL == settings.STREAMS_URL else connect(settings.BROKER_URL)
        )
        self.stream = DeltaStream(streams, settings.REDIS_KEY_PREFIX, ttl_ms=settings.STREAM_TTL_MS)
        self.jobs = Batch(self.stream.jobs)
        self.publisher = Publisher(self.stream)
        self.engines: dict[str, Engine] = {name: engine() for name, engine in ENGINES.items()}
        self.routes: CachedValue[dict[str, list[Route]]] = CachedValue(
            lambda: self.commits.read(deployments.load)
        )
        self.health = Health()
        self.turns = FairTurns()
        self._stops = FairTurns()
        """The turns of stopping runs. They wait for no delta: a crowd of one organization must not delay
        another one's cancellation.
        """
        self.left_behind = LeftBehind(
            RateLimits(self.stream.redis, settings.REDIS_KEY_PREFIX, lease_ms=LEASE_MS, share=Batch)
        )
        self.running: dict[UUID, Run] = {}
        self._awaited: dict[UUID, list[Cancellation]] = {}
        self._absences = Absences()
        self._heartbeat = Heartbeat(self.commits, self._held, self._fence_off)

    @asynccontextmanager
    async def lifetime(self) -> AsyncIterator["Services"]:
        """Run the loops while the process lives; at the end everything is published and closed."""
        await asyncio.get_running_loop().run_in_executor(None, tokens.warm)
        reaper = Reaper(self.commits, self.stream)
        forgetting = partial(collect_garbage, self.commits, self.stream)
        queue = TaskQueue(app, GENERATE_TASK, app.conf.task_default_queue)
        lost_messages = LostMessages(self.commits, self._broker, queue, self._has_free_slot)
        work = (self.publisher.run, self._listen, self._sweep, reaper.run, forgetting, lost_messages.run)
        loops = [asyncio.create_task(supervise(loop)) for loop in work]
        self._heartbeat.start()
        try:
            yield self
            await self.publisher.drained()
        finally:
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await self._heartbeat.close()
            await reaper.close()
            with suppress(RedisError, OSError):
                await self.left_behind.close()
            for engine in self.engines.values():
                await engine.close()
            await self.stream.redis.aclose()
            await self._broker.aclose()
            await self.commits.close()

    def _has_free_slot(self) -> bool:
        slots: int = settings.WORKER_CONCURRENCY
        return len(self.running) + len(self._awaited) < slots

    def _held(self) -> Held:
        """For the heartbeat, which asks from its thread: each copy is made in one step, and what is claimed
        is seen in one of them.
        """
        claiming, runs = list(self._awaited), list(self.running.values())
        running = [ledger.Pulse(run.id, run.fence, run.usage.pieces, run.deployment) for run in runs]
        known = {run.id for run in runs}
        return Held(
            running, [ledger.Pulse(each, ledger.CLAIM_FENCE, 0) for each in claiming if each not in known]
        )

    def _fence_off(self, lost: set[UUID]) -> None:
        for generation_id in lost:
            # A run that ended meanwhile has been settled by itself.
            if run := self.running.get(generation_id):
                run.fence_off()

    async def _sweep(self) -> None:
        """Notice what nobody waits for any more, and what nobody may ask for any more."""
        while True:
            await asyncio.sleep(settings.HEARTBEAT_MS / 1_000)
            try:
                if self.running:
                    await self._cancel_missed(list(self.running.values()))
                    await self._cancel_revoked(list(self.running.values()))
                await self._cancel_for_dead_web(list(self.running.values()))
            except (RedisError, OSError, UsageError) as error:
                log.warning("sweep: %r", error)

    async def _cancel_missed(self, runs: list[Run]) -> None:
        """Stop what was cancelled while we did not listen."""
        for generation_id, why in (await self.stream.cancelled_among([run.id for run in runs])).items():
            await self._cancel(generation_id, why)

    async def _cancel_revoked(self, runs: list[Run]) -> None:
        """Stop what runs for a key that has been revoked meanwhile."""
        for generation_id in await self.commits.read(reports.with_revoked_keys, [run.id for run in runs]):
            if (run := self.running.get(generation_id)) is not None:
                await self._turn_to_stop(run)
                run.stop(End(Ending.FAILED, KEY_REVOKED))

    async def _cancel_for_dead_web(self, runs: list[Run]) -> None:
        """Stop what a web process that died has left behind, and see to what that has taken from rate limits."""
        inboxes = {run.inbox for run in runs if run.inbox} | self.left_behind.inboxes
        try:
            found = await signs(self.stream.redis, self.stream.prefix, sorted(inboxes))
        except (RedisError, OSError):
            self._absences.forget()
            raise
        dead = self._absences.dead(inboxes, found)
        for run in runs:
            if run.inbox in dead:
                await self._turn_to_stop(run)
                run.cancel(Cancellation.CLIENT_LEFT)
        # Of one that is merely late, too: it renews no places meanwhile.
        await self.left_behind.sweep(runs, inboxes - found.heard)

    async def _listen(self) -> None:
        """Stop what is cancelled, at once."""
        while True:
            try:
                async for generation_id, why in self.stream.cancellations(self.name):
                    await self._cancel(generation_id, why)
            except (RedisError, OSError) as error:
                log.warning("cancellations: %r", error)
            await asyncio.sleep(0.2)

    @contextmanager
    def awaiting(self, generation_id: UUID) -> Iterator[list[Cancellation]]:
        """Keep what asks a generation to stop that is about to run here; what came before is written beside
        its job.

        Raises `AlreadyResolved` when its message came twice.
        """
        if generation_id in self._awaited or generation_id in self.running:
            raise AlreadyResolved(generation_id.hex)
        heard = self._awaited[generation_id] = []
        try:
            yield heard
        finally:
            del self._awaited[generation_id]

    async def _cancel(self, generation_id: UUID, why: Cancellation) -> None:
        if (run := self.running.get(generation_id)) is not None:
            await self._turn_to_stop(run)
            run.cancel(why)
        elif (heard := self._awaited.get(generation_id)) is not None:
            heard.append(why)

    async def _turn_to_stop(self, run: Run) -> None:
        """Wait until this iteration of the loop may stop one more run: a thousand clients can leave at the
        same moment.
        """
        await self._stops.take(run.organization_id, STOP_UNITS)
