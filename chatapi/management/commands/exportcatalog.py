"""`manage.py exportcatalog`: write models, prices and deployments as a TOML file that `loadcatalog` reads."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from chatapi.catalog.file import CatalogError
from chatapi.catalog.writing import write


class Command(BaseCommand):
    help = "Print models, deployments and current prices as TOML; loadcatalog makes the same rows from it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.epilog = "Example: manage.py exportcatalog > catalog.toml"

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self.stdout.write(write(), ending="")
        except CatalogError as error:
            raise CommandError(str(error)) from error
