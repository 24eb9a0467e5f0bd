"""The table of checks of the books, with the differences that each has found."""

from django.db import models


class LedgerCheck(models.Model):
    """One check of the books, by `verifyledger` or by a reaper, which makes one each hour.

    The newest are kept.
    """

    checked_at = models.DateTimeField()
    since = models.DateTimeField(
        null=True,
        help_text="It left out what was settled, written or sealed before; none: it looked at everything.",
    )
    hour = models.DateTimeField(
        null=True,
        unique=True,
        help_text="Of a reaper's check: for which hour; unique, so that one reaper makes it.",
    )
    generations = models.PositiveBigIntegerField(
        db_default=0, help_text="How many settled ones it looked at."
    )
    differences = models.PositiveIntegerField(
        null=True, help_text="None: it is not done yet, or was given up."
    )
    first_difference = models.CharField(max_length=500, blank=True, db_default="")
    resolved_at = models.DateTimeField(
        null=True, help_text="When a later check that looked at as much found no difference."
    )

    def __str__(self) -> str:
        found = "not done" if self.differences is None else self.differences
        return f"{self.checked_at:%Y-%m-%d %H:%M:%S}: {found}"
