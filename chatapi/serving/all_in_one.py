"""Runs the whole service on one machine: embedded Valkey, web, worker and reaper."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management import call_command
from django.db import connection, transaction

from chatapi.serving import embedded_valkey, first_start, preflight
from chatapi.serving.first_start import Credentials
from chatapi.serving.greeting import base_url, first_start_message, greeting
from chatapi.serving.preflight import CannotStart
from chatapi.serving.supervisor import Program, Say, Supervisor

READY_WITHIN_S = 60.0
POLL_S = 0.05
STOP_MARGIN_S = 5.0


def run(host: str, port: int, say: Say) -> int:
    """Start everything, wait for a signal, stop everything; returns the exit code. Raises `CannotStart`."""
    preflight.check_settings()
    with preflight.only_one(settings.STATE_DIR):
        preflight.check_port(host, port)
        if not settings.EMBEDDED_VALKEY:
            preflight.check_redis()
            embedded_valkey.remove_dumps(settings.STATE_DIR)  # no Valkey will read them
        credentials = prepare_database(say)
        return asyncio.run(_supervise(host, port, credentials, say))


def prepare_database(say: Say) -> Credentials | None:
    """Migrate the database, set it up on the first start, and close the connection; raises `CannotStart`."""
    preflight.check_database()
    call_command("migrate", verbosity=0, interactive=False)
    credentials = _set_up(say)
    connection.close()
    if connection.vendor == "postgresql":
        connection.close_pool()  # type: ignore[attr-defined]  # the pool's threads must end before a fork
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


async def _supervise(host: str, port: int, credentials: Credentials | None, say: Say) -> int:
    supervisor = Supervisor(say)
    try:
        await _start(supervisor, host, port)
        if not supervisor.is_stopping:
            supervisor.say(greeting(base_url(host, port), credentials))
            await supervisor.until_stopped()
        supervisor.say("Stopping: running answers may finish. Ctrl-C again stops at once.")
    finally:
        code = await supervisor.stop()
    supervisor.say("Stopped.")
    return code


async def _start(supervisor: Supervisor, host: str, port: int) -> None:
    if settings.EMBEDDED_VALKEY:
        await _start_valkey(supervisor)
    stop_s = settings.DRAIN_MS / 1_000 + STOP_MARGIN_S
    url = base_url(host, port)
    # The supervisor stops them in reverse order: web finishes its answers while the worker still runs.
    await supervisor.start(_python("worker", stop_s))
    web = replace(_python("web", stop_s, "--host", host, "--port", str(port)), is_quick_on_interrupt=True)
    await supervisor.start(web)
    await supervisor.unless_stopped(
        _until(lambda: _is_ready(url), f"{url}/readyz does not get ready; the lines above may say why.")
    )
    # No client waits for the reaper, so it starts last.
    await supervisor.start(_python("reaper", STOP_MARGIN_S))


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


def _python(role: str, stop_s: float, *arguments: str) -> Program:
    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "serve", "--only", role, *arguments]
    return Program(role, command, stop_s)


async def _until(condition: Callable[[], Coroutine[Any, Any, bool]], otherwise: str) -> None:
    """Poll the condition; raises `CannotStart` with `otherwise` after `READY_WITHIN_S`."""
    try:
        async with asyncio.timeout(READY_WITHIN_S):
            while not await condition():  # noqa: ASYNC110  another process changes it
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise CannotStart(otherwise) from None


async def _valkey_answers() -> bool:
    with suppress(OSError):
        reader, writer = await asyncio.open_unix_connection(embedded_valkey.socket_path(settings.STATE_DIR))
        writer.write(b"PING\r\n")
        answer = await reader.readline()
        writer.close()
        return answer == b"+PONG\r\n"
    return False


async def _is_ready(url: str) -> bool:
    address = urlsplit(url)
    with suppress(OSError):
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(f"GET /readyz HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n\r\n".encode())
        status = await reader.readline()
        writer.close()
        return b" 200 " in status
    return False
