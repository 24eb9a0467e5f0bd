"""The links of pages about usage: to ranges of time, and to pages of the admin or of one organization."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from django.db.models import Model, QuerySet
from django.urls import reverse
from django.utils.http import urlencode

from accounts import access
from accounts.models import Organization, Project
from usage.database.clock import hour_of

Row = TypeVar("Row", bound=Model)
_DAYS = (7, 30, 90)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few links to choose from."""

    text: str
    url: str
    is_chosen: bool


def page_url(name: str, query: Mapping[str, object]) -> str:
    """Return the URL of an admin page, with those parameters that are set."""
    parameters = urlencode({key: str(value) for key, value in query.items() if value not in (None, "")})
    return reverse(f"admin:{name}") + (f"?{parameters}" if parameters else "")


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages that a form belongs to: the admin's, unless they are those of one organization."""

    url: Callable[[str, Mapping[str, object]], str] = page_url
    """Returns the URL of a page by its name among the admin's."""
    organization: Organization | None = None
    projects: Callable[[], Sequence[Project]] = list
    """Returns the active projects of the organization that the person sees."""
    rows: Callable[[QuerySet[Any]], QuerySet[Any]] | None = None
    """Returns those of the rows that the pages may show; None: those that the person sees anywhere."""
    limited_to: Project | None = None
    """The project whose models are offered, for a person who sees single projects; None: all models."""

    def seen_by(self, person: access.Person, rows: QuerySet[Row]) -> QuerySet[Row]:
        """Return those of the rows that these pages may show the person."""
        return access.seen_by(person, rows) if self.rows is None else self.rows(rows)

    @property
    def time_zone(self) -> str:
        return self.organization.time_zone if self.organization else "UTC"


ADMIN = Pages()


def admin_time(moment: datetime) -> str:
    """Return the time as the filters of the admin's lists take it."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}+00:00"


def usual_ranges(now: datetime) -> Mapping[str, Mapping[str, str]]:
    """Return the names of the ranges with their parameters, for a reader with the clock of `now`.

    A range that ends now has no end, so its URL stays current.
    """
    # Through UTC, whose hours are counted: a zone's own may begin at half past, come twice or be skipped.
    hour = (hour_of(now.astimezone(UTC)) - timedelta(hours=1)).astimezone(now.tzinfo)
    yesterday, month = now.date() - timedelta(days=1), now.date().replace(day=1)
    last = month - timedelta(days=1)
    return {
        # With the offset from UTC: a page of end users has the days of UTC.
        "Last hour": {"start": hour.isoformat(timespec="minutes")},
        "Today": {"days": "1"},
        "Yesterday": {"start": str(yesterday), "end": str(yesterday)},
        **{f"{days} days": {"days": str(days)} for days in _DAYS},
        "This month": {"start": str(month)},
        "Last month": {"start": str(last.replace(day=1)), "end": str(last)},
    }
