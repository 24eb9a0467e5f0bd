"""The worker process: Celery with chatapi's pool, and the floor's call of the upstream."""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aiohttp
import msgspec
from django.conf import settings

from accounts.loop_clock import clock
from bench import floor
from bench.accounted_floor import books
from bench.accounted_floor.commands import TASK, Commands
from chatapi.celery import app
from chatapi.serving.process_tuning import tune_process
from chatapi.worker.pool import run_worker
from usage.database.group_commit import GroupCommit

HAS_USAGE = b'"usage":{'
DRAIN_S = 1.0


class Worker(floor.Worker):
    """One worker process: claims, calls the upstream as the floor does, and settles before the usage."""

    client: aiohttp.ClientSession

    def __init__(self, upstream_url: str, *, uses_msgspec: bool) -> None:
        commands: Any = Commands()
        super().__init__(commands, upstream_url)
        self.parsed = floor.parsed
        if uses_msgspec:
            decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode
            self.parsed = partial(floor.parsed, decode=decode, encode=encode)
        self.commits = GroupCommit()

    @asynccontextmanager
    async def services(self) -> AsyncIterator[None]:
        """Keep the client and the publisher while the pool runs tasks."""
        connector, timeout = aiohttp.TCPConnector(limit=4096), aiohttp.ClientTimeout(120)
        publishing = asyncio.create_task(self.publish())
        tune_process()
        clock.start(asyncio.get_running_loop())
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as self.client:
            yield
        publishing.cancel()

    async def run_task(self, inbox: str, number: int, body: str) -> None:
        """Run one message."""
        await self.answer(self.client, floor.Job(inbox, number, body.encode()))

    async def answer(self, client: aiohttp.ClientSession, job: floor.Job) -> None:
        headers = {"content-type": "application/json"}
        claiming = asyncio.create_task(self.commits.write(books.claim, job.number))
        async with client.post(self.url, data=job.body, headers=headers) as answer:
            if not await claiming:
                return
            if answer.content_type != "text/event-stream":
                body = await answer.read()
                await self.settle(job, body)
                self.send(job, body)
                return
            end = b""
            async for events in self.parsed(answer.content):
                if end:
                    end += events
                elif (at := events.find(HAS_USAGE)) < 0:
                    self.send(job, events)
                else:
                    at = events.rfind(b"data: ", 0, at)
                    end = events[at:]
                    if at:
                        self.send(job, events[:at])
        await self.settle(job, end[len(b"data: ") : end.index(b"\n\n")])
        self.send(job, end)
        self.send(job, b"")

    async def settle(self, job: floor.Job, answered: bytes) -> None:
        usage = msgspec.json.decode(answered, type=books.Answered).usage
        await self.commits.write(books.settle, books.Spent(job.number, usage))


worker_services: Any = None
"""Celery's setting `chatapi_worker_services` names this variable."""


def run_celery(upstream_url: str, *, uses_msgspec: bool) -> int:
    """Run tasks until a signal; return the exit code."""
    global worker_services
    worker = Worker(upstream_url, uses_msgspec=uses_msgspec)
    worker_services = worker.services
    app.conf.update(imports=(), chatapi_worker_services=f"{__name__}:worker_services")
    app.task(name=TASK, Request="chatapi.worker.pool:BriefRequest")(worker.run_task)
    return run_worker(app, concurrency=settings.WORKER_CONCURRENCY, drain_seconds=DRAIN_S)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The accounted floor's worker process.")
    parser.add_argument("--upstream-url", required=True)
    parser.add_argument("--msgspec", action="store_true", help="parse events with msgspec, not with `json`")
    arguments = parser.parse_args()
    sys.exit(run_celery(arguments.upstream_url, uses_msgspec=arguments.msgspec))
