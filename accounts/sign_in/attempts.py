"""Limits of attempts to sign in and of mail to strangers, counted in Redis for all web processes.

Without Redis nobody can sign in.

A name has a low limit for each IP and a higher one for all IPs together, so that guesses from elsewhere do
not lock its owner out at once. Redis gets an HMAC of the name, which may be a password typed into the wrong
field.
"""

from collections.abc import Mapping

from django.conf import settings
from django.utils.crypto import salted_hmac
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from accounts.loop_clock import REPLY_TIMEOUT_S
from accounts.redis_sentinel import thread_options
from accounts.redis_urls import shared_url

WINDOW_MS = 600_000
MAX_PER_NAME_AND_IP = 10
MAX_PER_NAME = 100
MAX_PER_IP = 100
# Mail that visitors ask for: confirmations and links for a new password.
MAX_MAILS_PER_ADDRESS = 5
MAX_MAILS_PER_IP = 20
# Of one person, or of the keys of one organization: invitations tell which names are taken.
MAX_INVITATIONS = 50
# Of one person: new names of organizations tell which are taken, too.
MAX_RENAMES = 10
# Of one organization: this server asks the URL that its owner enters.
MAX_ISSUERS = 10


def wait_ms(name: str, ip: str) -> int:
    """Count an attempt, before the password is checked; return the time to wait, 0 below the limits.

    Raises `RedisError`.
    """
    return _wait_ms(
        {
            _key("pair", name, ip): MAX_PER_NAME_AND_IP,
            _key("name", name): MAX_PER_NAME,
            _key(ip): MAX_PER_IP,
        }
    )


def mail_wait_ms(address: str, ip: str) -> int:
    """Count a mail that a visitor asks for, whether the address is known or not; return the time to wait.

    Raises `RedisError`.
    """
    return _wait_ms(
        {_key("mail to", address): MAX_MAILS_PER_ADDRESS, _key("mail from", ip): MAX_MAILS_PER_IP}
    )


def invitation_wait_ms(inviter: str) -> int:
    """Count an invitation, before its name is looked up; return the time to wait. Raises `RedisError`."""
    return _wait_ms({_key("invitations of", inviter): MAX_INVITATIONS})


def rename_wait_ms(person_id: int) -> int:
    """Count a new name of an organization, before it is looked up; return the time to wait.

    Raises `RedisError`.
    """
    return _wait_ms({_key("renames of", str(person_id)): MAX_RENAMES})


def issuer_wait_ms(organization_id: int, ip: str) -> int:
    """Count a request to an issuer that an owner enters; return the time to wait. Raises `RedisError`."""
    return _wait_ms(
        {_key("issuers of", str(organization_id)): MAX_ISSUERS, _key("issuers from", ip): MAX_PER_IP}
    )


def forget(name: str, ip: str) -> None:
    """Reset the count of this name from this IP after a right password. Raises `RedisError`."""
    with _redis() as redis:
        redis.delete(_key("pair", name, ip))


def _wait_ms(limits: Mapping[str, int]) -> int:
    """Count once under each key; return the longest time until none of the limits is exceeded."""
    with _redis() as redis, redis.pipeline() as pipe:
        for key in limits:
            # A window starts with its first attempt; refused ones don't extend it.
            pipe.incr(key).pexpire(key, WINDOW_MS, nx=True).pttl(key)
        replies = pipe.execute()
    waits = [
        left_ms
        for allowed, count, left_ms in zip(limits.values(), replies[::3], replies[2::3], strict=True)
        if count > allowed
    ]
    return max(waits, default=0)


def _redis() -> Redis:
    url, options = thread_options(shared_url())
    return Redis.from_url(
        url,
        socket_timeout=REPLY_TIMEOUT_S,
        socket_connect_timeout=REPLY_TIMEOUT_S,
        # redis-py repeats by default; a repeated INCR would count one attempt twice.
        retry=Retry(NoBackoff(), 0),
        **options,
    )


def _key(*parts: str) -> str:
    digest = salted_hmac("accounts.sign_in_attempts", "\n".join(parts)).hexdigest()
    return f"{settings.REDIS_KEY_PREFIX}sign-in:{digest}"
