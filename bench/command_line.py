"""Runs the commands of the harness that print."""

import os
import sys
from collections.abc import Callable
from typing import NoReturn


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run a command, and exit with the status that it returns. If the reader of its output has left, as
    `head` does, it ends without a traceback.
    """
    try:
        try:
            sys.exit(main())
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more when it exits (its manual: "Note on SIGPIPE").
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
