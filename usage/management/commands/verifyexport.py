"""`manage.py verifyexport`: check that an export is as it was signed."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from usage.exports import exporting
from usage.formatting import usd


class Command(BaseCommand):
    help = (
        "Check an export of `exportusage`: its signature, the digests of its files, its counts and sums. "
        "Exits with 1 if anything differs."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path, metavar="DIR", help="the export")
        key = "the public key of the signature, in PEM (default: this installation's)"
        parser.add_argument("--public-key", type=Path, metavar="FILE", help=key)

    def handle(self, *args: Any, **options: Any) -> None:
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
        if not manifest.get("is_over", True):  # exports of earlier versions lack it
            self.stdout.write(
                f"Note: the period was not over. The export has the entries until {manifest['exported_at']}."
            )
