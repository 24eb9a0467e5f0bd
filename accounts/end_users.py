"""End users: the people for whom a project's clients send requests, by the names that the clients give."""

import hashlib
import hmac

from django.conf import settings

from accounts.models import MAX_END_USER_CHARS

PREFIX = "sha256:"


def stored_name(name: str | None, *, is_hashed: bool) -> str | None:
    """Return the name as rows have it: itself or, if it is to be hidden, long or unprintable, its digest."""
    if not name:
        return None
    return digest(name) if is_hashed or len(name) > MAX_END_USER_CHARS or not name.isprintable() else name


def digest(name: str) -> str:
    """Return a keyed digest, so that names that are easy to guess can't be found by trying."""
    key = settings.KEY_PEPPER.encode()
    return PREFIX + hmac.new(key, name.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()
