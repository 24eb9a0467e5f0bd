"""`manage.py reconcile`: compare the books with an upstream's bill; exit 1 when they differ."""

from argparse import ArgumentTypeError
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.template.defaultfilters import pluralize

from usage import pricing
from usage.bills import reconciliation, upstream_bill
from usage.bills.reconciliation import ReconciliationSpec
from usage.bills.upstream_bill import Bill
from usage.errors import Dropped
from usage.management import arguments
from usage.pricing import Price
from usage.rollups import retention_horizon


class Command(BaseCommand):
    help = (
        "Compare tokens and cost per UTC day and model with an upstream's bill: a CSV file with the columns "
        "date, model and any of requests, prompt_tokens, cached_tokens, cache_write_tokens, "
        "completion_tokens, cost_usd; or the JSON of OpenAI's GET /v1/organization/costs. Exits with 1 and "
        "prints each difference beyond the tolerance."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.epilog = (
            "Example: manage.py reconcile bill.csv --from 2026-11-01 --to 2026-12-01 --deployment openai "
            "--tolerance 0.5"
        )
        parser.add_argument("file", type=Path, metavar="FILE", help="the bill")
        arguments.add_days(parser)
        parser.add_argument(
            "--deployment",
            default="",
            type=arguments.text(128),
            metavar="NAME",
            help="only requests that ran there (default: all deployments)",
        )
        parser.add_argument(
            "--tolerance",
            type=_percent,
            default=Decimal(0),
            metavar="PERCENT",
            help="the difference that is allowed, in percent of the bill's amount (default: 0)",
        )
        named = "the bill's name of one of our models, if it differs; may be repeated"
        parser.add_argument(
            "--name", action="append", default=[], type=_pair, metavar="OURS=THEIRS", help=named
        )
        priced = (
            "the upstream's prices in USD per million tokens, by its own name of the model; may be repeated"
        )
        parser.add_argument(
            "--price",
            action="append",
            default=[],
            type=_price,
            metavar="THEIRS=INPUT,CACHED,OUTPUT[,CACHE_WRITE[,CACHE_WRITE_1H]]",
            help=priced,
        )

    def handle(self, *args: Any, **options: Any) -> None:
        names, prices = dict(options["name"]), dict(options["price"])
        spec = ReconciliationSpec(
            *arguments.period(options), options["deployment"], names, prices, options["tolerance"]
        )
        try:
            retention_horizon.refuse_before(spec.since)
            if spec.deployment and not reconciliation.has_served(spec.deployment):
                raise CommandError(f"No request that is kept was served by a deployment {spec.deployment!r}.")
            bill = upstream_bill.read(options["file"])
            discrepancies = list(reconciliation.compare(bill, spec))
        except (upstream_bill.InvalidBill, Dropped) as error:
            raise CommandError(str(error)) from error
        # Before the differences, because a wrong name or period explains most of them.
        self._note_omissions(bill, spec)
        for discrepancy in discrepancies:
            self.stderr.write(str(discrepancy))
        if discrepancies:
            raise CommandError(
                f"{len(discrepancies)} difference{pluralize(len(discrepancies))} between the books and "
                f"{options['file']}."
            )
        self.stdout.write(f"The books and {options['file']} agree.")

    def _note_omissions(self, bill: Bill, spec: ReconciliationSpec) -> None:
        for model in reconciliation.unknown_models(spec.names):
            self.stderr.write(f"Note: nothing was ever charged for a model {model!r}, which --name names.")
        for model in reconciliation.unused_prices(bill, spec):
            self.stderr.write(
                f"Note: neither the bill nor the books have a model {model!r}, for which --price gives a "
                "price."
            )
        if bill.lines and not reconciliation.billed_in_period(bill, spec):
            self.stderr.write("Note: the bill has lines, but none for a day of the period.")
        count, nanodollars = reconciliation.without_deployment(spec) if spec.deployment else (0, 0)
        if count:
            omitted = (
                f"{count} request{pluralize(count)} of the period, charged ${pricing.to_usd(nanodollars)}"
            )
            self.stderr.write(f"Note: without a known deployment, and so not compared: {omitted}.")


def _pair(text: str) -> tuple[str, str]:
    left, equals, right = arguments.text(500)(text).partition("=")
    if not (left and equals and right):
        raise ArgumentTypeError(f"{text!r} does not have the form A=B")
    return left, right


def _price(text: str) -> tuple[str, Price]:
    model, numbers = _pair(text)
    try:
        first, cached, output, *writes = map(pricing.from_usd, numbers.split(","))
        return model, Price(first, cached, output, None, *writes)
    except (ValueError, TypeError):
        raise ArgumentTypeError(
            f"{text!r} does not have the form MODEL=INPUT,CACHED,OUTPUT[,CACHE_WRITE[,CACHE_WRITE_1H]], "
            "such as gpt-4o=2.50,1.25,10"
        ) from None


def _percent(text: str) -> Decimal:
    try:
        percent = Decimal(text)
    except InvalidOperation:
        # Refused below, with the message for all other mistakes.
        percent = Decimal(-1)
    if not (percent.is_finite() and 0 <= percent <= 100):
        raise ArgumentTypeError(f"{text!r} is not a percentage from 0 to 100")
    return percent
