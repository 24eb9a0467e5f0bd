"""Keeps programs running: starts them, restarts those that end, and stops them in order."""

import asyncio
import signal
from asyncio.subprocess import Process
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from chatapi.serving.child_process import spawn

FIRST_DELAY_S = 0.2
MAX_DELAY_S = 10.0
# A program that ran for this long is restarted after the first delay again.
HEALTHY_S = 30.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Program:
    """A command, and how long it may take to end after SIGTERM before it is killed."""

    name: str
    command: Sequence[str]
    stop_s: float
    after_start: Callable[[], Coroutine[Any, Any, None]] | None = None
    """Work that runs beside it after each start."""
    descriptors: Sequence[int] = ()
    """The open files that it inherits."""
    is_quick_on_interrupt: bool = False
    """Whether SIGINT ends it sooner than SIGTERM; it gets SIGINT when a person presses Ctrl-C."""


class Watched:
    """One program, restarted with a growing delay whenever it ends by itself."""

    def __init__(self, program: Program, say: Say) -> None:
        self._program = program
        self._say = say
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._after_start: asyncio.Task[None] | None = None
        self._is_stopping = False

    async def start(self) -> None:
        """Start the program and keep it running; raises `OSError` if it can't be started at all."""
        self._process = await self._spawn()
        self._task = asyncio.create_task(self._keep_running(self._process))

    async def stop(self, *, is_interrupted: bool = False) -> None:
        """Ask the program to end, wait, and kill it if it does not."""
        if self._task is None or self._process is None:
            return
        # First, so that the end of the process is not taken for a crash.
        self._is_stopping = True
        if self._after_start is not None:
            self._after_start.cancel()
        if self._process.returncode is not None:
            self._task.cancel()  # it waits for the next start
        else:
            is_quick = is_interrupted and self._program.is_quick_on_interrupt
            self._process.send_signal(signal.SIGINT if is_quick else signal.SIGTERM)
        done, _ = await asyncio.wait([self._task], timeout=self._program.stop_s)
        if not done:
            self._say(f"{self._program.name} did not end within {self._program.stop_s:g} s and is killed.")
            self.kill()
            await asyncio.wait([self._task])

    def kill(self) -> None:
        self._is_stopping = True
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _spawn(self) -> Process:
        process = await spawn(self._program.command, self._program.descriptors)
        if self._program.after_start is not None:
            self._after_start = asyncio.create_task(self._program.after_start())
        return process

    async def _keep_running(self, process: Process) -> None:
        delay_s, loop = FIRST_DELAY_S, asyncio.get_running_loop()
        while True:
            started_at = loop.time()
            returncode = await process.wait()
            if self._is_stopping:
                return
            if loop.time() - started_at > HEALTHY_S:
                delay_s = FIRST_DELAY_S
            self._process = process = await self._start_again(_ending(returncode), delay_s)
            delay_s = min(2 * delay_s, MAX_DELAY_S)

    async def _start_again(self, reason: str, delay_s: float) -> Process:
        """Print the reason, wait, and start the program; repeat until that works."""
        while True:
            self._say(f"{self._program.name} {reason}; it is started again in {delay_s:g} s.")
            await asyncio.sleep(delay_s)
            try:
                return await self._spawn()
            except OSError as error:
                reason, delay_s = f"can't be started ({error})", MAX_DELAY_S


class Supervisor:
    """Programs that run together until SIGINT or SIGTERM; a second signal kills them all."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._stages: list[list[Watched]] = []
        self._stop = asyncio.Event()
        self._is_killed = self._is_interrupted = False
        numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            numbers.remove(signal.SIGHUP)  # by nohup
        for number in numbers:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)

    def say(self, text: str) -> None:
        """Print a line; a closed pipe or a full disk must not end the supervision."""
        with suppress(OSError):
            self._say(text)

    @property
    def is_stopping(self) -> bool:
        """Return whether a signal has arrived."""
        return self._stop.is_set()

    async def start(self, *programs: Program) -> None:
        """Start programs and keep them running, unless a signal has arrived; raises `OSError`.

        The programs that were started last are stopped first, those of one call together.
        """
        if self.is_stopping:
            return
        stage = [Watched(program, self.say) for program in programs]
        self._stages.append(stage)
        for watched in stage:
            await watched.start()

    async def unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for `work` or for a signal, whichever is first; raises the errors of `work`."""
        task, stop = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if task.done():
            task.result()
        else:
            task.cancel()

    async def until_stopped(self) -> None:
        await self._stop.wait()

    async def stop(self) -> int:
        """Stop all programs; returns the exit code."""
        self._stop.set()
        # Removed only when they have ended: a second signal must still find them to kill them.
        while self._stages:
            stopping = (each.stop(is_interrupted=self._is_interrupted) for each in self._stages[-1])
            await asyncio.gather(*stopping)
            self._stages.pop()
        return 1 if self._is_killed else 0

    def _on_signal(self, number: int) -> None:
        if not self._stop.is_set():
            self._is_interrupted = number == signal.SIGINT
            self._stop.set()
            return
        self._is_killed = True
        for watched in chain.from_iterable(self._stages):
            watched.kill()


def _ending(returncode: int) -> str:
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    with suppress(ValueError):  # a real-time signal has no name
        return f"was killed by {signal.Signals(-returncode).name}"
    return f"was killed by signal {-returncode}"
