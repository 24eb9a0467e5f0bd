"""Checks what a process needs before it starts; each failure is one line with its remedy."""

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings
from django.core import checks
from django.db import DatabaseError, OperationalError, connection
from django.db.backends.base.base import BaseDatabaseWrapper

from accounts.redis_urls import stream_urls
from chatapi.checks import CHECK_TAG
from chatapi.web.server.listening_socket import inherited, listen
from chatapi.web.server.server_limits import ServerLimits

log = logging.getLogger(__name__)

PATIENCE_S = 5
MAX_PORT = 65_535
MAX_PROCESSES = 64
_REDIS_SETTINGS = "check REDIS_URL, CHATAPI_BROKER_URL and CHATAPI_STREAMS_URL."
_NO_REDIS = "set REDIS_URL. Without it, only the whole service, manage.py serve, has a Redis: its own."
ROLES = ("web", "worker", "reaper")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CannotStart(Exception):
    """An error whose message is one line for the operator: what is wrong, and what to do."""


def check_settings() -> None:
    """Run this package's system checks, and log warnings; raises `CannotStart` with the first error."""
    for problem in sorted(checks.run_checks(tags=[CHECK_TAG]), key=lambda problem: str(problem.id)):
        line = f"{problem.msg} {problem.hint} ({problem.id})"
        if problem.is_serious():
            raise CannotStart(line)
        log.warning("%s", line)


@contextlib.contextmanager
def only_one(state_dir: Path) -> Iterator[None]:
    """Lock the state folder while the block runs; raises `CannotStart` if another `serve` holds it."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        file = (state_dir / "serve.lock").open("ab", buffering=0)
    except OSError as error:
        raise _cannot_write(state_dir, error) from error
    with file:
        try:
            # The kernel releases the lock, however the process ends.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno != errno.EWOULDBLOCK:
                raise CannotStart(
                    f"{state_dir} can't be locked ({error.strerror}): set CHATAPI_STATE_DIR to a local one."
                ) from error
            holder = Path(file.name).read_text().strip()
            raise CannotStart(
                f"already running in {state_dir} (process {holder}). Stop that one, or set CHATAPI_STATE_DIR."
            ) from error
        try:
            file.truncate(0)
            file.write(f"{os.getpid()}\n".encode())
        except OSError as error:
            raise _cannot_write(state_dir, error) from error
        yield


def _cannot_write(state_dir: Path, error: OSError) -> CannotStart:
    """Return the error for a state folder that takes no files."""
    remedy = "make room on its disk" if error.errno in _NO_ROOM else "make it writable"
    return CannotStart(f"can't write to {state_dir} ({error.strerror}): {remedy}, or set CHATAPI_STATE_DIR.")


def port_number(text: str) -> int:
    """Parse the value of `--port`; raises `CannotStart`."""
    if text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_PORT)) and 0 < int(text) <= MAX_PORT:
        return int(text)
    raise CannotStart(f"{text!r} is no port. Use a number from 1 to {MAX_PORT}: make run PORT=9000")


def role(text: str) -> str:
    """Parse the value of `--only`; raises `CannotStart`."""
    if text in ROLES:
        return text
    raise CannotStart(f"{text!r} is not a process of chatapi: --only takes {', '.join(ROLES)}.")


def process_count(option: str, text: str) -> int:
    """Parse the value of `--web` or `--worker`; raises `CannotStart`."""
    if text.isascii() and text.isdecimal() and len(text) <= 2 and 0 < int(text) <= MAX_PROCESSES:
        return int(text)
    raise CannotStart(f"{option} {text!r} is not allowed. Use a number from 1 to {MAX_PROCESSES}.")


def listening_socket(host: str, port: int, descriptor: int | None = None) -> socket.socket:
    """Open the socket that web processes accept from, or take the inherited one; raises `CannotStart`."""
    user_timeout_seconds = ServerLimits().user_timeout_seconds
    if descriptor is not None:
        try:
            return inherited(descriptor, user_timeout_seconds=user_timeout_seconds)
        except (OSError, OverflowError) as error:
            message = f"file descriptor {descriptor} can't be listened on: {error}."
            raise CannotStart(message) from error
    try:
        return listen(host, port, user_timeout_seconds=user_timeout_seconds)
    except (OSError, OverflowError) as error:
        raise _cannot_listen(host, port, error) from error


def _cannot_listen(host: str, port: int, error: Exception) -> CannotStart:
    """Return the error for an address that can't be listened on."""
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return CannotStart(
            f"port {port} on {host} is in use. Stop what listens there, or choose another one: "
            f"--port {port + 1} (make run PORT={port + 1})."
        )
    return CannotStart(f"can't listen on {host} port {port}: {error}.")


