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
    """The permission that the key's role must have (`accounts.roles`)."""
    answer: Any
    """The type of the answer."""
    body: type[Struct] | None = None
    query: type[Struct] | None = None
    description: str = ""


Operations = dict[str, ManagementOperation]
"""The operations by their HTTP method, in capitals."""
