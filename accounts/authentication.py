"""Turns the API key of a request into a `Caller`, with a short-lived cache in the process."""

import hmac
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from django.conf import settings
from django.db import connection
from django.db.models import Q, Value
from django.utils import timezone

from accounts import allowed_ips, api_keys, client_certificates, end_users
from accounts.errors import (
    IPNotAllowed,
    KeyMissing,
    KeyRefusal,
    NotAuthenticated,
    PermissionDenied,
    TwoKeys,
)
from accounts.ip_addresses import Network, parsed
from accounts.limits import Limit
from accounts.model_lists import ModelsMode, list_allows
from accounts.models import Certificate, CertificateProject, KeyScope, RateLimit

if TYPE_CHECKING:
    from cryptography import x509

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
    """The IANA name of the organization's time zone, in which the days of its budgets begin."""
    rate_limits: tuple[Limit, ...] = ()
    """Limits of its organization, project and key, for all models."""
    scopes: frozenset[str] = frozenset()
    """What its key may do (`KeyScope`); empty: everything."""
    allowed_models: frozenset[str] = frozenset()
    """The models that its key may use; empty: all."""
    allowed_ips: tuple[Network, ...] = ()
    """The networks from which its key may be used; empty: all."""
    certificates: "tuple[x509.Certificate, ...]" = ()
    """The authorities of which one has to have issued the client's certificate; empty: it needs none."""
    models_mode: str = ModelsMode.ALL
    """Whether `listed_models` allows or forbids models (`ModelsMode`)."""
    listed_models: frozenset[str] = frozenset()
    model_aliases: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The project's own names for models, with the ids of these models."""
    model_fallbacks: Mapping[str, Sequence[str]] = field(default_factory=dict, hash=False)
    """By a model's name: the models that answer, in order, if it fails."""
    hashes_end_users: bool = False
    stores_metadata: bool = False
    stores_responses_days: int = 0
    counts_end_users: bool = False
    """Whether its project's end users have budgets and limits."""
    end_user_limits: tuple[Limit, ...] = ()
    """The limits of each end user, with a blank `name`."""
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

    def require_ip(self, ip: str) -> None:
        """Raise `IPNotAllowed` unless its key may be used from the client's IP, which may be unknown."""
        if self.allowed_ips and not allowed_ips.allows(self.allowed_ips, ip):
            address = parsed(ip)
            raise IPNotAllowed(self.api_key_id, "" if address is None else str(address))

    def require_certificate(self, sent: Callable[[], str | None]) -> None:
        """Raise `CertificateRefused` unless the client has a certificate that its key needs, if any.

        `sent` returns what `forwarding.client_certificate` does.
        """
        if self.certificates:
            client_certificates.require(self.api_key_id, sent(), self.certificates)

    def require(self, scope: KeyScope) -> None:
        """Raise `PermissionDenied` unless its key has the scope."""
        if self.scopes and scope not in self.scopes:
            raise PermissionDenied(f"This API key may not do this: it lacks the scope '{scope}'.")


class RefusedKey(NamedTuple):
    """A key with the right secret that is not valid now, and why."""

    reason: KeyRefusal
    api_key_id: int


# The names of the request headers that may hold the key, each with the scheme in front of the key, or with an
# empty text if the value is the key.
KeyHeaders = Mapping[str, str]
# Those of the management API; each protocol of `chatapi.wire.protocols` has its own. The first is RFC 6750's.
KEY_HEADERS: Final[KeyHeaders] = {"Authorization": "Bearer", "x-api-key": ""}


def sent_key(headers: KeyHeaders, value_of: Callable[[str], str | None]) -> str:
    """Return the key in these headers, of which `value_of` returns the values.

    Raises `KeyMissing`, or `TwoKeys` if two of them hold keys that differ.
    """
    found: dict[str, str] = {}
    for name, scheme in headers.items():
        key = (value_of(name) or "").strip()
        if scheme:
            sent_scheme, _, credentials = key.partition(" ")
            key = credentials.strip() if sent_scheme.lower() == scheme.lower() else ""
        if key:
            found[name] = key
    if not found:
        raise KeyMissing
    (first, key), *others = found.items()
    for name, other in others:
        if not hmac.compare_digest(key.encode(), other.encode()):
            raise TwoKeys(first, name)
    return key


def look_up(key: str) -> Caller:
    """Return the caller with this key from the database; raises `NotAuthenticated`.

    A malformed key or a wrong checksum costs no query.
    """
    if api_keys.parse(key) is None:
        raise NotAuthenticated(KeyRefusal.MALFORMED)
    return admitted(look_up_all([key]).get(key))


