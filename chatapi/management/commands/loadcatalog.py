"""`manage.py loadcatalog`: load models, prices and deployments from a TOML file."""

import os
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounts.audit.commands import acting_command
from chatapi.catalog import file as catalog_file
from chatapi.catalog import loading as catalog_loading


class Command(BaseCommand):
    help = (
        "Load models, prices and deployments from a TOML file; a file with a mistake changes nothing. "
        "Safe to repeat. Running processes see the change within a second. "
        "Models that the file does not have are left alone."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.epilog = (
            "Example: manage.py loadcatalog docs/catalog.example.toml (that file explains every key)"
        )
        parser.add_argument("file", type=Path, metavar="FILE.toml", help="the catalog file")
        parser.add_argument(
            "--deactivate-missing",
            action="store_true",
            help="stop serving the models that the file does not have",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            catalog = catalog_file.read(options["file"])
            with acting_command("loadcatalog"):
                report = catalog_loading.load(catalog, deactivate_missing=options["deactivate_missing"])
        except catalog_file.CatalogError as error:
            raise CommandError(str(error)) from error
        for line in report.lines:
            self.stdout.write(line)
        if unset := _unset_keys(catalog):
            self.stdout.write(
                f"Not set in this environment: {', '.join(unset)}. "
                "Workers need these variables to call the deployments: set them, and restart the workers."
            )
        if report.missing and options["deactivate_missing"]:
            self.stdout.write(f"Not in the file, deactivated: {', '.join(report.missing)}.")
        elif report.missing:
            self.stdout.write(
                f"Not in the file, left as they are: {', '.join(report.missing)}. "
                "--deactivate-missing stops serving them."
            )


def _unset_keys(catalog: catalog_file.Catalog) -> list[str]:
    named = {
        deployment.api_key_env
        for model in catalog.models
        for deployment in model.deployments
        if deployment.is_active
    }
    return sorted(name for name in named if name and not os.environ.get(name, "").strip())
