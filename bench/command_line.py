"""Runs the commands of the harness that print."""

import os
import select
import sys
from collections.abc import Callable
from typing import NoReturn


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run a command, and exit with the status that it returns. If the reader of its output has left, as
    `head` does, it ends without a traceback; every other failure stays as it is.
    """
    try:
        status = main()
        sys.stdout.flush()
    except BaseException as error:
        if _is_unread():
            # Python flushes once more when it exits (its manual: "Note on SIGPIPE").
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if isinstance(error, BrokenPipeError):
                sys.exit(1)
        raise
    sys.exit(status)


def _is_unread() -> bool:
    """Return whether stdout is a pipe whose reader has left."""
    # A second flush does not show it: Python keeps no part of a long or an unbuffered write that failed.
    poll = select.poll()
    poll.register(sys.stdout, 0)
    return bool(poll.poll(0))
