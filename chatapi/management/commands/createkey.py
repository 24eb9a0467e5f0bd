"""`manage.py createkey`: make an API key, and its organization and project when they are missing."""

import json
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from accounts import keys
from accounts.models import APIKey


class Command(BaseCommand):
    """Makes an API key and prints it once."""

    help = (
        "Make an API key. It is printed once and only its HMAC is kept: copy it now. "
        "The organization and the project are created when there are none of these names."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """The options, and an example below them."""
        parser.epilog = 'Example: manage.py createkey --organization "Acme Inc" --project chat --name backend'
        parser.add_argument("--organization", required=True, metavar="NAME", help="who pays")
        parser.add_argument("--project", default="default", metavar="NAME", help="the part of it that calls (default: default)")
        parser.add_argument("--name", default="default", metavar="NAME", help="what the key is called in lists (default: default)")
        parser.add_argument("--test", action="store_true", help="a ck_test_ key: reaches only the sandbox engine and costs nothing")
        parser.add_argument("--admin", action="store_true", help="it may also read its organization's usage and manage its keys")
        parser.add_argument("--json", action="store_true", help='print only {"key": ..., "id": ...}')

    def handle(self, *args: Any, **options: Any) -> None:
        """Make the key and print it; a name that is not allowed is one line."""
        try:
            with transaction.atomic():
                project = keys.get_or_create_project(options["organization"], options["project"])
                row, key = keys.create_key(project, name=options["name"], is_test=options["test"], is_admin=options["admin"])
        except ValidationError as error:
            raise CommandError("; ".join(f"{field}: {' '.join(lines)}" for field, lines in error.message_dict.items())) from error
        self.stdout.write(json.dumps({"key": key, "id": row.pk}) if options["json"] else _told(row, key))


def _told(row: APIKey, key: str) -> str:
    kind = f"{'test' if row.is_test else 'live'}{' admin' if row.is_admin else ''} key"
    return f"{key}\nThis {kind} {row.name!r} of {row.project} is shown only now."
