"""`manage.py verifyexport`: whether an export is what was signed."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from usage.exports import exporting
from usage.formatting import usd


class Command(BaseCommand):
    """Checks an export."""

    help = "Check an export of `exportusage`: its signature, its file's digest, its counts and sums. Exits with 1 when anything differs."

    def add_arguments(self, parser: CommandParser) -> None:
        """The options."""
        parser.add_argument("folder", type=Path, metavar="DIR", help="the export")
        ours = "the public key that it must be signed with, in PEM (default: this installation's)"
        parser.add_argument("--public-key", type=Path, metavar="FILE", help=ours)

    def handle(self, *args: Any, **options: Any) -> None:
        """Check it and say what is in it."""
        try:
            key = options["public_key"].read_bytes() if options["public_key"] else None
            manifest = exporting.check(options["folder"], key)
        except (exporting.InvalidExport, OSError) as error:
            raise CommandError(str(error)) from error
        counts = sum(manifest["entries"].values())
        generations = (
            f" and {manifest['generations']['count']} generations" if "generations" in manifest else ""
        )
        owed = usd(sum(manifest["amount_nanodollars"].values()))
        period = f"from {manifest['from']} to {manifest['to']}"
        self.stdout.write(
            f"The export is as it was signed: {counts} entries{generations} {period}, {owed} in sum."
        )
        if not manifest.get("is_over", True):  # those of earlier versions don't tell
            self.stdout.write(
                f"Note: the period was not over. The export has what was written until {manifest['exported_at']}."
            )
