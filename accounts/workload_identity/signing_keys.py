"""The signing keys of issuers: uploaded ones, or fetched ones, which each process caches.

Strangers can cause a fetch, by a token with an unknown key id. So a process asks an issuer at most once in
`REFETCH_S`, for one provider of an organization at a time, and for `_FETCHES` organizations. Meanwhile few
other threads wait; those with a usable key do not.
"""

import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Lock, Semaphore
from typing import Any, Final

import jwt
import requests
from django.db import connection

from accounts.errors import SigningKeysUnavailable
from accounts.models import WorkloadIdentityProvider
from accounts.sign_in.fetching import BoundedSession, NotFetched
from accounts.workload_identity import jwks

REFETCH_S = 30.0
# Fetched again after an hour. If that fails, they are used until the end of the day.
_FRESH_S, _USABLE_S = 3_600.0, 86_400.0
_FETCHES: Final = 4
# A thread that waits for another one's fetch holds one of Django's eight places for pages.
_WAIT_S = 5.0
_WAITING: Final = 3
_MAX_CACHED = 1_000

_fetches = threading.BoundedSemaphore(_FETCHES)
_waiting = threading.BoundedSemaphore(_WAITING)
_by_organization: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)


@dataclass(slots=True)
class _Cached:
    """The keys of one issuer."""

    keys: list[jwks.JWK] = field(default_factory=list)
    fetched_at: float = float("-inf")
    asked_at: float = float("-inf")


_cache: OrderedDict[tuple[Any, ...], _Cached] = OrderedDict()


def find(provider: WorkloadIdentityProvider, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
    """Return the provider's key with this id, or None. Raises `SigningKeysUnavailable`."""
    if provider.jwks is not None:
        return jwks.find(provider.jwks["keys"], kid, algorithm)
    # A provider that was changed has another entry.
    place = (provider.pk, provider.issuer, provider.discovery_url)
    cached = _cache.setdefault(place, _Cached())
    while len(_cache) > _MAX_CACHED:
        _cache.popitem(last=False)
    found = jwks.find(cached.keys, kid, algorithm)
    age_s = time.monotonic() - cached.fetched_at
    if found is not None and age_s < _FRESH_S:
        return found
    is_usable = found is not None and age_s <= _USABLE_S
    try:
        _refresh(provider, cached, wait_s=0.0 if is_usable else _WAIT_S)
    except SigningKeysUnavailable:
        if not is_usable:
            raise
    if time.monotonic() - cached.fetched_at > _USABLE_S:
        raise SigningKeysUnavailable
    return jwks.find(cached.keys, kid, algorithm)


def _refresh(provider: WorkloadIdentityProvider, cached: _Cached, *, wait_s: float) -> None:
    """Fetch the keys, unless the issuer was asked just now. The old ones stay if that fails. Raises
    `SigningKeysUnavailable` if other threads fetch for longer than this.
    """
    with _turn(provider.organization_id, wait_s):
        if time.monotonic() - cached.asked_at < REFETCH_S:
            return
        cached.asked_at = time.monotonic()
        try:
            cached.keys = _fetched(provider)
        except NotFetched:
            return
        cached.fetched_at = time.monotonic()


@contextmanager
def _turn(organization_id: int, wait_s: float) -> Iterator[None]:
    """Let one thread of an organization fetch at a time. Raises `SigningKeysUnavailable`."""
    # The pool has few connections, and the issuer may take seconds.
    if not connection.in_atomic_block:
        connection.close()
    own = _by_organization[organization_id]
    with ExitStack() as held:
        for each in (own, _fetches):
            _acquire(each, wait_s)
            held.callback(each.release)
        yield


def _acquire(lock: "Lock | Semaphore", wait_s: float) -> None:
    """Acquire it; few threads wait, for at most this long. Raises `SigningKeysUnavailable`."""
    if lock.acquire(blocking=False):
        return
    if not wait_s or not _waiting.acquire(blocking=False):
        raise SigningKeysUnavailable
    try:
        if not lock.acquire(timeout=wait_s):
            raise SigningKeysUnavailable
    finally:
        _waiting.release()


def _fetched(provider: WorkloadIdentityProvider) -> list[jwks.JWK]:
    """Return the issuer's keys (OpenID Connect Discovery 1.0). Raises `NotFetched`."""
    url = provider.discovery_url or f"{provider.issuer.rstrip('/')}/.well-known/openid-configuration"
    with BoundedSession() as session:
        description = _json(session, url)
        if description.get("issuer") != provider.issuer:
            raise NotFetched("The description is another issuer's.")
        keys = _json(session, str(description.get("jwks_uri"))).get("keys")
    if not isinstance(keys, list):
        raise NotFetched("The issuer names no keys.")
    return [each for each in keys[: jwks.MAX_FETCHED_KEYS] if isinstance(each, dict)]


def _json(session: BoundedSession, url: str) -> dict[str, Any]:
    try:
        response = session.request("GET", url)
        response.raise_for_status()
        found = response.json()
    except (requests.RequestException, ValueError, RecursionError) as error:
        raise NotFetched("There is no answer of an issuer at this URL.") from error
    if not isinstance(found, dict):
        raise NotFetched("There is no answer of an issuer at this URL.")
    return found
