"""How often one may try to sign in: counted in Redis, for all web processes together. Without Redis nobody
can.

A name can be tried a few times from one address, and more often from all addresses together, so that who
guesses from elsewhere does not at once shut its owner out. A name may be a password typed into the wrong
field: Redis is told an HMAC.
"""

from django.conf import settings
from django.utils.crypto import salted_hmac
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

WINDOW_MS = 600_000
MOST_OF_A_NAME_FROM_AN_ADDRESS = 10
MOST_OF_A_NAME = 100
MOST_FROM_AN_ADDRESS = 100
_REPLY_TIMEOUT_S = 3.0


def wait_ms(name: str, address: str) -> int:
    """Count an attempt, before the password is checked; return the time to wait, 0 if there were not too
    many.

    Raises `RedisError`.
    """
    most = {
        _pair(name, address): MOST_OF_A_NAME_FROM_AN_ADDRESS,
        _key("name", name): MOST_OF_A_NAME,
        _key(address): MOST_FROM_AN_ADDRESS,
    }
    with _redis() as redis, redis.pipeline() as pipe:
        for key in most:
            # A window begins with its first attempt; those that are refused don't lengthen it.
            pipe.incr(key).pexpire(key, WINDOW_MS, nx=True).pttl(key)
        replies = pipe.execute()
    waits = [
        left_ms
        for allowed, count, left_ms in zip(most.values(), replies[::3], replies[2::3], strict=True)
        if count > allowed
    ]
    return max(waits, default=0)


def forget(name: str, address: str) -> None:
    """Reset the count of this name from this IP after a right password. Raises `RedisError`."""
    with _redis() as redis:
        redis.delete(_pair(name, address))


def _redis() -> Redis:
    return Redis.from_url(
        settings.STREAMS_URL,
        socket_timeout=_REPLY_TIMEOUT_S,
        socket_connect_timeout=_REPLY_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )


def _pair(name: str, address: str) -> str:
    return _key("pair", name, address)


def _key(*parts: str) -> str:
    digest = salted_hmac("accounts.sign_in_attempts", "\n".join(parts)).hexdigest()
    return f"{settings.REDIS_KEY_PREFIX}sign-in:{digest}"
