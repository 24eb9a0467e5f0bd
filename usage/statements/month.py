"""A calendar month of UTC, the period of a statement."""

import re
from datetime import date, datetime
from typing import NamedTuple

from usage.rollups.closed_days import midnight

_TEXT = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])", re.ASCII)
# Away from the ends of Python's calendar.
_YEARS = range(2000, 9000)


class Month(NamedTuple):
    """A year and a month from 1 to 12; its text is `2026-11`."""

    year: int
    number: int

    @classmethod
    def of(cls, day: date) -> "Month":
        """Return the month that the day, or the moment in UTC, lies in."""
        return cls(day.year, day.month)

    @classmethod
    def parse(cls, text: str) -> "Month | None":
        """Return the month of a text such as `2026-11`; None for another text."""
        found = _TEXT.fullmatch(text)
        month = cls(int(found[1]), int(found[2])) if found else None
        return month if month is not None and month.year in _YEARS else None

    def __str__(self) -> str:
        return f"{self.year:04d}-{self.number:02d}"

    @property
    def title(self) -> str:
        """Return the name for people, such as "November 2026"."""
        return f"{self.first_day:%B %Y}"

    @property
    def first_day(self) -> date:
        return date(self.year, self.number, 1)

    @property
    def start(self) -> datetime:
        return midnight(self.first_day)

    @property
    def end(self) -> datetime:
        """Return the first moment after it."""
        return self.next.start

    @property
    def next(self) -> "Month":
        return Month(self.year + self.number // 12, self.number % 12 + 1)

    @property
    def previous(self) -> "Month":
        return Month(self.year - (self.number == 1), (self.number - 2) % 12 + 1)
