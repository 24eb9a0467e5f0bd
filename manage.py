#!/usr/bin/env python
"""The door to every command: `python manage.py help`."""

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django.core.management import BaseCommand, ManagementUtility
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
    from django.db import DatabaseError

    is_service, is_explaining = sys.argv[1:2] == ["serve"], "--traceback" not in sys.argv
    if not is_service:
        # The line at the end says why there is no connection; the pool would repeat it for seconds.
        logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
    try:
        _commands().execute()
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


def _commands() -> "ManagementUtility":
    from django.core.management import ManagementUtility

    class Commands(ManagementUtility):
        def fetch_command(self, subcommand: str) -> "BaseCommand":
            command = super().fetch_command(subcommand)
            _explain_wrong_settings(command)
            if subcommand in ("changepassword", "createsuperuser"):
                _record(command, subcommand)
            return command

    return Commands(sys.argv)


def _explain_wrong_settings(command: "BaseCommand") -> None:
    """Let the command end with one line for a wrong setting, where Django would print a list."""
    from django.core.management.base import SystemCheckError

    check = command.check

    def check_or_explain(*args: Any, **options: Any) -> None:
        try:
            check(*args, **options)
        except SystemCheckError:
            from chatapi.serving import preflight

            try:
                preflight.check_settings()
            except preflight.CannotStart as reason:
                sys.exit(f"chatapi: {reason}")
            raise

    command.check = check_or_explain  # type: ignore[method-assign]


def _record(command: "BaseCommand", name: str) -> None:
    """Let the audit log have what a command of Django changes; those of the project record it themselves."""
    handle = command.handle

    def handle_and_record(*args: Any, **options: Any) -> "str | None":
        from accounts.audit.commands import acting_command

        with acting_command(name):
            return handle(*args, **options)

    command.handle = handle_and_record  # type: ignore[method-assign]


def _exit_if_explained(error: "DatabaseError") -> None:
    from chatapi.serving import preflight

    try:
        preflight.explain(error, is_migrating=sys.argv[1] == "migrate")
    except preflight.CannotStart as reason:
        sys.exit(f"chatapi: {reason}")


if __name__ == "__main__":
    main()
