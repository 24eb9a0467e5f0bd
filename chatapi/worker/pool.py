"""Runs every Celery task as a coroutine on one asyncio loop, in one thread of the worker's process.

Celery's consumer keeps the main thread: it pops a message and hands it to `TaskPool.on_apply`, which passes
the task's coroutine function to the loop and returns at once. A task is therefore a plain `async def` under
`@app.task`. Task signals, results and retries are bypassed: Celery learns only that the slot is free again.

The pool also keeps the asynchronous services of the process (publisher, heartbeat, HTTP session …):
`chatapi_worker_services` in the Celery configuration names a function returning an async context manager,
entered before the first task and left after the last.

Shutdown: SIGTERM stops the consumer and lets running tasks finish for `chatapi_worker_drain_seconds`; the
rest are then cancelled, once each, and awaited, so that they can settle. A second SIGTERM, or SIGQUIT,
cancels at once. The pool does not limit how long a cancelled task takes: the supervisor has SIGKILL.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import uvloop
from celery import Celery, signals
from celery.concurrency.base import BasePool
from celery.exceptions import ImproperlyConfigured
from celery.platforms import EX_FAILURE
from celery.worker import state
from celery.worker.consumer import Consumer
from celery.worker.request import Request
from kombu import Connection
from kombu.asynchronous import get_event_loop
from kombu.utils.imports import symbol_by_name

from chatapi.worker import message_channel
from chatapi.worker.slot_shares import SlotShares

logger = logging.getLogger(__name__)

# What Celery's Request.on_success unpacks: failed, return value, runtime in seconds.
SLOT_IS_FREE = (False, None, 0.0)
OnEnd = Callable[[tuple[bool, None, float]], None]


class TaskRun:
    """One task on the pool's loop. Celery holds a weak reference to it."""

    def __init__(self, pool: "TaskPool", request: dict[str, Any], on_end: OnEnd) -> None:
        self._pool = pool
        # The whole request would stay in memory for as long as the task runs.
        self._name, self._id = request["task"], request["id"]
        self._args, self._kwargs = request["args"], request["kwargs"]
        self.organization: str = request.get("organization", "")
        self.on_end = on_end
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False

    def __repr__(self) -> str:
        return f"{self._name}[{self._id}]"

    def start(self) -> None:
        """Start the coroutine. Call this on the loop."""
        self._task = asyncio.create_task(self._execute())
        self._pool.runs[self._task] = self
        self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Cancel the coroutine, once. Call this on the loop."""
        # A second CancelledError would interrupt its settlement.
        # `Task.cancelling` does not do: a timeout inside the task raises it, too, and lowers it again.
        if self._task and not self._is_cancelled:
            self._is_cancelled = True
            self._task.cancel()

    def terminate(self, signal: int) -> None:
        """Cancel the coroutine; called by Celery's cold shutdown, in Celery's thread."""
        self._pool.call_on_loop(self.cancel)

    async def _execute(self) -> None:
        coroutine_function = self._pool.app.tasks[self._name].run
        try:
            await coroutine_function(*self._args, **self._kwargs)
        except (Exception, SystemExit):
            logger.exception("Task %r failed", self)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._pool.runs[task]
        if task.cancelled():
            logger.warning("Task %r was cancelled", self)
        self._pool.free_slot(self)


class BriefRequest(Request):
    """Celery's record of a running task, without the message: a thousand of them take 7 MB."""

    def on_accepted(self, pid: Any, time_accepted: Any) -> None:  # the stub has `str` for both
        """Acknowledge the message, and drop it."""
        super().on_accepted(pid, time_accepted)
        # An acknowledged task is never rejected or sent again, for which Celery would need them.
        self._message = self._body = self._on_ack = self._on_reject = None
        self._request_dict: dict[str, Any] = {}


