"""From a request's Authorization header to a `Caller`, with a short cache in the process."""

import hmac
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

from django.conf import settings
from django.db.models import Q, QuerySet
from django.utils import timezone

from accounts import api_keys
from accounts.errors import KeyMissing, NotAuthenticated, PermissionDenied
from accounts.limits import Limit
from accounts.models import APIKey, KeyScope, RateLimit

MAX_CACHED_CALLERS = 10_000


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a valid key stands for: the values that a request needs, without the database."""

    api_key_id: int
    project_id: int
    organization_id: int
    is_test: bool
    is_admin: bool
    default_dialect: str
    time_zone: str
    """IANA name; the organization's budgets follow its days."""
    rate_limits: tuple[Limit, ...] = ()
    """Of its organization, project and key, of all models."""
    scopes: frozenset[str] = frozenset()
    """What it may do (`KeyScope`); empty: everything."""
    allowed_models: frozenset[str] = frozenset()
    """The models that it may use; empty: all."""
    is_authenticated: bool = True

    def may_use(self, model: str) -> bool:
        """Whether its key may use that model, if there is such a model."""
        return not self.allowed_models or model in self.allowed_models

    def require(self, scope: KeyScope) -> None:
        """Raises `PermissionDenied` unless its key may do that."""
        if self.scopes and scope not in self.scopes:
            raise PermissionDenied(f"This API key may not do this: it lacks the scope '{scope}'.")


def bearer(header: str | None) -> str:
    """The key in an `Authorization: Bearer <key>` header (RFC 6750); raises `KeyMissing`."""
    scheme, _, key = (header or "").strip().partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise KeyMissing("no bearer token")
    return key.strip()


def look_up(key: str) -> Caller:
    """Ask the database who the key stands for; raises `NotAuthenticated`.

    A malformed key or a wrong checksum costs no query.
    """
    parsed = api_keys.parse(key)
    if parsed is None:
        raise NotAuthenticated("malformed key")
    row = _keys().filter(Q(public=parsed.public) | Q(previous_public=parsed.public)).first()
    known_digest = row.digest_for(parsed.public, timezone.now()) if row else ""
    # Compared even when there is no row, so that the time taken does not tell known keys from unknown ones.
    is_right = hmac.compare_digest(api_keys.digest(key, settings.KEY_PEPPER), known_digest)
    return _caller(row if is_right else None)


def look_up_all(keys: Collection[str]) -> dict[str, Caller]:
    """Who the keys stand for; those that are refused are left out."""
    found = {}
    for key in keys:
        with suppress(NotAuthenticated):
            found[key] = look_up(key)
    return found


def look_up_id(api_key_id: int) -> Caller:
    """Who a key stands for that was authenticated before, if it still does; raises `NotAuthenticated`."""
    return _caller(_keys().filter(pk=api_key_id).first())


def _keys() -> QuerySet[APIKey]:
    return APIKey.objects.select_related("project__organization")


def _caller(row: APIKey | None) -> Caller:
    if row is None or not _is_usable(row):
        raise NotAuthenticated("unknown, revoked, disabled or expired key")
    organization = row.project.organization
    return Caller(
        api_key_id=row.pk,
        project_id=row.project_id,
        organization_id=organization.pk,
        is_test=row.is_test,
        is_admin=row.is_admin,
        default_dialect=row.default_dialect,
        time_zone=organization.time_zone,
        rate_limits=_rate_limits(row),
        scopes=frozenset(row.scopes),
        allowed_models=frozenset(row.allowed_models),
    )


def _rate_limits(row: APIKey) -> tuple[Limit, ...]:
    owners = Q(organization=row.project.organization_id) | Q(project=row.project_id) | Q(api_key=row.pk)
    return tuple(limit for found in RateLimit.objects.filter(owners) for limit in found.limits)


def _is_usable(row: APIKey) -> bool:
    if row.revoked_at is not None or not (
        row.is_active and row.project.is_active and row.project.organization.is_active
    ):
        return False
    return row.expires_at is None or row.expires_at > timezone.now()


class CallerCache:
    """Remembers who a key stands for, for at most `max_age_ms`; refusals are never remembered.

    Entries are found by the key's HMAC, so the secret itself is not kept in memory.
    """

    def __init__(self, max_age_ms: int) -> None:
        self._max_age_s = max_age_ms / 1000
        self._known: OrderedDict[str, tuple[float, Caller]] = OrderedDict()

    async def authenticate(self, header: str | None, ask: Callable[[str], Awaitable[Caller]]) -> Caller:
        """The caller behind the header; `ask` runs `look_up` off the event loop. Raises `NotAuthenticated`."""
        key = bearer(header)
        if api_keys.parse(key) is None:
            raise NotAuthenticated("malformed key")
        digest, now = api_keys.digest(key, settings.KEY_PEPPER), time.monotonic()
        found = self._known.get(digest)
        if found is not None and now - found[0] < self._max_age_s:
            return found[1]
        self._known.pop(digest, None)
        caller = await ask(key)
        self._remember(digest, now, caller)
        return caller

    def _remember(self, digest: str, now: float, caller: Caller) -> None:
        self._known[digest] = (now, caller)
        while len(self._known) > MAX_CACHED_CALLERS:
            self._known.popitem(last=False)
