"""`manage.py exportusage`: the ledger of a period as a file with a signed manifest."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, transaction
from django.template.defaultfilters import pluralize

from accounts.audit import recorder
from accounts.audit.commands import acting_command
from accounts.models import Organization
from usage.exports import exporting
from usage.management import arguments


class Command(BaseCommand):
    help = (
        "Write the ledger entries of a period into a folder, as CSV or NDJSON, with a signed manifest. "
        "`verifyexport` checks it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.epilog = "Example: manage.py exportusage --from 2026-11-01 --to 2026-12-01 --output november"
        arguments.add_period(parser)
        parser.add_argument(
            "--organization",
            type=arguments.text(200),
            metavar="NAME",
            help="only this organization's entries (default: all)",
        )
        parser.add_argument("--format", choices=["csv", "ndjson"], default="csv", help="default: csv")
        parser.add_argument(
            "--output",
            required=True,
            type=Path,
            metavar="DIR",
            help="a folder without an export; created if missing",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        organization = arguments.organization(options["organization"]) if options["organization"] else None
        spec = exporting.ExportSpec(*arguments.period(options), organization, options["format"])
        try:
            manifest = exporting.write(spec, options["output"])
        except OSError as error:
            reason = f"{options['output']}: can't be written: {error.strerror}"
            raise CommandError(reason if error.strerror else str(error)) from error
        self._record(spec, options["output"], manifest)
        counts = (
            ", ".join(
                f"{count} {kind}{pluralize(count)}" for kind, count in sorted(manifest["entries"].items())
            )
            or "nothing"
        )
        self.stdout.write(f"Wrote {options['output'] / manifest['file']['name']}: {counts}.")
        if not manifest["is_over"]:
            self.stdout.write(
                f"Note: the period is not over. The export has the entries until {manifest['exported_at']}."
            )

    def _record(self, spec: exporting.ExportSpec, folder: Path, manifest: dict[str, Any]) -> None:
        """Write the audit entry, if the database takes it: a replica does not."""
        facts = {
            "from": spec.since,
            "to": spec.until,
            "folder": str(folder.absolute()),
            "sha256": manifest["file"]["sha256"],
        }
        row = spec.organization or Organization(name="all organizations")
        try:
            with acting_command("exportusage"), transaction.atomic():
                recorder.record("exported usage", row, {name: [None, value] for name, value in facts.items()})
        except DatabaseError as error:
            self.stderr.write(f"The export is not in the audit log: {error}")
