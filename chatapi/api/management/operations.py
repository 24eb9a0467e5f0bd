"""The descriptions of the management API's operations, for its routes and for the OpenAPI document."""

from dataclasses import dataclass
from typing import Any

from msgspec import Struct


@dataclass(frozen=True, slots=True)
class ManagementOperation:
    """One method of a route."""

    id: str
    summary: str
    permission: str
    """What the role of the key must allow, as in `accounts.roles`."""
    answer: Any
    """The type of the answer."""
    body: type[Struct] | None = None
    query: type[Struct] | None = None
    description: str = ""


Operations = dict[str, ManagementOperation]
"""By the method, in capitals."""
