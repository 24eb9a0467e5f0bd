"""The ids by which clients know their requests.

Their form belongs to the protocol of the request, and this package knows no protocol: the setting `PUBLIC_ID`
names the function that writes them.
"""

from collections.abc import Callable
from functools import cache
from uuid import UUID

from django.conf import settings
from django.utils.module_loading import import_string


def public_id(generation_id: UUID, endpoint: str, dialect: str) -> str:
    """Return the id that the client of a generation with this endpoint and dialect saw."""
    return _function()(generation_id, endpoint, dialect)


@cache
def _function() -> Callable[[UUID, str, str], str]:
    function: Callable[[UUID, str, str], str] = import_string(settings.PUBLIC_ID)
    return function
