"""Values of a row before and after a change, without secrets."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Field, ForeignKey, Model, QuerySet

from accounts.models import shown_name

Values = Mapping[str, Any]
Changes = dict[str, list[Any]]

HIDDEN = "(hidden)"
_SECRET = re.compile(r"password|digest|secret|(^|_)hash(_|$)|^api_key$|^credential")
# Fields that change with every act, or by acts with their own entries: signing in, granting and refunding
# credit. The content of a certificate never changes, and its fingerprint is long enough to read.
_UNWATCHED = {"last_login", "credited_nanodollars", "last_grant_nanodollars", "updated_at", "content"}
_MAX_LENGTH = 2_000


def values(model: type[Model], pk: Any) -> Values:
    """Return the row's values by column, as the database has them; empty without a row."""
    return values_of(model._base_manager.filter(pk=pk)).get(pk, {})


def values_of(rows: "QuerySet[Any]") -> dict[Any, Values]:
    """Return the values of many rows by primary key, in the rows' order."""
    columns = {field.attname for field in _fields(rows.model)}
    found: list[dict[str, Any]] = list(rows.values("pk", *columns))
    return {row["pk"]: row for row in found}


def between(model: type[Model], before: Values, after: Values) -> Changes:
    """Return the differences by field name; for a new or deleted row, all its values."""
    found: Changes = {}
    for field in _fields(model):
        old, new = before.get(field.attname), after.get(field.attname)
        # A new row lists only the fields that have something in them.
        if old == new or (not (before and after) and (old or new) in _EMPTY):
            continue
        found[field.name] = [_shown(field, old), _shown(field, new)]
    return found


_EMPTY: tuple[Any, ...] = (None, "", [], {})


def _fields(model: type[Model]) -> list[Any]:
    """Return the columns that people change: without primary keys and creation times."""
    return [
        field
        for field in model._meta.concrete_fields
        if field.name not in _UNWATCHED
        and not getattr(field, "auto_now_add", False)
        and not field.get_internal_type().endswith("AutoField")
    ]


def _shown(field: "Field[Any, Any]", value: Any) -> Any:
    """Return the value for readers; for a relation, the name of the related row."""
    if value is None:
        return None
    if isinstance(field, ForeignKey):
        row = field.related_model._base_manager.filter(pk=value).first()
        return shown_name(row) if isinstance(row, User) else str(row or value)
    if _SECRET.search(field.name) or isinstance(value, bytes | memoryview):
        return HIDDEN
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S} UTC"
    return value[:_MAX_LENGTH] if isinstance(value, str) else value
