"""The probes of load balancers and supervisors, as ASGI applications before Django and its busy threads.

- `/healthz` or `/health`: the event loop turns.
- `/readyz`: requests may be sent here. The process does not drain, and database and Redis answer.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
from asgiref.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope
from django.conf import settings
from django.db import connection

from accounts.redis_urls import stream_urls
from chatapi import identity
from chatapi.concurrency import CachedValue
from chatapi.redis_servers import servers_away

# Status, content type, body.
Answer = tuple[int, bytes, bytes]

CHECK_TIMEOUT_S = 1.0
# Probes share a check of database and Redis up to this age, so that a flood of them costs no more than one.
MAX_AGE_S = 0.2

ALLOWED = "GET, HEAD"
# Checks that hang keep their threads, and later checks wait: this bounds the cost of probes.
_threads = ThreadPoolExecutor(32, thread_name_prefix="readiness")
_draining = threading.Event()


def start_draining() -> None:
    """Make /readyz answer 503 from now on: the process is to stop."""
    _draining.set()


def is_draining() -> bool:
    return _draining.is_set()


async def healthz(scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    """Answer 200 while the event loop turns."""
    await _respond(scope, send, _alive)


async def readyz(scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    """Answer 200, or 503 with the result of each check."""
    await _respond(scope, send, _readiness)


async def _respond(scope: HTTPScope, send: ASGISendCallable, answer: Callable[[], Awaitable[Answer]]) -> None:
    """Answer a GET or HEAD, and anything else with 405."""
    is_allowed = scope["method"] in ALLOWED.split(", ")
    status, content_type, body = await answer() if is_allowed else (405, b"text/plain", b"")
    client_request_id = next((value for name, value in scope["headers"] if name == b"x-request-id"), None)
    headers = [
        (b"content-type", content_type),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        (b"x-request-id", identity.request_id(client_request_id, identity.new_id())),
    ]
    if not is_allowed:
        headers.append((b"allow", ALLOWED.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers, "trailers": False})
    await send(
        {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body, "more_body": False}
    )


async def _alive() -> Answer:
    return 200, b"text/plain", b"ok"


async def _readiness() -> Answer:
    checks = {"serving": not is_draining(), **await _answering.get(MAX_AGE_S)}
    is_ready = bool(checks["serving"] and checks["database"] and checks["redis"])
    return 200 if is_ready else 503, b"application/json", msgspec.json.encode({"ready": is_ready, **checks})


async def _ask_all() -> dict[str, bool | list[bool]]:
    """Return what answers; of several servers of streams one suffices: new generations avoid the others."""
    is_database_there, away = await asyncio.gather(_is_database_answering(), servers_away(CHECK_TIMEOUT_S))
    streams = [url not in away for url in stream_urls()]
    is_redis_there = settings.BROKER_URL not in away and any(streams)
    several: dict[str, bool | list[bool]] = {"stream_servers": streams} if len(streams) > 1 else {}
    return {"database": is_database_there, "redis": is_redis_there, **several}


async def _is_database_answering() -> bool:
    asking = asyncio.get_running_loop().run_in_executor(_threads, _ask_database)
    await asyncio.wait([asking], timeout=CHECK_TIMEOUT_S)
    # Cancels only a check that has not ended; its thread goes on if it has begun.
    return not asking.cancel() and asking.exception() is None


_answering = CachedValue(_ask_all)


def _ask_database() -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    finally:
        connection.close()