def check_database() -> None:
    """Raise `CannotStart` unless the database answers."""
    with _database():
        pass


def check_services() -> None:
    """Raise `CannotStart` unless the database answers and has its tables, and Redis answers."""
    with _database() as probe:
        _check_tables(probe)
    check_redis()


def explain(error: DatabaseError, *, is_migrating: bool = False) -> None:
    """Raise `CannotStart` if an operator can solve the cause of the error."""
    state, text = getattr(error.__cause__, "sqlstate", None), str(error)
    with _database() as probe:
        is_missing = state in _UNDEFINED or any(part in text for part in _NO_SUCH)
        if is_missing and not is_migrating:
            _check_tables(probe)
        elif state == _NOT_PERMITTED or (isinstance(error, OperationalError) and not is_missing):
            reason = text.strip().splitlines()[0] if text.strip() else type(error).__name__
            raise CannotStart(
                f"the database refuses ({reason}). Solve this and try again; --traceback shows the details."
            )


_UNDEFINED = ("42P01", "42703")
_NOT_PERMITTED = "42501"
# How PostgreSQL and SQLite report missing tables and columns.
_NO_SUCH = ("no such table", "no such column", "has no column named")


def _check_tables(probe: BaseDatabaseWrapper) -> None:
    # Imported here, because nothing else needs it.
    from django.db.migrations.executor import MigrationExecutor  # noqa: PLC0415

    executor = MigrationExecutor(probe)
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        name, host = probe.settings_dict["NAME"], probe.settings_dict["HOST"]
        raise CannotStart(
            f"the database {name}{f' on {host}' if host else ''} lacks tables or columns of this version: "
            "run manage.py migrate first, or set CHATAPI_STATE_DIR or DATABASE_URL to the one that is meant."
        )


@contextlib.contextmanager
def _database() -> Iterator[BaseDatabaseWrapper]:
    """Open a connection; raises `CannotStart`."""
    probe = connection.copy()
    if probe.vendor == "postgresql":
        # The pool would wait, and hide the reason of a failure.
        probe.settings_dict["OPTIONS"].pop("pool", None)
        probe.settings_dict["OPTIONS"]["connect_timeout"] = PATIENCE_S
    try:
        probe.ensure_connection()
        yield probe
    except DatabaseError as error:
        reason = str(error).strip().splitlines()[0]
        remedy = "check DATABASE_URL"
        if probe.vendor == "sqlite":
            # SQLite says "disk I/O error" if a full disk has no room for the files that it opens.
            room = " and the room on its disk" if "disk" in reason else ""
            remedy = f"check {probe.settings_dict['NAME']}{room}, or set DATABASE_URL"
        raise CannotStart(f"the database can't be reached ({reason}): {remedy}.") from error
    finally:
        probe.close()


def check_redis() -> None:
    """Raise `CannotStart` unless every Redis answers; of several servers of streams, one suffices."""
    # Imported here, because `serve` with the embedded Valkey saves these 20 MB.
    from chatapi.redis_client import UnreadableURL, url_errors  # noqa: PLC0415
    from chatapi.redis_servers import servers_away  # noqa: PLC0415

    try:
        with url_errors():
            away = asyncio.run(servers_away(PATIENCE_S))
    except UnreadableURL:
        hint = (
            "user and password must be percent-encoded, port and database numbers, and parameters redis-py's"
        )
        raise CannotStart(f"a Redis URL can't be read ({hint}): {_REDIS_SETTINGS}") from None
    are_all_away = away.keys() >= set(stream_urls())
    for url, error in away.items():
        # A process that is started again while a server is away must serve the streams of the others.
        if url == settings.BROKER_URL or are_all_away:
            remedy = _NO_REDIS if settings.EMBEDDED_VALKEY else _REDIS_SETTINGS
            raise CannotStart(f"Redis can't be reached ({error}): {remedy}") from error
        log.warning("streams server %d can't be reached: %s", stream_urls().index(url), error)
