"""When the books were checked last, and what is wrong with them as far as is known."""

from dataclasses import dataclass
from datetime import datetime

from usage.models import LedgerCheck


@dataclass(frozen=True, slots=True)
class LastCheck:
    """The newest check; its differences are those of the newest that are still open, whichever check has
    found them.
    """

    checked_at: datetime
    differences: int
    first_difference: str


def last_check() -> LastCheck | None:
    """None: nobody has ever checked the books."""
    done = LedgerCheck.objects.filter(differences__isnull=False).order_by("-checked_at")
    newest, unsolved = done.first(), done.filter(differences__gt=0, resolved_at__isnull=True).first()
    if newest is None:
        return None
    if unsolved is None:
        return LastCheck(newest.checked_at, 0, "")
    return LastCheck(newest.checked_at, unsolved.differences or 0, unsolved.first_difference)
