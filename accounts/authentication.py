"""Turns the API key of a request into a `Caller`, with a short-lived cache in the process."""

import hmac
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from django.conf import settings
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from accounts import api_keys, end_users
from accounts.errors import KeyMissing, NotAuthenticated, PermissionDenied, TwoKeys
from accounts.limits import Limit
from accounts.model_lists import ModelsMode, list_allows
from accounts.models import APIKey, EndUser, KeyScope, RateLimit

MAX_CACHED_CALLERS = 10_000


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a valid key: all values that a request needs, without the database."""

    api_key_id: int
    project_id: int
    organization_id: int
    is_test: bool
    is_admin: bool
    default_dialect: str
    time_zone: str
    """IANA name. The days of the organization's budgets follow it."""
    rate_limits: tuple[Limit, ...] = ()
    """Limits of its organization, project and key, for all models."""
    scopes: frozenset[str] = frozenset()
    """What its key may do (`KeyScope`); empty: everything."""
    allowed_models: frozenset[str] = frozenset()
    """The models that its key may use; empty: all."""
    models_mode: str = ModelsMode.ALL
    """What its project's list of models means."""
    listed_models: frozenset[str] = frozenset()
    model_aliases: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Models' ids by its project's own names for them."""
    hashes_end_users: bool = False
    stores_metadata: bool = False
    stores_responses_days: int = 0
    counts_end_users: bool = False
    """Whether its project's end users have budgets and limits."""
    end_user_limits: tuple[Limit, ...] = ()
    """Limits of each end user, without the name."""
    has_own_end_user_limits: bool = False
    """Whether some end users have limits of their own."""
    key_name: str = ""
    """The name of its key, with the start of the secret."""
    manages_as: str = ""
    """The role with which its key manages the organization; blank: it does not."""
    is_authenticated: bool = True

    def may_use(self, model: str) -> bool:
        """Return whether its key and its project may use the model, if that exists."""
        is_keys = not self.allowed_models or model in self.allowed_models
        return is_keys and list_allows(self.models_mode, self.listed_models, model)

    def require(self, scope: KeyScope) -> None:
        """Raise `PermissionDenied` unless its key has the scope."""
        if self.scopes and scope not in self.scopes:
            raise PermissionDenied(f"This API key may not do this: it lacks the scope '{scope}'.")


# The request headers `authorization` and `x-api-key`.
KeyHeaders = tuple[str | None, str | None]


def sent_key(headers: KeyHeaders) -> str:
    """Return the key of `Authorization: Bearer <key>` (RFC 6750) or `x-api-key: <key>`.

    Raises `KeyMissing`, or `TwoKeys` if both headers hold a key and the keys differ.
    """
    scheme, _, credentials = (headers[0] or "").strip().partition(" ")
    bearer = credentials.strip() if scheme.lower() == "bearer" else ""
    bare = (headers[1] or "").strip()
    if not bearer and not bare:
        raise KeyMissing("no key")
    if bearer and bare and not hmac.compare_digest(bearer.encode(), bare.encode()):
        raise TwoKeys
    return bearer or bare


def look_up(key: str) -> Caller:
    """Return the caller with this key from the database; raises `NotAuthenticated`.

    A malformed key or a wrong checksum costs no query.
    """
    parsed = api_keys.parse(key)
    if parsed is None:
        raise NotAuthenticated("malformed key")
    # A rotated key has two secrets until the previous one ends.
    row = _keys().filter(Q(public=parsed.public) | Q(previous_public=parsed.public)).first()
    known_digest = row.digest_for(parsed.public, timezone.now()) if row else ""
    # Compared even when there is no row, so that the time taken does not distinguish known keys.
    is_right = hmac.compare_digest(api_keys.digest(key, settings.KEY_PEPPER), known_digest)
    return _caller(row if is_right else None)


def look_up_all(keys: Collection[str]) -> dict[str, Caller]:
    """Return the callers by key; refused keys are left out."""
    found = {}
    for key in keys:
        with suppress(NotAuthenticated):
            found[key] = look_up(key)
    return found


def look_up_id(api_key_id: int) -> Caller:
    """Return the caller of a key that was authenticated before; raises `NotAuthenticated`."""
    return _caller(_keys().filter(pk=api_key_id).first())


def _keys() -> QuerySet[APIKey]:
    # From the few limits to their end users: a project may have a million others.
    limited = RateLimit.objects.filter(end_user__isnull=False).values("end_user")
    own = EndUser.objects.filter(pk__in=limited, project=OuterRef("project_id"))
    rows = APIKey.objects.select_related("project__organization")
    return rows.annotate(has_own_end_user_limits=Exists(own))


def _caller(row: APIKey | None) -> Caller:
    if (
        row is None
        or row.revoked_at is not None
        or not (row.is_active and row.project.is_active and row.project.organization.is_active)
        or (row.expires_at is not None and row.expires_at <= timezone.now())
    ):
        # One error for all of these: a stranger must not learn whether a key ever existed.
        raise NotAuthenticated("unknown, revoked, disabled or expired key")
    organization = row.project.organization
    owners = Q(organization=organization.pk) | Q(project=row.project_id) | Q(api_key=row.pk)
    rows = list(RateLimit.objects.filter(owners))
    limits = [limit for found in rows if not found.each_end_user for limit in found.limits]
    counts_end_users = row.project.counts_end_users
    return Caller(
        api_key_id=row.pk,
        project_id=row.project_id,
        organization_id=organization.pk,
        is_test=row.is_test,
        is_admin=row.is_admin,
        default_dialect=row.default_dialect,
        time_zone=organization.time_zone,
        rate_limits=tuple(limits),
        scopes=frozenset(row.scopes),
        allowed_models=frozenset(row.allowed_models),
        models_mode=row.project.models_mode,
        listed_models=frozenset(row.project.listed_models),
        key_name=str(row),
        manages_as=row.manages_as if row.is_admin and not row.is_test else "",
        model_aliases=row.project.model_aliases,
        hashes_end_users=row.project.hashes_end_users,
        stores_metadata=row.project.stores_metadata,
        stores_responses_days=row.project.stores_responses_days,
        counts_end_users=counts_end_users,
        end_user_limits=end_users.usual_limits(row.project_id, rows) if counts_end_users else (),
        has_own_end_user_limits=counts_end_users and getattr(row, "has_own_end_user_limits"),  # noqa: B009
    )


class CallerCache:
    """Caches the callers of valid keys for at most `max_age_ms`; refusals are never cached."""

    def __init__(self, max_age_ms: int) -> None:
        self._max_age_s = max_age_ms / 1000
        # By the key's HMAC, so that no secret stays in memory.
        self._known: OrderedDict[str, tuple[float, Caller]] = OrderedDict()

    async def authenticate(self, key: str, ask: Callable[[str], Awaitable[Caller]]) -> Caller:
        """Return the caller with this key; `ask` runs `look_up` off the event loop.

        Raises `NotAuthenticated`.
        """
        if api_keys.parse(key) is None:
            raise NotAuthenticated("malformed key")
        digest, now = api_keys.digest(key, settings.KEY_PEPPER), time.monotonic()
        found = self._known.get(digest)
        if found is not None and now - found[0] < self._max_age_s:
            return found[1]
        # Before asking: an answer that is too old must not stay if the key is refused now.
        self._known.pop(digest, None)
        caller = await ask(key)
        self._known[digest] = (now, caller)
        while len(self._known) > MAX_CACHED_CALLERS:
            self._known.popitem(last=False)
        return caller