def admitted(found: Caller | RefusedKey | None) -> Caller:
    """Return the caller that was found; raises `NotAuthenticated`.

    One error for all reasons: a stranger must not learn whether a key ever existed.
    """
    if found is None:
        raise NotAuthenticated
    if isinstance(found, RefusedKey):
        raise NotAuthenticated(*found)
    return found


def look_up_all(keys: Collection[str]) -> dict[str, Caller | RefusedKey]:
    """Return the callers by key, or why a key is refused; unknown keys are left out."""
    parsed = {key: known.public for key in keys if (known := api_keys.parse(key))}
    if not parsed:
        return {}
    # A rotated key has two secrets until the previous one ends.
    places, sent = ", ".join(["%s"] * len(parsed)), list(parsed.values())
    rows = _read(f"k.public IN ({places}) OR k.previous_public IN ({places})", [*sent, *sent])
    digests: dict[str | None, tuple[_Row, str]] = {row.public: (row, row.digest) for row in rows}
    digests |= {row.previous_public: (row, row.previous_digest) for row in rows if row.previous_public}
    right: dict[str, _Row] = {}
    refused: dict[str, RefusedKey] = {}
    for key, public in parsed.items():
        row, known_digest = digests.get(public) or (None, "")
        # Compared even when there is no row, so that the time taken does not distinguish known keys.
        is_secret = hmac.compare_digest(api_keys.digest(key, settings.KEY_PEPPER), known_digest)
        token_ends_at = api_keys.end_of_access_token(key, settings.KEY_PEPPER)
        if row is None or not (is_secret or (token_ends_at is not None and not row.digest)):
            continue
        has_ended = public == row.previous_public and not row.has_previous
        reason = row.refusal or (KeyRefusal.ROTATED if has_ended else "")
        # By the clock of a web process, from which the end was taken, too.
        if not reason and not is_secret and (token_ends_at or 0) <= time.time():
            reason = KeyRefusal.EXPIRED
        if reason:
            refused[key] = RefusedKey(KeyRefusal(reason), row.id)
        else:
            right[key] = row
    return {**dict(zip(right, _callers(right.values()), strict=True)), **refused}


def look_up_id(api_key_id: int) -> Caller:
    """Return the caller of a key that was authenticated before; raises `NotAuthenticated`."""
    rows = _read("k.id = %s", [api_key_id])
    if not rows:
        raise NotAuthenticated
    if rows[0].refusal:
        raise NotAuthenticated(rows[0].refusal, api_key_id)
    return _callers(rows)[0]


class _Row(NamedTuple):
    """What is read of a key, its project and its organization."""

    id: int
    name: str
    public: str
    digest: str
    previous_public: str | None
    previous_digest: str
    is_test: bool
    is_admin: bool
    manages_as: str
    default_dialect: str
    scopes: str
    allowed_models: str
    allowed_ips: str
    project_id: int
    organization_id: int
    models_mode: str
    listed_models: str
    model_aliases: str
    model_fallbacks: str
    hashes_end_users: bool
    stores_metadata: bool
    stores_responses_days: int
    counts_end_users: bool
    time_zone: str
    has_previous: bool | None
    is_limited: bool
    has_own_end_user_limits: bool
    needs_certificate: bool
    refusal: str
    """Why the key is not valid now (`KeyRefusal`); empty if it is valid."""


# SQL, because the ORM takes several times as long. The last condition reads from the few limits to their end
# users: a project may have a million others.
_SELECT = """SELECT k.id, k.name, k.public, k.digest, k.previous_public, k.previous_digest, k.is_test,
    k.is_admin, k.manages_as, COALESCE(NULLIF(k.default_dialect, ''), o.default_dialect),
    k.scopes, k.allowed_models, k.allowed_ips, k.project_id, p.organization_id,
    p.models_mode, p.listed_models, p.model_aliases, p.model_fallbacks, p.hashes_end_users,
    p.stores_metadata, CASE WHEN o.forbids_stored_responses THEN 0 ELSE p.stores_responses_days END,
    p.counts_end_users, o.time_zone,
    k.previous_expires_at > {now},
    EXISTS (SELECT 1 FROM accounts_ratelimit AS r
        WHERE r.organization_id = o.id OR r.project_id = p.id OR r.api_key_id = k.id),
    p.counts_end_users AND EXISTS (SELECT 1 FROM accounts_enduser AS u WHERE u.project_id = p.id
        AND u.id IN (SELECT end_user_id FROM accounts_ratelimit WHERE end_user_id IS NOT NULL)),
    EXISTS (SELECT 1 FROM accounts_certificate AS c WHERE c.organization_id = o.id AND (c.is_active
        OR EXISTS (SELECT 1 FROM accounts_certificateproject AS x
            WHERE x.certificate_id = c.id AND x.project_id = p.id))),
    CASE WHEN k.revoked_at IS NOT NULL THEN 'revoked_key' WHEN k.expires_at <= {now} THEN 'expired_key'
        WHEN NOT k.is_active THEN 'disabled_key' WHEN NOT p.is_active THEN 'archived_project'
        WHEN NOT o.is_active THEN 'inactive_organization' ELSE '' END
    FROM accounts_apikey AS k
    JOIN accounts_project AS p ON p.id = k.project_id
    JOIN accounts_organization AS o ON o.id = p.organization_id"""


