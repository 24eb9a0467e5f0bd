"""Django's cache for django-allauth's counts: used and wrong codes of second factors.

These entries are in the Redis that all processes share. Others, such as the results of a search in the admin,
stay in this process: they hold tenants' rows, and work without Redis.
"""

from typing import Any

from allauth.mfa import app_settings as mfa_settings
from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache
from django.core.cache.backends.locmem import LocMemCache
from django.core.cache.backends.redis import RedisCache

from accounts.redis_sentinel import thread_options
from accounts.redis_urls import shared_url

# What django-allauth's keys begin with.
_SHARED = ("allauth", "jwt:")
_USED_CODES = "allauth.mfa.totp.used"


class AllauthInRedisCache(BaseCache):
    """Keeps django-allauth's keys in Redis, for all processes, and all other keys in this process.

    `LOCATION` is ignored: the URL of Redis is `redis_urls.shared_url`.
    """

    def __init__(self, name: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        url, options = thread_options(shared_url())
        options = params.get("OPTIONS", {}) | options
        self._local = LocMemCache(name, params)
        self._shared = RedisCache(url, params | {"OPTIONS": options})

    def get(self, key: str, default: Any = None, version: int | None = None) -> Any:
        return self._of(key).get(key, default, version)

    def add(self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        # allauth accepts a code one period before and after its own, but remembers a used one for one period.
        if key.startswith(_USED_CODES):
            timeout *= 1 + 2 * mfa_settings.TOTP_TOLERANCE
        return self._of(key).add(key, value, timeout, version)

    def set(self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> None:
        self._of(key).set(key, value, timeout, version)

    def delete(self, key: str, version: int | None = None) -> bool:
        return self._of(key).delete(key, version)

    def clear(self) -> None:
        """Clear this process's part only: clearing the shared part would let used codes pass again."""
        self._local.clear()

    def _of(self, key: str) -> BaseCache:
        return self._shared if key.startswith(_SHARED) else self._local
