"""Starts a child process that never outlives this one and that the terminal's Ctrl-C does not reach."""

import asyncio
import ctypes
import os
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Collection, Sequence
from functools import partial

from chatapi.serving.process_tuning import MALLOC_ENVIRONMENT

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None)


async def spawn(command: Sequence[str], descriptors: Collection[int] = ()) -> Process:
    """Run the command in a new session; the kernel kills it when this process ends, even by SIGKILL.

    It inherits the file descriptors under the same numbers.

    Call it from the main thread: to the kernel, the parent is the thread that forked. Raises `OSError`.
    """
    die_with_us = partial(_die_with, os.getpid())
    environment = MALLOC_ENVIRONMENT | os.environ
    # In a session of its own, the terminal's Ctrl-C does not reach it: the supervisor ends all in order.
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=DEVNULL,
        env=environment,
        start_new_session=True,
        preexec_fn=die_with_us,
        pass_fds=descriptors,
    )


def _die_with(parent_pid: int) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # the parent ended before the call
        os._exit(1)