class TaskPool(BasePool):
    """Celery's pool of `limit` concurrent coroutines. Celery creates and calls it in the main thread."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.runs: dict[asyncio.Task[None], TaskRun] = {}
        hub = get_event_loop()
        if hub is None:
            raise ImproperlyConfigured("the task pool needs a broker transport with an event loop: Redis")
        self.hub = hub
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._serve_in_thread, name="tasks", daemon=True)
        self._started: Future[None] = Future()
        self._stopping = asyncio.Event()
        self._ended: list[TaskRun] = []
        self.shares = SlotShares()

    def on_start(self) -> None:
        """Enter the services; raise their error, which ends the worker."""
        self._thread.start()
        self._started.result()
        signals.worker_shutting_down.connect(self._on_signal)

    def on_apply(  # type: ignore[override]  # the stub knows no result; Celery keeps a weak reference to it
        self,
        target: object,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        callback: Callable[..., None],
        accept_callback: Callable[[int, float], None],
        **options: object,
    ) -> TaskRun:
        """Acknowledge a message and start its task.

        `args` are those of Celery's tracer: name, id, request, body …
        """
        run = TaskRun(self, args[2], callback)
        # Acknowledged before it runs: a late acknowledgement would deliver a long task several times. Work
        # that is lost with this process is found by its lease.
        accept_callback(os.getpid(), time.monotonic())
        self.shares.take(run.organization)
        self.call_on_loop(run.start)
        return run

    def on_stop(self) -> None:
        """Drain the running tasks, and stop the thread."""
        if self.runs:
            logger.info("Draining %d running tasks", len(self.runs))
        self.call_on_loop(self._stopping.set)
        # The hub runs meanwhile: if its open BRPOP pops a message, it goes back to the queue. In the socket's
        # buffer it would be lost.
        try:
            hub_loop = self.hub.create_loop()
            while self._thread.is_alive():
                next(hub_loop)
        except Exception as error:
            logger.warning("Lost the broker while draining: %r", error)
        self._thread.join()

    def on_terminate(self) -> None:
        """Cancel the running tasks, and stop."""
        self.call_on_loop(self._cancel_runs)
        self.on_stop()

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """Do nothing: one process runs all tasks, and `TaskRun.terminate` ends one of them."""

    def call_on_loop(self, callback: Callable[..., object], *args: object) -> None:
        """Schedule `callback(*args)` on the loop, from any thread; do nothing if the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    def free_slot(self, run: TaskRun) -> None:
        """Let Celery know that a task has ended, once for all that end in one iteration of the loop."""
        if not self._ended:
            self._loop.call_soon(self._free_slots)
        self._ended.append(run)

    def _free_slots(self) -> None:
        ended, self._ended = self._ended, []
        # Celery's bookkeeping must run in its thread; this also wakes a hub that waits with a full pool.
        self.hub.call_soon(self._give_back, ended)

    def _give_back(self, ended: Sequence[TaskRun]) -> None:
        for run in ended:
            self.shares.release(run.organization)
            run.on_end(SLOT_IS_FREE)

    def _on_signal(self, **_: object) -> None:
        """Handle SIGTERM: the first one wakes the hub, the second one cancels the draining tasks."""
        if self.active:
            # A call from another thread interrupts the hub's poll, which takes up to a second.
            self.call_on_loop(self.hub.call_soon, lambda: None)
        else:
            self.call_on_loop(self._cancel_runs)

    def _serve_in_thread(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            else:
                # Without its services it must not take tasks. The supervisor starts a new worker.
                logger.critical("The worker's services failed", exc_info=error)
                state.should_stop = EX_FAILURE  # type: ignore[assignment]  # the stub knows only None
        finally:
            self.hub.call_soon(self._thread.join)

    async def _serve(self) -> None:
        services = symbol_by_name(self.app.conf.chatapi_worker_services)
        async with services():
            self._started.set_result(None)
            try:
                await self._stopping.wait()
                if self.runs:
                    await asyncio.wait(self.runs, timeout=self.app.conf.chatapi_worker_drain_seconds)
            finally:
                # Celery pops nothing for a pool without slots. If the services failed, it may still pop.
                self.limit = 0
                while self.runs:
                    self._cancel_runs()
                    await asyncio.wait(self.runs)

    def _cancel_runs(self) -> None:
        for run in list(self.runs.values()):
            run.cancel()


class PatientConsumer(Consumer):
    """Celery's consumer with our transport (`message_channel.py`).

    It reconnects to a lost broker every 2 s; Celery's own waits grow to 30 s.
    """

    def ensure_connected(self, conn: Connection) -> Connection:
        """Connect, trying for ever; raise WorkerShutdown after a signal."""

        def log_attempt(error: Exception, interval_seconds: float) -> None:
            logger.error("No broker at %s: %s. Next attempt in %d s", conn.as_uri(), error, interval_seconds)

        # The stub knows only names of transports.
        conn.transport_cls = message_channel.transport(  # type: ignore[assignment]
            lambda: self.pool.num_processes - len(state.reserved_requests), self.pool.shares
        )
        conn.ensure_connection(
            log_attempt, interval_start=1, interval_step=1, interval_max=2, callback=state.maybe_shutdown
        )
        self.first_connection_attempt = False
        return conn


def run_worker(app: Celery, *, concurrency: int, drain_seconds: float) -> int:
    """Run a worker in this process's main thread until a signal ends it; return its exit code."""
    app.conf.chatapi_worker_drain_seconds = drain_seconds
    signals.setup_logging.connect(_keep_logging)
    worker = app.Worker(
        pool_cls=TaskPool,
        consumer_cls=PatientConsumer,
        concurrency=concurrency,
        quiet=True,
        # These are messages between workers, for remote control and monitoring: nothing here reads them.
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    worker.start()
    return worker.exitcode or 0


def _keep_logging(**_: object) -> None:
    """Do nothing: if the signal has a receiver, Celery does not change the project's logging."""
