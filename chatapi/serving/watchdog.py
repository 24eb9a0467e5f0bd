"""Watches a process's event loop: logs where it is blocked, and ends the process if it never returns."""

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
# After this time without an iteration of the loop, the log says where it is blocked.
LATE_S = 1.0
MOST_FRAMES = 5
# The longest wait for the log: it may be the log that blocks the loop.
LOG_TIMEOUT_S = 1.0
# EX_SOFTWARE of sysexits.h
HUNG_EXIT_CODE = 70
OUR_PACKAGES = tuple(f"{settings.BASE_DIR / name}{os.sep}" for name in ("accounts", "usage", "chatapi"))


@contextmanager
def watched() -> Iterator[None]:
    """Watch the loop of `loop_clock.clock`, which must have been started, while the block runs."""
    stopping = threading.Event()
    thread = threading.Thread(target=_watch, args=(stopping,), name="loop-watchdog", daemon=True)
    # It dumps the traceback; then the signal ends the process, as it does by default.
    faulthandler.register(signal.SIGPROF, chain=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
        signal.setitimer(signal.ITIMER_PROF, 0)


def _watch(stopping: threading.Event) -> None:
    hung_s = settings.HUNG_MS / 1_000
    # Rounds are counted instead of time: while the machine sleeps or the process is stopped, the watchdog
    # stands still as well, and the loop is not taken for a hung one.
    ticks, rounds, is_logged = 0, 0, False
    while not stopping.wait(ROUND_S):
        # Code that never releases the interpreter stops this thread, too: then nothing postpones this kernel
        # timer of CPU time.
        signal.setitimer(signal.ITIMER_PROF, hung_s)
        if clock.ticks != ticks or not ticks:
            if is_logged:
                _log(log.warning, "the event loop turns again, after about %.1f s", rounds * ROUND_S)
            ticks, rounds, is_logged = clock.ticks, 0, False
            continue
        rounds += 1
        if rounds * ROUND_S >= LATE_S and not is_logged:
            is_logged = True
            _log(log.warning, "the event loop has not turned for %.0f s: %s", LATE_S, _where())
        if rounds * ROUND_S >= hung_s:
            _log(log.critical, "the event loop has not turned for %.0f s: this process ends", hung_s)
            _log(faulthandler.dump_traceback, sys.__stderr__)
            os._exit(HUNG_EXIT_CODE)


def _log(say: Callable[..., object], *what: object) -> None:
    """Log from another thread, and wait at most `LOG_TIMEOUT_S` for it."""
    logging_thread = threading.Thread(target=say, args=what, daemon=True)
    logging_thread.start()
    logging_thread.join(LOG_TIMEOUT_S)


def _where() -> str:
    """Return the innermost lines of this project on the loop's thread, or of other code if there are none."""
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
