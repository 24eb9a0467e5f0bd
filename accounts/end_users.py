"""End users: the people for whom a project's clients send requests, by the names that the clients give."""

import hashlib
import hmac
import re
from collections.abc import Collection, Iterable
from dataclasses import replace

from django.conf import settings

from accounts.limits import Limit
from accounts.models import MAX_END_USER_CHARS, EndUser, RateLimit

PREFIX = "sha256:"
_DIGEST = re.compile(f"{PREFIX}[0-9a-f]{{64}}")


def stored_name(name: str | None, *, is_hashed: bool) -> str | None:
    """Return the name as rows have it: itself or, if it is to be hidden, long or unprintable, its digest."""
    if not name:
        return None
    return digest(name) if is_hashed or len(name) > MAX_END_USER_CHARS or not name.isprintable() else name


def stored_names(name: str) -> tuple[str, str]:
    """Return the names that the rows of an end user may have: the name as it was sent, and its digest."""
    return name, digest(name)


def ids_of(names: Collection[tuple[int, str]]) -> dict[tuple[int, str], int]:
    """Return the ids of end users by project and name, and make the rows that are missing.

    To be called in a transaction; one that makes the same row at the same time is waited for.
    """
    known = _read(names)
    if missing := sorted(set(names) - known.keys()):  # sorted, so that two transactions do not deadlock
        rows = [EndUser(project_id=project_id, name=name) for project_id, name in missing]
        EndUser.objects.bulk_create(rows, ignore_conflicts=True)
        # Read again, because a bulk insert that ignores conflicts returns no ids.
        known |= _read(missing)
    return known


def _read(names: Collection[tuple[int, str]]) -> dict[tuple[int, str], int]:
    projects, own = {project_id for project_id, _ in names}, {name for _, name in names}
    rows = EndUser.objects.filter(project__in=projects, name__in=own)
    # The query matches each project with each name; callers look up only the pairs that they asked for.
    return {(project_id, name): id_ for project_id, name, id_ in rows.values_list("project_id", "name", "id")}


def hash_names(project_id: int, rows: Iterable[EndUser]) -> None:
    """Rename these end users, which are the project's end users with limits, to the digests of their names.

    A name that is a digest already, as every long name is, stays; so does a name whose digest has its own
    limits. If an end user without limits has the digest, because the project hashed names before, the two
    swap names.
    """
    limited = list(rows)
    renamed = {digest(row.name): row for row in limited if not _DIGEST.fullmatch(row.name)}
    for row in limited:
        renamed.pop(row.name, None)
    earlier = list(EndUser.objects.filter(project=project_id, name__in=renamed))
    plain_names = [renamed[row.name].name for row in earlier]
    for row in earlier:
        row.name = f"\n{row.pk}"  # names are unique; no client's name has a line break
    EndUser.objects.bulk_update(earlier, ["name"])
    for name, row in renamed.items():
        row.name = name
    EndUser.objects.bulk_update(renamed.values(), ["name"])
    for row, name in zip(earlier, plain_names, strict=True):
        row.name = name
    EndUser.objects.bulk_update(earlier, ["name"])


def usual_limits(project_id: int, rows: Iterable[RateLimit]) -> tuple[Limit, ...]:
    """Return the limits of each end user of the project, whose rows come before the organization's."""
    of_each = [row for row in rows if row.each_end_user]
    own_models = {row.model for row in of_each if row.project_id}
    applying = [row for row in of_each if row.project_id or row.model not in own_models]
    return tuple(limit for row in applying for limit in row.limits_of("end_user", project_id))


def named(usual: Iterable[Limit], name: str) -> list[Limit]:
    return [replace(limit, name=name) for limit in usual]


def limits(project_id: int, name: str, usual: Iterable[Limit]) -> list[Limit]:
    """Return an end user's limits: its own rows, and the usual limits of models for which it has no row."""
    rows = list(RateLimit.objects.filter(end_user__project=project_id, end_user__name=name))
    own = {row.model for row in rows}
    return [
        *(limit for row in rows for limit in row.limits_of("end_user", project_id, name)),
        *named((limit for limit in usual if limit.model not in own), name),
    ]


def digest(name: str) -> str:
    """Return a keyed digest, so that names that are easy to guess can't be found by trying."""
    key = settings.KEY_PEPPER.encode()
    # JSON may contain half a surrogate pair, which UTF-8 can't encode.
    return PREFIX + hmac.new(key, name.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()
