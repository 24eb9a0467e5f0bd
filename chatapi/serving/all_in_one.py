"""Runs the whole service on one machine: embedded Valkey, web and worker processes, and the reaper."""

import asyncio
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management import call_command
from django.db import connection, transaction

from chatapi.serving import embedded_valkey, first_start, preflight
from chatapi.serving.first_start import Credentials
from chatapi.serving.greeting import base_url, first_start_message, greeting
from chatapi.serving.preflight import CannotStart
from chatapi.serving.process_tuning import give_memory_back
from chatapi.serving.supervisor import Program, Say, Supervisor

READY_WITHIN_S = 60.0
POLL_S = 0.05
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
STOP_MARGIN_S = 5.0


class Processes(NamedTuple):
    """How many processes of each role run."""

    web: int
    worker: int


def processes_for(cores: int) -> Processes:
    """Return the numbers that keep this many cores busy.

    Of a request's CPU time the worker takes about 60 %, web 35 %, and Redis the rest. Beyond one process for
    each core, batches shrink and a request costs more.
    """
    return Processes(web=max(1, cores // 4), worker=max(1, cores // 2))


def run(host: str, port: int, processes: Processes, say: Say) -> int:
    """Start everything, wait for a signal, stop everything; returns the exit code. Raises `CannotStart`."""
    preflight.check_settings()
    with preflight.only_one(settings.STATE_DIR), preflight.listening_socket(host, port) as listener:
        if not settings.EMBEDDED_VALKEY:
            preflight.check_redis()
            embedded_valkey.remove_dumps(settings.STATE_DIR)  # no Valkey will read them
        credentials = prepare_database(say)
        return asyncio.run(_supervise(base_url(host, port), listener, processes, credentials, say))


def prepare_database(say: Say) -> Credentials | None:
    """Migrate the database, set it up on the first start, and close the connection; raises `CannotStart`."""
    preflight.check_database()
    call_command("migrate", verbosity=0, interactive=False)
    credentials = _set_up(say)
    connection.close()
    if connection.vendor == "postgresql":
        connection.close_pool()  # type: ignore[attr-defined]  # the pool's threads must end before a fork
    give_memory_back()
    return credentials


def _set_up(say: Say) -> Credentials | None:
    """Set up and print the secrets in one transaction: if they can't be printed, nothing is made."""
    try:
        with transaction.atomic():
            if credentials := first_start.set_up():
                say(first_start_message(credentials))
    except OSError as error:
        raise CannotStart(
            f"the first key and password can't be printed ({error}), so nothing was made."
        ) from error
    return credentials


async def _supervise(
    url: str, listener: socket.socket, processes: Processes, credentials: Credentials | None, say: Say
) -> int:
    supervisor = Supervisor(say)
    try:
        await _start(supervisor, url, listener, processes)
        if not supervisor.is_stopping:
            supervisor.say(greeting(url + settings.PATH_PREFIX, credentials))
            await supervisor.until_stopped()
        supervisor.say("Stopping: running answers may finish. Ctrl-C again stops at once.")
    finally:
        # Otherwise the kernel would complete connections that no web process accepts any more.
        listener.close()
        code = await supervisor.stop()
    supervisor.say("Stopped.")
    return code


async def _start(supervisor: Supervisor, url: str, listener: socket.socket, processes: Processes) -> None:
    if settings.EMBEDDED_VALKEY:
        await _start_valkey(supervisor)
    stop_s = settings.DRAIN_MS / 1_000 + STOP_MARGIN_S
    # The supervisor stops them in reverse order: web finishes its answers while the workers still run.
    await supervisor.start(*_programs("worker", processes.worker, stop_s))
    # A connection that arrives while a web process is started again waits in the socket of this process.
    socket_options = ("--fd", str(listener.fileno()), "--web", str(processes.web))
    web = _programs("web", processes.web, stop_s, *socket_options)
    await supervisor.start(
        *(replace(each, descriptors=[listener.fileno()], is_quick_on_interrupt=True) for each in web)
    )
    await supervisor.unless_stopped(
        _until(lambda: _is_ready(url), f"{url}/readyz does not get ready; the lines above may say why.")
    )
    # No client waits for the reaper, so it starts last.
    await supervisor.start(*_programs("reaper", 1, STOP_MARGIN_S))


async def _start_valkey(supervisor: Supervisor) -> None:
    state_dir = settings.STATE_DIR
    try:
        embedded_valkey.prepare(state_dir)
        await supervisor.start(
            Program("valkey", embedded_valkey.command(state_dir), STOP_MARGIN_S, _remove_dump)
        )
    except OSError as error:
        raise CannotStart(
            f"the embedded Valkey can't be started ({error}): set REDIS_URL to a Redis or Valkey of your own."
        ) from error
    log_path = embedded_valkey.log_path(state_dir)
    await supervisor.unless_stopped(
        _until(_valkey_answers, f"the embedded Valkey does not answer; see {log_path}")
    )


async def _remove_dump() -> None:
    """Remove the dump once Valkey has read it: a start after a crash must not restore an old state."""
    while not await _valkey_answers():  # noqa: ASYNC110  another process changes it
        await asyncio.sleep(POLL_S)
    embedded_valkey.remove_dumps(settings.STATE_DIR)


def _programs(role: str, count: int, stop_s: float, *arguments: str) -> list[Program]:
    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "serve", "--only", role, *arguments]
    names = [role] if count == 1 else [f"{role} {number}" for number in range(1, count + 1)]
    return [Program(name, command, stop_s) for name in names]


async def _until(condition: Callable[[], Coroutine[Any, Any, bool]], otherwise: str) -> None:
    """Poll the condition; raises `CannotStart` with `otherwise` after `READY_WITHIN_S`."""
    try:
        async with asyncio.timeout(READY_WITHIN_S):
            while not await condition():  # noqa: ASYNC110  another process changes it
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise CannotStart(otherwise) from None


async def _valkey_answers() -> bool:
    path = embedded_valkey.socket_path(settings.STATE_DIR)
    return await _first_line(asyncio.open_unix_connection(path), "PING\r\n") == b"+PONG\r\n"


async def _is_ready(url: str) -> bool:
    parts = urlsplit(url)
    request = f"GET /readyz HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
    return b" 200 " in await _first_line(asyncio.open_connection(parts.hostname, parts.port), request)


async def _first_line(opening: Coroutine[Any, Any, Connection], request: str) -> bytes:
    """Return the first line of the answer; nothing if there is none."""
    with suppress(OSError):
        reader, writer = await opening
        writer.write(request.encode())
        line = await reader.readline()
        writer.close()
        return line
    return b""
