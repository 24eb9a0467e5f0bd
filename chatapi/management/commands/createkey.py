"""`manage.py createkey`: make an API key, and its organization and project if they are missing."""

import json
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from accounts import allowed_ips, keys
from accounts.audit.commands import acting_command
from accounts.models import APIKey, KeyScope, Organization, Project, RateLimit, Role
from chatapi.models import ServedModel
from usage.management import arguments
from usage.models import BudgetLimit, Period, Scope
from usage.models.budget_keys import LimitKey

PERIODS = {"day": Period.DAY, "week": Period.WEEK, "month": Period.MONTH, "total": Period.EVER}


class Command(BaseCommand):
    help = (
        "Make an API key. It is printed once and only its HMAC is kept: copy it now. The key alone is on "
        "stdout, what it is for on stderr. A missing organization or project is created."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.epilog = (
            'Example: manage.py createkey --organization "Acme Inc" --project chat --name backend '
            "--requests-per-minute 60 --budget-usd 50 --per month"
        )
        payer, user = "the organization that pays", "its project that uses the key (default: default)"
        parser.add_argument("--organization", required=True, metavar="NAME", help=payer)
        parser.add_argument("--project", default="default", metavar="NAME", help=user)
        shown = "the key's name in lists (default: default)"
        parser.add_argument("--name", default="default", metavar="NAME", help=shown)
        parser.add_argument(
            "--test",
            action="store_true",
            help="make a ck_test_ key, which costs nothing and reaches only the sandbox engine",
        )
        parser.add_argument(
            "--admin",
            action="store_true",
            help="allow the key to read all usage and costs of its organization",
        )
        parser.add_argument(
            "--manages-as",
            default="",
            choices=Role.values,
            metavar="ROLE",
            help="allow the key to manage its organization with this role (owner, admin, member or viewer), "
            "and all that --admin allows",
        )
        parser.add_argument(
            "--scope",
            action="append",
            default=[],
            choices=KeyScope.values,
            help="a permission of the key; may be repeated (default: all)",
        )
        parser.add_argument(
            "--model",
            action="append",
            default=[],
            type=arguments.text(128),
            metavar="ID",
            help="a model that the key may use; may be repeated (default: all)",
        )
        parser.add_argument(
            "--allowed-ips",
            metavar="LIST",
            help="the IP addresses and networks from which the key may be used, separated by commas "
            "(default: all)",
        )
        _add_limits(parser)
        parser.add_argument("--json", action="store_true", help='print only {"key": ..., "id": ...}')

    def handle(self, *args: Any, **options: Any) -> None:
        if (options["budget_usd"] is None) != (options["per"] is None):
            raise CommandError("--budget-usd and --per go together: --budget-usd 50 --per month.")
        _check_models(options["model"])
        _check_names(options)
        if options["test"] and options["manages_as"]:
            raise CommandError("--manages-as: a test key can't manage an organization; leave --test out.")
        allowed = _allowed_ips(options["allowed_ips"])
        with acting_command("createkey"), transaction.atomic():
            made = _made(options)
            try:
                project = keys.get_or_create_project(options["organization"], options["project"])
            except ValidationError as error:
                raise CommandError(" ".join(error.messages)) from error
            row = APIKey(
                project=project,
                name=options["name"],
                is_test=options["test"],
                is_admin=options["admin"] or bool(options["manages_as"]),
                manages_as=options["manages_as"],
                scopes=list(dict.fromkeys(options["scope"])),
                allowed_models=list(dict.fromkeys(options["model"])),
                allowed_ips=allowed,
            )
            key = keys.issue(row)
            _save_limits(row, options)
        self.stdout.write(json.dumps({"key": key, "id": row.pk}) if options["json"] else key)
        if not options["json"]:
            kind = f"{'test' if row.is_test else 'live'}{' admin' if row.is_admin else ''} key"
            self.stderr.write(f"This {kind} {row.name!r} of {row.project} is shown only now.{made}")
        owners: dict[str, Project | Organization] = {
            "project": row.project,
            "organization": row.project.organization,
        }
        for name, owner in owners.items():
            if not owner.is_active:
                self.stderr.write(
                    f"The {name} is inactive: requests with this key are refused until it is active again."
                )


def _add_limits(parser: CommandParser) -> None:
    for column, number in RateLimit.NUMBERS.items():
        parser.add_argument(
            number.option,
            dest=column,
            type=arguments.positive,
            metavar="N",
            help=f"the most {number.measure}, for this key",
        )
    parser.add_argument(
        "--budget-usd",
        type=arguments.usd,
        metavar="AMOUNT",
        help="the most that the key may spend, in US dollars, such as 50.00; needs --per",
    )
    parser.add_argument("--per", choices=list(PERIODS), help="the period of the budget")


def _save_limits(row: APIKey, options: dict[str, Any]) -> None:
    """Save the key's rate limits and budget, if there are any. Raises `CommandError`."""
    numbers = {column: options[column] for column in RateLimit.NUMBERS}
    period, amount = PERIODS.get(options["per"], ""), options["budget_usd"]
    budget = BudgetLimit.new(LimitKey(Scope.API_KEY, row.pk, period), limit_nanodollars=amount)
    try:
        RateLimit(api_key=row, **numbers).save_or_delete()
        budget.save_or_delete()
    except ValidationError as error:
        raise CommandError(" ".join(error.messages)) from error


def _allowed_ips(text: str | None) -> list[str]:
    """Return the stored form of the list; raises `CommandError` for a wrong one."""
    if text is None:
        return []
    try:
        found = allowed_ips.normalized(allowed_ips.entries(text))
    except ValidationError as error:
        raise CommandError(f"--allowed-ips: {' '.join(error.messages)}") from error
    if not found:
        # An unset variable of a shell makes it so, and the key would be for every address.
        raise CommandError("--allowed-ips: the list is empty. Leave it out to allow every address.")
    return found


def _check_names(options: dict[str, Any]) -> None:
    named = {"organization": Organization, "project": Project, "name": APIKey}
    for option, model in named.items():
        row = model(name=options[option])
        try:
            row.clean_fields(exclude={field.name for field in row._meta.fields} - {"name"})
        except ValidationError as error:
            raise CommandError(f"--{option}: {' '.join(error.messages)}") from error


def _check_models(names: list[str]) -> None:
    """Raise `CommandError` for an unknown model: a mistyped name would make a useless key."""
    known = set(ServedModel.objects.filter(pk__in=names).values_list("pk", flat=True))
    if unknown := [name for name in names if name not in known]:
        raise CommandError(
            f"--model: there is no model {unknown[0]!r} in the catalog; "
            "`manage.py loadcatalog` brings models in."
        )


def _made(options: dict[str, Any]) -> str:
    """Return a note on what will be created: a mistyped name would make another tenant."""
    if not Organization.objects.filter(name=options["organization"]).exists():
        return " The organization is new."
    if not Project.objects.filter(
        organization__name=options["organization"], name=options["project"]
    ).exists():
        return " The project is new."
    return ""