def _read(which: str, parameters: Sequence[str | int]) -> list[_Row]:
    """Return the keys that meet the condition, each with why it is not valid now, if it is not."""
    # The database's clock, as of workers, which may be on other machines; SQLite's is that of this process.
    now, times = "statement_timestamp()", []
    if connection.vendor == "sqlite":
        now, times = "%s", 2 * [connection.ops.adapt_datetimefield_value(timezone.now())]
    with connection.cursor() as cursor:
        cursor.execute(f"{_SELECT.format(now=now)} WHERE {which}", [*times, *parameters])
        return [_Row._make(row) for row in cursor.fetchall()]


def _callers(rows: Collection[_Row]) -> list[Caller]:
    limited = [row for row in rows if row.is_limited]
    owners = (
        Q(organization__in={row.organization_id for row in limited})
        | Q(project__in={row.project_id for row in limited})
        | Q(api_key__in={row.id for row in limited})
    )
    limits = list(RateLimit.objects.filter(owners)) if limited else []
    certificates = _certificates([row for row in rows if row.needs_certificate])
    return [_caller(row, limits, certificates.get(row.id, ())) for row in rows]


def _certificates(rows: Sequence[_Row]) -> "dict[int, tuple[x509.Certificate, ...]]":
    """Return the active certificates by key: those of its organization and of its project."""
    if not rows:
        return {}
    of_organizations = (
        Certificate.objects.filter(organization__in={row.organization_id for row in rows}, is_active=True)
        .order_by()
        .values_list(Value("organization"), "organization_id", "content")
    )
    of_projects = CertificateProject.objects.filter(project__in={row.project_id for row in rows}).values_list(
        Value("project"), "project_id", "certificate__content"
    )
    # In one query: one that moves from the project to the organization between two would be in neither.
    active = [((kind, owner), content) for kind, owner, content in of_organizations.union(of_projects)]
    found = {}
    for row in rows:
        owners = ("organization", row.organization_id), ("project", row.project_id)
        contents = sorted({content for owner, content in active if owner in owners})
        found[row.id] = tuple(client_certificates.authority(each) for each in contents)
    return found


def _caller(row: _Row, limits: Iterable[RateLimit], certificates: "tuple[x509.Certificate, ...]") -> Caller:
    own = [
        each
        for each in limits
        if row.organization_id == each.organization_id
        or row.project_id == each.project_id
        or row.id == each.api_key_id
    ]
    return Caller(
        api_key_id=row.id,
        project_id=row.project_id,
        organization_id=row.organization_id,
        is_test=bool(row.is_test),
        is_admin=bool(row.is_admin),
        default_dialect=row.default_dialect,
        time_zone=row.time_zone,
        rate_limits=tuple(limit for each in own if not each.each_end_user for limit in each.limits),
        scopes=frozenset(json.loads(row.scopes)),
        allowed_models=frozenset(json.loads(row.allowed_models)),
        allowed_ips=allowed_ips.networks(json.loads(row.allowed_ips)),
        certificates=certificates,
        models_mode=row.models_mode,
        listed_models=frozenset(json.loads(row.listed_models)),
        key_name=f"{row.name} ({api_keys.redacted(row.public, is_test=bool(row.is_test))})",
        manages_as=row.manages_as if row.is_admin and not row.is_test else "",
        model_aliases=json.loads(row.model_aliases),
        model_fallbacks=json.loads(row.model_fallbacks),
        hashes_end_users=bool(row.hashes_end_users),
        stores_metadata=bool(row.stores_metadata),
        stores_responses_days=row.stores_responses_days,
        counts_end_users=bool(row.counts_end_users),
        end_user_limits=end_users.usual_limits(row.project_id, own) if row.counts_end_users else (),
        has_own_end_user_limits=bool(row.has_own_end_user_limits),
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
            raise NotAuthenticated(KeyRefusal.MALFORMED)
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
