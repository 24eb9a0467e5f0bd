"""Limits of attempts to sign in and of mail to strangers, counted in Redis for all web processes.

Without Redis nobody can sign in.

A name has a low limit for each network of a client and a higher one for all networks together, which counts
no refused attempts: no single network can lock a name's owner out elsewhere. A network has a limit for all
names. Redis gets an HMAC of the name, which may be a password typed into the wrong field.

Each `count_…` function counts an attempt and returns the time to wait in ms, 0 below the limits. It raises
`RedisError`.
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

# The limits below are for ten minutes.
WINDOW_MS = 600_000
MAX_PER_NAME_AND_NETWORK = 10
MAX_PER_NAME = 100
MAX_PER_NETWORK = 100
# Mail that visitors request: confirmations and links for a new password.
MAX_MAILS_PER_ADDRESS = 5
MAX_MAILS_PER_NETWORK = 20
# Per person, or per organization for its keys. An invitation reveals whether a name is taken.
MAX_INVITATIONS = 50
# Per person. A new name of an organization reveals whether it is taken.
MAX_RENAMES = 10
# Per organization. This server sends a request to the URL that its owner enters.
MAX_ISSUERS = 10


def count_sign_in(name: str, network: str) -> int:
    """Count an attempt to sign in. Call it before the password is checked."""
    of_network = {
        _key("pair", name, network): MAX_PER_NAME_AND_NETWORK,
        _key("network", network): MAX_PER_NETWORK,
    }
    return _count(of_network) or _count({_key("name", name): MAX_PER_NAME})


def count_mail(address: str, network: str) -> int:
    """Count a mail that a visitor requests, whether the address is known or not."""
    return _count(
        {_key("mail to", address): MAX_MAILS_PER_ADDRESS, _key("mail from", network): MAX_MAILS_PER_NETWORK}
    )


def count_invitation(inviter: str) -> int:
    """Count an invitation. Call it before the name is looked up."""
    return _count({_key("invitations of", inviter): MAX_INVITATIONS})


def count_rename(person_id: int) -> int:
    """Count a new name of an organization. Call it before the name is looked up."""
    return _count({_key("renames of", str(person_id)): MAX_RENAMES})


def count_issuer(organization_id: int, network: str) -> int:
    """Count a request to an issuer that an owner enters."""
    owner = _key("issuers of", str(organization_id))
    return _count({owner: MAX_ISSUERS, _key("issuers from", network): MAX_PER_NETWORK})


def forget(name: str, network: str) -> None:
    """Reset the count of this name from this network after a right password. Raises `RedisError`."""
    with _redis() as redis:
        redis.delete(_key("pair", name, network))


def _count(limits: Mapping[str, int]) -> int:
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
