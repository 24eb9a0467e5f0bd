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
from chatapi.serving.all_in_one import Processes
from chatapi.serving.greeting import base_url
from chatapi.serving.preflight import CannotStart

log = logging.getLogger("chatapi")

PROCESSES = {
    "web": "chatapi.serving.web_process",
    "worker": "chatapi.worker.worker_process",
    "reaper": "chatapi.worker.reaper.process",
}


class Command(BaseCommand):
    help = (
        "Run the service until Ctrl-C: an embedded Valkey (unless REDIS_URL is set), web, worker and reaper. "
        "The first time it also makes a demo organization with an API key, an administrator and "
        "the sandbox models."
    )
    requires_system_checks = []  # `preflight` runs the relevant ones, with one line each

    def add_arguments(self, parser: CommandParser) -> None:
        parser.epilog = (
            "Examples: manage.py serve --port 9000; four web and eight worker processes on one port: "
            "manage.py serve --web 4 --worker 8; "
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
        for role, usual in (("web", "four"), ("worker", "two")):
            parser.add_argument(
                f"--{role}",
                metavar="N",
                help=f"the number of {role} processes (default: one for every {usual} cores)",
            )
        roles = f"{{{','.join(preflight.ROLES)}}}"
        parser.add_argument(
            "--only",
            metavar=roles,
            help="run only this process, in the foreground; Redis and the database must be running",
        )
        parser.add_argument(
            "--fd",
            type=int,
            metavar="N",
            help="with --only web: the file descriptor of a listening socket, instead of --host and --port; "
            "--web says how many processes accept from it (default: 1)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the service; exit with 0 after a clean stop, and with 1 and one line if it can't start."""
        try:
            sys.exit(self._run_one(**options) if options["only"] else self._run_all(**options))
        except CannotStart as error:
            sys.exit(f"chatapi: {error}")
        except KeyboardInterrupt:
            sys.exit(130)

    def _run_all(self, *, host: str, port: str, web: str | None, worker: str | None, **options: Any) -> int:
        if options["fd"] is not None:
            raise CannotStart("--fd belongs to --only web.")
        default = all_in_one.processes_for(len(os.sched_getaffinity(0)))
        processes = Processes(
            web=preflight.process_count("--web", web) if web else default.web,
            worker=preflight.process_count("--worker", worker) if worker else default.worker,
        )
        return all_in_one.run(host, preflight.port_number(str(port)), processes, self._say)

    def _run_one(self, *, only: str, host: str, port: str, fd: int | None, **options: Any) -> int:
        role, number = preflight.role(only), preflight.port_number(str(port))
        if fd is not None and role != "web":
            raise CannotStart("--fd belongs to --only web.")
        if options["worker"] or (options["web"] and fd is None):
            raise CannotStart("--web and --worker belong to the whole service: leave out --only.")
        sharers = preflight.process_count("--web", options["web"] or "1")
        preflight.check_settings()
        preflight.check_services()
        listener = preflight.listening_socket(host, number, fd) if role == "web" else None
        address = base_url(*listener.getsockname()[:2]) if listener else None
        log.info("starts", extra=fields(role=role, version=__version__, address=address, pid=os.getpid()))
        # Imported here, so that each process loads only what it runs.
        process = import_module(PROCESSES[role])
        return process.run(listener, is_shared=sharers > 1) if listener else process.run() or 0

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()
