"""The table of retention: up to which day generations were exported and dropped, and by whom."""

from django.db import models


class RetentionHorizon(models.Model):
    """A day of UTC: the generations that were settled before it, from the horizon before on, were exported to
    be dropped.

    `usage/retention/` writes it when the export is on the disk and checked, and the first row is dropped
    after that: the database lets nobody delete a generation that is not before a horizon. From then on it
    only says how far the dropping is.
    """

    day = models.DateField(primary_key=True)
    after = models.DateField(
        unique=True, help_text="The horizon before; unique, so that none overlaps another."
    )
    generations_count = models.PositiveBigIntegerField(help_text="How many were exported, and are dropped.")
    dropped_count = models.PositiveBigIntegerField(db_default=0, help_text="Of them so far.")
    dropped_until = models.DateTimeField(
        null=True, help_text="What was settled before this moment is dropped."
    )
    finished_at = models.DateTimeField(null=True)
    export = models.CharField(max_length=1_000, help_text="The folder it was written to.")
    export_digest = models.CharField(
        max_length=64, help_text="SHA-256 of its manifest, which has those of its files."
    )
    recorded_by = models.CharField(max_length=150)
    recorded_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.day}"
