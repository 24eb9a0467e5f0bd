"""End users: the people for whom a project's clients send requests, by the names that the clients give."""

import hashlib
import hmac
from collections.abc import Collection

from django.conf import settings

from accounts.models import MAX_END_USER_CHARS, EndUser

PREFIX = "sha256:"


def stored_name(name: str | None, *, is_hashed: bool) -> str | None:
    """Return the name as rows have it: itself or, if it is to be hidden, long or unprintable, its digest."""
    if not name:
        return None
    return digest(name) if is_hashed or len(name) > MAX_END_USER_CHARS or not name.isprintable() else name


def ids_of(names: Collection[tuple[int, str]]) -> dict[tuple[int, str], int]:
    """Return the ids of end users by project and name, and make the rows that are missing.

    To be called in a transaction; one that makes the same row at the same time is waited for.
    """
    known = _read(names)
    if missing := sorted(set(names) - known.keys()):  # sorted, so that two transactions do not deadlock
        rows = [EndUser(project_id=project_id, name=name) for project_id, name in missing]
        EndUser.objects.bulk_create(rows, ignore_conflicts=True)
        known |= _read(missing)
    return known


def _read(names: Collection[tuple[int, str]]) -> dict[tuple[int, str], int]:
    projects, own = {project_id for project_id, _ in names}, {name for _, name in names}
    rows = EndUser.objects.filter(project__in=projects, name__in=own)
    return {(project_id, name): id_ for project_id, name, id_ in rows.values_list("project_id", "name", "id")}


def digest(name: str) -> str:
    """Return a keyed digest, so that names that are easy to guess can't be found by trying."""
    key = settings.KEY_PEPPER.encode()
    return PREFIX + hmac.new(key, name.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()
