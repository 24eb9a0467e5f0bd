"""`manage.py serve`: run the whole service, or one of its processes."""

import logging
import os
import sys
from importlib import import_module
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from chatapi import __version__
from chatapi.log_formats import fields
from chatapi.serving import all_in_one, preflight
from chatapi.serving.greeting import base_url
from chatapi.serving.preflight import CannotStart

log = logging.getLogger("chatapi")

PROCESSES = {
    "web": "chatapi.serving.web_process",
    "worker": "chatapi.worker.worker_process",
    "reaper": "chatapi.worker.reaper.process",
}


class Command(BaseCommand):
    """Run the service or one of its processes."""

    help = (
        "Run the service until Ctrl-C: an embedded Valkey (unless REDIS_URL is set), web, worker and reaper. "
        "The first time it also makes a demo organization with an API key, an administrator and "
        "the sandbox models."
    )
    requires_system_checks = []  # `preflight` runs the relevant ones, with one line each

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options and examples."""
        parser.epilog = (
            "Examples: manage.py serve --port 9000; "
            "one process alone, as in docker-compose.yml: manage.py serve --only worker"
        )
        parser.add_argument(
            "--host",
            default="127.0.0.1",
            help="the address to listen on (default: 127.0.0.1; 0.0.0.0 is every network)",
        )
        # `preflight` checks both: argparse would print three lines of usage before an error.
        parser.add_argument(
            "--port", default="8000", metavar="N", help="the port to listen on (default: 8000)"
        )
        roles = f"{{{','.join(preflight.ROLES)}}}"
        parser.add_argument(
            "--only",
            metavar=roles,
            help="run only this process, in the foreground; Redis and the database must be running",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the service; exit with 0 after a clean stop, and with 1 and one line if it can't start."""
        try:
            sys.exit(self._run(options["only"], options["host"], preflight.port_number(str(options["port"]))))
        except CannotStart as error:
            sys.exit(f"chatapi: {error}")
        except KeyboardInterrupt:
            sys.exit(130)

    def _run(self, only: str | None, host: str, port: int) -> int:
        if only is None:
            return all_in_one.run(host, port, self._say)
        role = preflight.role(only)
        preflight.check_settings()
        preflight.check_services()
        address = base_url(host, port) if role == "web" else None
        log.info("starts", extra=fields(role=role, version=__version__, address=address, pid=os.getpid()))
        # Imported here, so that each process loads only what it runs.
        if role != "web":
            return import_module(PROCESSES[role]).run() or 0
        try:
            import_module(PROCESSES[role]).run(host=host, port=port)
        except (OSError, OverflowError) as error:
            raise preflight.cannot_listen(host, port, error) from error
        return 0

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()
