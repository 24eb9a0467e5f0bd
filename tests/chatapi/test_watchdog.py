"""The watchdog of an event loop: which processes it ends, and what it says before."""

import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from chatapi.serving.watchdog import HUNG_EXIT_CODE
from tests.installation import ROOT, die_with_parent

HUNG_MS = 2_000
ENVIRONMENT = {"CHATAPI_HUNG_MS": str(HUNG_MS), "DJANGO_SETTINGS_MODULE": "chatapi.settings"}
PROCESS = """
import asyncio, re, sys, threading, time
import django, uvloop
django.setup()
from accounts.loop_clock import clock
from chatapi.serving.watchdog import watched
from usage import failpoints

def sleeps(seconds):
    failpoints.arm(f"settle.in_tx=sleep:{seconds}")
    failpoints.failpoint("settle.in_tx")

def never_gives_up_the_interpreter():
    re.match("(a+)+$", "a" * 60 + "b")

def sleeps_with_the_lock_of_the_log():
    for handler in __import__("logging").getLogger().handlers:
        handler.acquire()
    sleeps(60)

async def work():
    clock.start(asyncio.get_running_loop())
    with watched():
        await asyncio.sleep(1)
        print("works", flush=True)
        exec(sys.argv[1])
        await asyncio.sleep(1)
        print("has worked", flush=True)

def in_a_thread():
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work())

thread = threading.Thread(target=in_a_thread)
thread.start()
thread.join()
"""

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: object) -> Iterator[Start]:
    """Starts a process whose loop does this, and waits until it begins to."""
    running = []

    def begin(work: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", PROCESS, work],
            cwd=ROOT,
            env={"PATH": "/usr/bin:/bin", "CHATAPI_STATE_DIR": str(tmp_path)} | ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  one C call, no lock
        )
        running.append(process)
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], 30)
        assert readable, "it begins"
        assert process.stdout.readline() == "works\n"
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def test_a_late_loop_is_logged_with_its_place(start: Start) -> None:
    out, said = start("sleeps(1.7)").communicate(timeout=30)
    assert out == "has worked\n"
    assert re.search(
        r"the event loop has not turned for 1 s: "
        r"usage/failpoints\.py:\d+ strike < usage/failpoints\.py:\d+ failpoint",
        said,
    )
    assert "the event loop turns again, after about 1." in said


def test_a_loop_that_turns_is_no_news(start: Start) -> None:
    process = start("pass")
    assert process.communicate(timeout=30) == ("has worked\n", "")
    assert process.returncode == 0


@pytest.mark.parametrize("work", ["sleeps(60)", "sleeps_with_the_lock_of_the_log()"])
def test_a_loop_that_never_returns_ends_its_process(start: Start, work: str) -> None:
    process = start(work)
    out, said = process.communicate(timeout=30)
    assert (process.returncode, out) == (HUNG_EXIT_CODE, "")
    assert 'failpoints.py", line' in said, "all threads' stacks"


def test_a_loop_that_never_gives_up_the_interpreter_ends_its_process(start: Start) -> None:
    process = start("never_gives_up_the_interpreter()")
    out, said = process.communicate(timeout=30)
    assert (process.returncode, out) == (-signal.SIGPROF, "")
    assert "in never_gives_up_the_interpreter" in said


def test_a_process_that_was_stopped_goes_on(start: Start) -> None:
    process = start("pass")
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.5 * HUNG_MS / 1_000)
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=30) == ("has worked\n", "")
    assert process.returncode == 0
