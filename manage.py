#!/usr/bin/env python
"""The door to every command: `python manage.py help`."""

import logging
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django.db import DatabaseError


def main() -> None:
    """Run one management command. Ctrl-C ends it without a word, also while it is still being loaded."""
    os.umask(0o077)  # what it writes (the database, secrets, exports) is for nobody else on this machine
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatapi.settings")
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    """Print one clear line, not a traceback, for a problem that an operator can solve."""
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line
    from django.db import DatabaseError

    is_service, is_explaining = sys.argv[1:2] == ["serve"], "--traceback" not in sys.argv
    if not is_service:
        # The line at the end says why there is no connection; the pool would repeat it for seconds.
        logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
    try:
        execute_from_command_line(sys.argv)
        sys.stdout.flush()  # here, a full disk is an error of the command
    except ImproperlyConfigured as error:
        sys.exit(f"chatapi: {error}")
    except DatabaseError as error:
        if is_explaining:
            _exit_if_explained(error)
        raise
    except EOFError:
        sys.exit("chatapi: this command asks for input: run it in a terminal.")
    except OSError as error:
        if is_service or not is_explaining:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the rest can't be printed
        sys.exit(1 if isinstance(error, BrokenPipeError) else f"chatapi: {error}.")  # `| head` has left


def _exit_if_explained(error: "DatabaseError") -> None:
    from chatapi.serving import preflight

    try:
        preflight.explain(error, is_migrating=sys.argv[1] == "migrate")
    except preflight.CannotStart as reason:
        sys.exit(f"chatapi: {reason}")


if __name__ == "__main__":
    main()
