"""Django's cache in the Redis that all processes share.

django-allauth keeps there which codes of second factors were used, and how often one was wrong.
"""

from typing import Any

from django.core.cache.backends.redis import RedisCache

from accounts.redis_urls import shared_url


class SharedCache(RedisCache):
    """A cache at the URL that the settings of streams and broker give, whatever its location says."""

    def __init__(self, server: str, params: dict[str, Any]) -> None:
        super().__init__(shared_url(), params)
