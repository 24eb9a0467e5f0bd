#!/usr/bin/env python
"""The door to every command: `python manage.py help`."""

import os
import sys


def main() -> None:
    """Run one management command. Ctrl-C ends it without a word, also while it is still being loaded."""
    os.umask(0o077)  # what it writes (the database, secrets, exports) is for nobody else on this machine
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatapi.settings")
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    """A wrong setting or an empty database is one clear line, not a traceback."""
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line
    from django.db import DatabaseError

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(f"chatapi: {error}")
    except DatabaseError as error:
        if sys.argv[1] == "migrate":  # the one command that runs without tables
            raise
        _exit_without_tables(error)
        raise


def _exit_without_tables(error: Exception) -> None:
    """A command in a wrong state folder meets an empty database: one line, and exit 1."""
    from chatapi.serving import preflight

    try:
        preflight.check_tables_after(error)
    except preflight.CannotStart as reason:
        sys.exit(f"chatapi: {reason}")


if __name__ == "__main__":
    main()
