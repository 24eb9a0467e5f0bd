"""`manage.py exportcatalog`: write models, prices and deployments as a TOML file that `loadcatalog` reads."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from chatapi.catalog.file import CatalogError
from chatapi.catalog.writing import write


class Command(BaseCommand):
    """Prints the catalog file."""

    help = "Print models, deployments and the prices in effect as TOML that loadcatalog reads back to the same rows."

    def add_arguments(self, parser: CommandParser) -> None:
        """An example below the options."""
        parser.epilog = "Example: manage.py exportcatalog > catalog.toml"

    def handle(self, *args: Any, **options: Any) -> None:
        """Print it; a row that no file can say is one line."""
        try:
            self.stdout.write(write(), ending="")
        except CatalogError as error:
            raise CommandError(str(error)) from error
