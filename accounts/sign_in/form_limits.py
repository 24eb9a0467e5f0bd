"""Limits of how often a visitor may send a form; `attempts.py` counts."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

from django.core.exceptions import ValidationError
from redis.exceptions import RedisError

P = ParamSpec("P")
log = logging.getLogger(__name__)

_TOO_MANY = "Too many attempts. Try again in %(minutes)s min."
_UNAVAILABLE = "Not available now: Redis, which counts attempts, does not respond."


class TooManyAttempts(ValidationError):
    """A form was sent too often, or Redis cannot count it. `status` is the page's HTTP status."""

    status = 429


def check_attempts(count: Callable[P, int], *args: P.args, **kwargs: P.kwargs) -> None:
    """Count an attempt; raise `TooManyAttempts` if its limit is exceeded or Redis does not respond.

    `count` is a function of `attempts`, which gets the arguments and returns the time to wait in ms.
    """
    with unless_unavailable():
        wait_ms = count(*args, **kwargs)
    if wait_ms:
        raise TooManyAttempts(_TOO_MANY, code="too_many", params={"minutes": -(-wait_ms // 60_000)})


@contextmanager
def unless_unavailable() -> Iterator[None]:
    """Raise `TooManyAttempts`, with a status of 503, if Redis does not respond in the block."""
    try:
        yield
    except RedisError as error:
        log.warning("attempts can't be counted: %r", error)
        refusal = TooManyAttempts(_UNAVAILABLE, code="unavailable")
        refusal.status = 503
        raise refusal from error
