"""Before and after: a row's values, and what differs between two states of them. Secrets are never among
them.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db.models import Field, ForeignKey, Model, QuerySet

Values = Mapping[str, Any]
Changes = dict[str, list[Any]]

HIDDEN = "(hidden)"
_SECRET = re.compile(r"password|digest|secret|(^|_)hash(_|$)|^api_key$|^credential")
_UNWATCHED = {"last_login", "credited_nanodollars"}
"""What moves by an act that is recorded itself: signing in, granting and refunding credit."""
_MAX_LENGTH = 2_000


def values(model: type[Model], pk: Any) -> Values:
    """The row's values as the database has them now, by column; nothing when there is no such row."""
    return values_of(model._base_manager.filter(pk=pk)).get(pk, {})


def values_of(rows: "QuerySet[Any]") -> dict[Any, Values]:
    """The same of many rows, by their primary key, in the rows' order."""
    columns = {field.attname for field in _fields(rows.model)}
    found: list[dict[str, Any]] = list(rows.values("pk", *columns))
    return {row["pk"]: row for row in found}


def between(model: type[Model], before: Values, after: Values) -> Changes:
    """What differs, by the field's name. Of a row that is new or gone: all that it has or had."""
    found: Changes = {}
    for field in _fields(model):
        old, new = before.get(field.attname), after.get(field.attname)
        if old == new or (not (before and after) and (old or new) in _EMPTY):
            continue
        found[field.name] = [_shown(field, old), _shown(field, new)]
    return found


_EMPTY: tuple[Any, ...] = (None, "", [], {})


def _fields(model: type[Model]) -> list[Any]:
    """The columns that people change; not the number of the row, nor when it was made."""
    return [
        field
        for field in model._meta.concrete_fields
        if field.name not in _UNWATCHED and not _is_automatic(field)
    ]


def _is_automatic(field: "Field[Any, Any]") -> bool:
    return getattr(field, "auto_now_add", False) or field.get_internal_type().endswith("AutoField")


def _shown(field: "Field[Any, Any]", value: Any) -> Any:
    """The value for a reader; of a relation, what it leads to."""
    if value is None:
        return None
    if isinstance(field, ForeignKey):
        row = field.related_model._base_manager.filter(pk=value).first()
        return str(row or value)
    if _SECRET.search(field.name) or isinstance(value, bytes | memoryview):
        return HIDDEN
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S} UTC"
    return value[:_MAX_LENGTH] if isinstance(value, str) else value
