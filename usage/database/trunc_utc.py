"""Truncation of a time column to its UTC minute, hour or day, computed by the database."""

from typing import Any, Literal

from django.db.models import DateTimeField, F, Func

Width = Literal["minute", "hour", "day"]
# SQLite stores times as text, such as "2026-11-21 06:04:27.123456".
_KEPT_CHARACTERS_AND_SUFFIX = {"minute": (16, ":00"), "hour": (13, ":00:00"), "day": (10, " 00:00:00")}


class TruncUTC(Func):
    """The start of the UTC minute, hour or day of a column, e.g. `TruncUTC("day", "hour")`.

    Django's `Trunc` calls a Python function for each row on SQLite.
    """

    output_field = DateTimeField()

    def __init__(self, width: Width, column: str) -> None:
        super().__init__(F(column))
        self._width = width

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        length, suffix = _KEPT_CHARACTERS_AND_SUFFIX[self._width]
        template = f"(substr(%(expressions)s, 1, {length}) || '{suffix}')"
        return self.as_sql(compiler, connection, template=template, **context)

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = f"date_trunc('{self._width}', %(expressions)s, 'UTC')"
        return self.as_sql(compiler, connection, template=template, **context)
