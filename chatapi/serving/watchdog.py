"""Notices that a process's event loop does not turn: says where it stands, and ends the process when it never
returns.

It counts its own rounds and not the time, so that a machine that has slept or a process that was stopped is
not taken for a hung one: the watchdog stood still, too. What never gives up the interpreter stops the
watchdog as well. For that there is the kernel's timer of this process's CPU time, which each round puts off.
"""

import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from django.conf import settings

from accounts.loop_clock import TICK_S, clock

log = logging.getLogger(__name__)

ROUND_S = TICK_S
LATE_S = 1.0
"""After so long without a turn of the loop it is told where the loop stands."""
MOST_FRAMES = 5
TELLING_S = 1.0
"""How long a log may take: the loop may stand still because of it."""
HUNG_EXIT_CODE = 70
"""EX_SOFTWARE of sysexits.h."""
OUR_PACKAGES = tuple(f"{settings.BASE_DIR / name}{os.sep}" for name in ("accounts", "usage", "chatapi"))


@contextmanager
def watched() -> Iterator[None]:
    """Watch the loop of `loop_clock.clock`, which has been started, while the block runs."""
    stopping = threading.Event()
    thread = threading.Thread(target=_watch, args=(stopping,), name="loop-watchdog", daemon=True)
    faulthandler.register(
        signal.SIGPROF, chain=True
    )  # says where it was; then the signal ends the process, as it does by default
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
        signal.setitimer(signal.ITIMER_PROF, 0)


def _watch(stopping: threading.Event) -> None:
    hung_s = settings.HUNG_MS / 1_000
    ticks, rounds, is_told = 0, 0, False
    while not stopping.wait(ROUND_S):
        signal.setitimer(signal.ITIMER_PROF, hung_s)
        if clock.ticks != ticks or not ticks:
            if is_told:
                _tell(log.warning, "the event loop turns again, after about %.1f s", rounds * ROUND_S)
            ticks, rounds, is_told = clock.ticks, 0, False
            continue
        rounds += 1
        if rounds * ROUND_S >= LATE_S and not is_told:
            is_told = True
            _tell(log.warning, "the event loop has not turned for %.0f s: %s", LATE_S, _where())
        if rounds * ROUND_S >= hung_s:
            _tell(log.critical, "the event loop has not turned for %.0f s: this process ends", hung_s)
            _tell(faulthandler.dump_traceback, sys.__stderr__)
            os._exit(HUNG_EXIT_CODE)


def _tell(say: Callable[..., object], *what: object) -> None:
    """Say it, but do not wait for whoever can't take it."""
    telling = threading.Thread(target=say, args=what, daemon=True)
    telling.start()
    telling.join(TELLING_S)


def _where() -> str:
    """The innermost lines of our own code on the loop's thread; of others' code if none is ours."""
    frame = sys._current_frames().get(clock.thread_id)
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    ours = [each for each in frames if each.f_code.co_filename.startswith(OUR_PACKAGES)]
    return " < ".join(_line(each) for each in (ours or frames)[:MOST_FRAMES])


def _line(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    name = path.relative_to(settings.BASE_DIR) if path.is_relative_to(settings.BASE_DIR) else path.name
    return f"{name}:{frame.f_lineno} {frame.f_code.co_name}"
