"""Runs inside each process of a probed service, before its own code: the folder is on its `PYTHONPATH`.

It tells the kernel each thread's name, and writes the longest turn of the event loop, which is the time
between two ticks beyond one millisecond, to a file in the folder `CHATAPI_BENCH_TURNS`.
"""

import ctypes
import os
import threading
import time
from pathlib import Path
from typing import Any

import uvloop

thread_class: Any = threading.Thread
loop_class: Any = uvloop.Loop
TICK_S = 0.001
NOTE_S = 0.1
PR_SET_NAME = 15
libc = ctypes.CDLL(None)
note_native_id = thread_class._set_native_id  # runs first in a new thread
run_forever = loop_class.run_forever


def name_thread(thread: threading.Thread) -> None:
    note_native_id(thread)
    libc.prctl(PR_SET_NAME, thread.name.encode()[:15], 0, 0, 0)


class Turns:
    """Writes a line with the time and the longest turn, in seconds, ten times a second."""

    def __init__(self, loop: uvloop.Loop) -> None:
        self.loop, self.last, self.noted, self.longest = loop, time.perf_counter(), 0.0, 0.0
        self.file = (Path(os.environ["CHATAPI_BENCH_TURNS"]) / str(os.getpid())).open("a", buffering=1)

    def tick(self) -> None:
        now = time.perf_counter()
        self.longest = max(self.longest, now - self.last - TICK_S)
        if now - self.noted > NOTE_S:
            self.file.write(f"{now} {self.longest}\n")
            self.noted, self.longest = now, 0.0
        self.last = time.perf_counter()
        self.loop.call_later(TICK_S, self.tick)


def run_probed(loop: uvloop.Loop) -> None:
    loop.call_soon(Turns(loop).tick)
    run_forever(loop)


thread_class._set_native_id = name_thread
loop_class.run_forever = run_probed
