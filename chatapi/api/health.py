"""Whether this process lives, and whether it should be sent requests."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

from django.conf import settings
from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from chatapi.api.reading import only_read
from chatapi.web.readiness import is_draining

PATIENCE_S = 1.0
# Checks that hang keep their threads and let later ones wait: however often one asks, this is all that it can cost.
_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="readiness")


@only_read
@never_cache
def healthz(request: HttpRequest) -> HttpResponse:
    """200 while the process answers at all."""
    return HttpResponse("ok", content_type="text/plain")


@only_read
@never_cache
def readyz(request: HttpRequest) -> HttpResponse:
    """200 when database and Redis answer within a second and the process is not draining, else 503 and which of them."""
    checks = {"serving": not is_draining(), **_answering({"database": _ask_database, "redis": _ask_redis})}
    is_ready = all(checks.values())
    response = JsonResponse({"ready": is_ready, **checks}, status=200 if is_ready else 503)
    response._has_been_logged = True  # type: ignore[attr-defined]  # a poll's 503 is an answer, not an error to log
    return response


def _answering(questions: dict[str, Callable[[], None]]) -> dict[str, bool]:
    futures = {name: _threads.submit(question) for name, question in questions.items()}
    wait(futures.values(), timeout=PATIENCE_S)
    for future in futures.values():
        future.cancel()  # one that has not begun
    return {name: future.done() and not future.cancelled() and future.exception() is None for name, future in futures.items()}


def _ask_database() -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    finally:
        connection.close()


def _ask_redis() -> None:
    for url in {settings.STREAMS_URL, settings.BROKER_URL}:
        options = {"socket_timeout": PATIENCE_S, "socket_connect_timeout": PATIENCE_S, "retry": Retry(NoBackoff(), 0)}
        with Redis.from_url(url, **options) as redis:
            redis.ping()
