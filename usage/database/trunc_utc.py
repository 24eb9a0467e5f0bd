"""The start of the UTC minute, hour or day that a time lies in, as the database itself says it: no Python per
row.
"""

from typing import Any, Literal

from django.db.models import DateTimeField, F, Func

Width = Literal["minute", "hour", "day"]
_KEPT = {"minute": (16, ":00"), "hour": (13, ":00:00"), "day": (10, " 00:00:00")}
"""SQLite keeps times as text, "2026-11-21 06:04:27.123456": how many characters stay, and what follows them.
"""


class StartOf(Func):
    """`StartOf("day", "hour")`: the start of the day that the column `hour` lies in."""

    output_field = DateTimeField()

    def __init__(self, width: Width, column: str) -> None:
        super().__init__(F(column))
        self._width = width

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """A part of the text."""
        length, end = _KEPT[self._width]
        return self.as_sql(
            compiler, connection, template=f"(substr(%(expressions)s, 1, {length}) || '{end}')", **context
        )

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """PostgreSQL's own truncation."""
        return self.as_sql(
            compiler, connection, template=f"date_trunc('{self._width}', %(expressions)s, 'UTC')", **context
        )
