"""`manage.py createkey`: make an API key, and its organization and project when they are missing."""

import json
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from accounts import keys
from accounts.models import APIKey, KeyScope
from chatapi.models import ServedModel


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
        parser.add_argument("--admin", action="store_true", help="it may also read all of its organization's usage and costs")
        parser.add_argument(
            "--scope",
            action="append",
            default=[],
            choices=KeyScope.values,
            help="what it may do, more than once for more (default: everything)",
        )
        parser.add_argument(
            "--model", action="append", default=[], metavar="ID", help="a model it may use, more than once for more (default: all)"
        )
        parser.add_argument("--json", action="store_true", help='print only {"key": ..., "id": ...}')

    def handle(self, *args: Any, **options: Any) -> None:
        """Make the key and print it; a name that is not allowed is one line."""
        _check_models(options["model"])
        try:
            with transaction.atomic():
                row, key = _create(options)
        except ValidationError as error:
            raise CommandError("; ".join(f"{field}: {' '.join(lines)}" for field, lines in error.message_dict.items())) from error
        self.stdout.write(json.dumps({"key": key, "id": row.pk}) if options["json"] else _told(row, key))


def _check_models(names: list[str]) -> None:
    """A name that is mistyped would make a key that can use nothing."""
    known = set(ServedModel.objects.filter(pk__in=names).values_list("pk", flat=True))
    if unknown := [name for name in names if name not in known]:
        raise CommandError(f"--model: there is no model {unknown[0]!r} in the catalog; `manage.py loadcatalog` brings models in.")


def _create(options: dict[str, Any]) -> tuple[APIKey, str]:
    return keys.create_key(
        keys.get_or_create_project(options["organization"], options["project"]),
        name=options["name"],
        is_test=options["test"],
        is_admin=options["admin"],
        scopes=dict.fromkeys(options["scope"]),
        allowed_models=dict.fromkeys(options["model"]),
    )


def _told(row: APIKey, key: str) -> str:
    kind = f"{'test' if row.is_test else 'live'}{' admin' if row.is_admin else ''} key"
    return f"{key}\nThis {kind} {row.name!r} of {row.project} is shown only now."
