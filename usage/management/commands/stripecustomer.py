"""`manage.py stripecustomer`: let Stripe bill an organization's usage, and show what was reported."""

import re
from argparse import ArgumentTypeError
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Count, Min, Q, QuerySet, Sum

from accounts.audit.commands import acting_command
from usage.errors import NotBooked
from usage.formatting import usd
from usage.management import arguments
from usage.payment import metered_usage
from usage.payment.models import MeterEvent, StripeCustomer


class Command(BaseCommand):
    help = (
        "Report an organization's usage from this hour on to Stripe, which bills the customer, or end this. "
        "Without --customer and --end, show what was reported."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        example = '--organization "Acme Inc" --customer cus_NciAYcXfLnqBoz'
        parser.epilog = f"Example: manage.py stripecustomer {example}"
        parser.add_argument(
            "--organization", required=True, type=arguments.text(200), metavar="NAME", help="the organization"
        )
        change = parser.add_mutually_exclusive_group()
        change.add_argument("--customer", type=_customer_id, metavar="ID", help="the customer's id at Stripe")
        change.add_argument("--end", action="store_true", help="report the usage up to now, and no more")
        arguments.add_by(parser, "the person who sets it")

    def handle(self, *args: Any, **options: Any) -> None:
        organization = arguments.organization(options["organization"])
        if options["customer"] or options["end"]:
            if not settings.STRIPE_METER:
                raise CommandError("Set CHATAPI_STRIPE_METER first: docs/payment.md shows how.")
            with acting_command("stripecustomer", options["by"]):
                try:
                    if options["end"]:
                        metered_usage.end(organization)
                    else:
                        metered_usage.bill(organization, options["customer"])
                except NotBooked as error:
                    raise CommandError(str(error)) from error
        if options["end"]:
            self.stdout.write(f"The usage of {organization} up to now is reported, and no more.")
            return
        customer = StripeCustomer.objects.filter(organization=organization).first()
        events, billed = MeterEvent.objects.filter(organization=organization), Q()
        if customer:
            billed = Q(customer_id=customer.customer_id, hour__gte=customer.billed_from)
            begin, until = (
                f"{at:%Y-%m-%d %H:%M} UTC" for at in (customer.billed_from, customer.reported_until)
            )
            begin = f"{customer}: usage from {begin}, written down until {until}"
        elif events.exists():
            begin = f"{organization}: no usage is reported any more"
        else:
            raise CommandError(f"{organization} has no customer at Stripe: --customer names it.")
        self.stdout.write(f"{begin}; {_report(events, billed)}")


def _customer_id(text: str) -> str:
    if not re.fullmatch(r"cus_[A-Za-z0-9]{1,56}", text):
        raise ArgumentTypeError(f"{text[:70]!r} is not a customer's id, such as cus_NciAYcXfLnqBoz")
    return text


def _report(events: QuerySet[MeterEvent], billed: Q) -> str:
    """Return how much of what was billed is at Stripe, and which events wait, with Stripe's complaint."""
    found = events.aggregate(
        sent=Sum("amount_nanodollars", filter=billed & Q(due_at=None), default=0),
        waiting=Count("pk", filter=Q(due_at__isnull=False)),
        oldest=Min("hour", filter=Q(due_at__isnull=False)),
    )
    text = f"{usd(found['sent'])} are at Stripe, {found['waiting']} events wait"
    failed = events.exclude(error="").filter(due_at__isnull=False).order_by("hour").first()
    text += f", the oldest of {found['oldest']:%Y-%m-%d %H:%M} UTC." if found["waiting"] else "."
    return text + (f" Stripe says: {failed.error}" if failed else "")
