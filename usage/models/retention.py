"""The table of retention horizons: the days before which generations were exported and dropped."""

from django.db import models


class RetentionHorizon(models.Model):
    """A UTC day; the generations that were settled between the horizon before and this day were exported.

    `usage/retention/` writes the row once the export is on the disk and checked. Only then can generations be
    dropped: a trigger refuses to delete one that was settled after the last horizon. From then on the row
    only records the progress.
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
